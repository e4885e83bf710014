"""A run: one folder with its lock, settings.json, log.jsonl, checkpoints and results.

settings.json holds the settings, flat, and under "provenance" what made the run: command, commit, versions, machine.
A checkpoint is one file, checkpoint-STEP.safetensors, whatever trained and however many processes did.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ttcnet import tensor_file
from ttcnet.console import tell
from ttcnet.environment import circumstances
from ttcnet.errors import fail, whole_number
from ttcnet.locking import owned
from ttcnet.processes import check_shared, is_first_process, wait_for_all
from ttcnet.reading import check_fields, check_settings, read_json
from ttcnet.writing import put, temporary, write_bytes, write_json

SETTINGS, LOG, PROVENANCE = "settings.json", "log.jsonl", "provenance"
FORMAT = 2  # of checkpoints; before there were folders checkpoint-STEP, and files checkpoint.safetensors


class Checkpoint(NamedTuple):
    """What was saved after a step, and where."""

    path: Path
    step: int
    tensors: dict[str, Tensor]


class Run:
    """The folder of a run, from `with` to the end of its block. Other commands are kept out of it.

    Args:
        folder: is made if need be.
        settings: fit for JSON. Once there is a checkpoint or a result, others are refused.
        results: names in the folder of what the run makes at its end.
        may_grow: settings that may be greater when the run is resumed, such as steps.
        defaults: settings that older folders do not name.
        keep: checkpoints to keep, the last ones.
        program: the command that settings.json names.
        packages: others whose versions settings.json names.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        *,
        results: Sequence[str],
        may_grow: Sequence[str] = (),
        defaults: Mapping[str, Any] | None = None,
        keep: int = 1,
        program: str = "ttcnet",
        packages: Sequence[str] = (),
    ) -> None:
        self.folder, self.settings = folder, json.loads(json.dumps(dict(settings)))
        self.results, self.may_grow, self.keep = results, may_grow, keep
        self.defaults = json.loads(json.dumps(dict(defaults or {})))
        self._provenance = dict(program=program, packages=packages)
        self._open = ExitStack()

    def __enter__(self) -> Run:
        if self.folder.exists() and not self.folder.is_dir():
            fail("out", "must be a folder", f"{self.folder}, a file", "Choose another place.", code="not-a-folder")
        with ExitStack() as opening:
            opening.enter_context(owned(self.folder))
            check_shared(self.folder)
            self._refuse_older()
            self._check_settings()
            self._open = opening.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    @property
    def is_done(self) -> bool:
        """Whether all its results are there."""
        return all((self.folder / name).exists() for name in self.results)

    @property
    def begun(self) -> bool:
        """Whether something was learned there."""
        return bool(self.checkpoints()) or any((self.folder / name).exists() for name in self.results)

    def _refuse_older(self) -> None:
        older = [path for path in self.folder.glob("checkpoint-*") if path.is_dir()]
        older += [path for path in [self.folder / "checkpoint.safetensors"] if path.exists()]
        if older:
            remedy = "Finish the run with the version that began it, or choose another folder."
            fail("out", "must hold no checkpoint of an older version", older[0], remedy, code="damaged")

    def _check_settings(self) -> None:
        """Those of the run that is in the folder; written down if there is none, or if it grows."""
        file, remedy, then = self.folder / SETTINGS, "Restore it, or choose another folder.", None
        extended = list[dict[str, Any]]()
        if self.begun:
            if file.exists():
                then = read_json(file, remedy)
                provenance = then.pop(PROVENANCE, {})
                check_fields(f"{file}: {PROVENANCE}", provenance, remedy)
                extended = provenance.get("extended", [])
            elif last := self.last_checkpoint():
                then = tensor_file.facts(last.path)["settings"]
        if then is not None:
            then, grown = self.defaults | then, dict[str, Any]()
            for name in self.may_grow:
                before, now = then.get(name), self.settings.get(name)
                if before != now and all(isinstance(number, int | float) for number in (before, now)):
                    then[name], grown[name] = now, before
            check_settings(self.folder, then, self.settings)
            for name, before in grown.items():
                self._grow(name, before)
            if not grown:
                return
            extended = [*extended, grown]
        if is_first_process():
            self._write_settings({"extended": extended} if extended else {})

    def _grow(self, name: str, before: float) -> None:
        now = self.settings[name]
        if now < before:
            rule = f"must be those of the run in {self.folder}, {before}, or more"
            fail(name, rule, now, "A run can be made longer, not shorter.", code="settings-changed")
        tell(
            f"The run in {self.folder} was to end after {before:,} {name}, and is extended to {now:,}. From its last "
            "checkpoint on, the learning rate is that of a run of this length."
        )

    def _write_settings(self, others: dict[str, Any]) -> None:
        program, packages = self._provenance["program"], self._provenance["packages"]
        write_json(
            self.folder / SETTINGS, self.settings | {PROVENANCE: circumstances(*packages, program=program) | others}
        )

    def note(self, **facts: Any) -> None:
        """Add to the provenance of the run."""
        file = self.folder / SETTINGS
        content = read_json(file, "Restore it, or choose another folder.") if file.exists() else self.settings
        if is_first_process():
            write_json(file, content | {PROVENANCE: content.get(PROVENANCE, {}) | facts})

    def checkpoints(self) -> list[Path]:
        """The last one last."""
        found = {}
        for path in self.folder.glob("checkpoint-*.safetensors"):
            if (step := whole_number(path.stem.removeprefix("checkpoint-"))) is not None:
                found[step] = path
        return [found[step] for step in sorted(found)]

    def save(self, step: int, tensors: dict[str, Tensor]) -> None:
        """A checkpoint. All processes have to call this; the first one has the tensors, and writes."""
        if is_first_process():
            facts = {"format": FORMAT, "step": step, "settings": self.settings}
            tensor_file.save(self.folder / f"checkpoint-{step}.safetensors", tensors, facts)
            for path in self.checkpoints()[: -self.keep]:
                path.unlink()
        wait_for_all()

    def last_checkpoint(self) -> Checkpoint | None:
        """The last one that is whole, and None if there are none at all. Those that are damaged are named."""
        damage: Exception | None = None
        for path in reversed(self.checkpoints()):
            try:
                tensors, facts = tensor_file.load(path)
                check_fields(str(path), facts, "Delete it.", format=int, step=int, settings=dict)
                if facts["format"] != FORMAT:
                    rule = f"must be a checkpoint of format {FORMAT}"
                    fail(str(path), rule, facts["format"], "Use the version of ttcnet that wrote it.", code="damaged")
                return Checkpoint(path, facts["step"], tensors)
            except (OSError, ValueError) as error:
                damage = error
                tell(f"{path} is damaged, and passed over. {error}")
        if damage is not None:
            remedy = "Put a whole one there, or delete all to start again from the beginning."
            fail(str(self.folder), "must have a checkpoint that is whole", damage, remedy, code="damaged")
        return None

    def forget(self) -> None:
        """Delete all checkpoints."""
        for path in self.checkpoints():
            path.unlink()

    def cut_log(self, step: int) -> None:
        """Drop what a killed run wrote after its last checkpoint, at `step`, and a line that it left half-written."""
        log = self.folder / LOG
        if not log.exists() or not is_first_process():
            return
        remedy = "Correct the line; or move the file away, and the run is resumed with a new one."
        kept = []
        for number, line in enumerate(log.read_bytes().splitlines(keepends=True), 1):
            if line.endswith(b"\n"):
                content = None
                with suppress(ValueError, RecursionError):
                    content = json.loads(line)
                check_fields(f"{log} line {number}", content, remedy, step=int)
                if content is not None and content["step"] <= step:
                    kept.append(line)
        write_bytes(log, b"".join(kept))

    def log(self, values: Mapping[str, Any]) -> None:
        """A line, from the first process alone."""
        if is_first_process():
            with (self.folder / LOG).open("a") as file:
                file.write(json.dumps(dict(values)) + "\n")

    @contextmanager
    def result(self, name: str) -> Iterator[Path]:
        """A new folder, which gets its name at the end of the block: it is there whole or not at all. All processes
        may open it, and the first one fills it."""
        path = self.folder / name
        new = temporary(path)
        try:
            with tensor_file.writing(path):
                yield new
            if is_first_process():
                put(new, path)
        finally:
            shutil.rmtree(new, ignore_errors=True)
