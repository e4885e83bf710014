"""A run: one folder with its lock, settings.json, log.jsonl, checkpoints and results.

`ttcnet.run_folder` has what it shares with other runs: settings.json, and its comparison when the run is resumed.
A checkpoint is checkpoint-STEP.safetensors, with parts beside it if a model is spread over processes (`parts`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ttcnet.errors import fail, whole_number
from ttcnet.machine.processes import check_shared, is_first_process, of_first, rank, together
from ttcnet.run_folder import SETTINGS, RunFolder, settings_of
from ttcnet.storage import tensor_file
from ttcnet.storage.locking import owned
from ttcnet.storage.reading import check_fields, read_bytes
from ttcnet.storage.writing import put, temporary, write_bytes
from ttcnet.terminal.console import tell

from . import parts
from .parts import Parts

LOG = "log.jsonl"
FORMAT = 2  # of checkpoints; older formats were folders checkpoint-STEP and files checkpoint.safetensors


class Checkpoint(NamedTuple):
    """The state saved after a step, and its file."""

    path: Path
    step: int
    tensors: Parts


class Run(RunFolder):
    """The folder of a run. It is locked inside a `with` block.

    Args:
        folder: made if it does not exist.
        settings: fit for JSON. Once there is a checkpoint or a result, others are refused.
        results: names of the results in the folder, which the run writes at its end.
        keep: checkpoints to keep, the last ones.
        others: arguments of `RunFolder`.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        *,
        results: Sequence[str],
        keep: int = 1,
        **others: Any,
    ) -> None:
        super().__init__(folder, settings, **others)
        self.results, self.keep = results, keep
        self._open = ExitStack()

    def __enter__(self) -> Run:
        if self.folder.exists() and not self.folder.is_dir():
            fail("out", "must be a folder", f"{self.folder}, a file", "Choose another place.", code="not-a-folder")
        with ExitStack() as opening:
            opening.enter_context(owned(self.folder))
            check_shared(self.folder)
            self._agree()
            self._refuse_older()
            self._settle()
            self._open = opening.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    @property
    def is_done(self) -> bool:
        """Whether all results exist."""
        return all((self.folder / name).exists() for name in self.results)

    @property
    def begun(self) -> bool:
        """Whether the folder holds a checkpoint or a result."""
        return bool(self.checkpoints()) or any((self.folder / name).exists() for name in self.results)

    def _refuse_older(self) -> None:
        older = [path for path in self.folder.glob("checkpoint-*") if path.is_dir()]
        older += [path for path in [self.folder / "checkpoint.safetensors"] if path.exists()]
        if older:
            remedy = "Finish the run with the version that began it, or choose another folder."
            fail("out", "must hold no checkpoint of an older version", older[0], remedy, code="damaged")

    def _agree(self) -> None:
        """All processes of a job must have the same settings."""
        first = json.loads(of_first(json.dumps(self.settings)))
        with together():
            if odd := [key for key in {**first, **self.settings} if first.get(key) != self.settings.get(key)]:
                theirs, here = ({key: each.get(key) for key in odd} for each in (first, self.settings))
                rule, value = f"must be those of process 0, {theirs}", f"{here} in process {rank()}"
                fail("settings", rule, value, "Start all with the same command and the same file.", "disagree")

    def check_settings(self) -> dict[str, Any]:
        """Fail if the run was begun with other settings. Returns those that have grown, with their earlier values."""
        then = self._settings_before()
        return {} if then is None else self.compare(then)

    def _settings_before(self) -> dict[str, Any] | None:
        """The settings of the run in the folder, if one was begun."""
        if self.begun and (found := settings_of(self.folder)):
            return found
        if last := self.last_checkpoint():
            return last.tensors.facts["settings"]
        return None

    def _settle(self) -> None:
        """Check the settings, and write them if they are new."""
        grown = self.check_settings()
        for name, before in grown.items():
            tell(
                f"The run in {self.folder} was to end after {before:,} {name}, and is extended to "
                f"{self.settings[name]:,}. From its last checkpoint on, the learning rate is that of a run of this "
                "length."
            )
        if is_first_process() and (grown or not self.begun or not (self.folder / SETTINGS).exists()):
            extended = self.noted().get("extended", []) if self.begun else []
            self.write_settings({"extended": [*extended, grown]} if grown else None)

    def note(self, **facts: Any) -> None:
        """Add facts to the provenance of the run."""
        if is_first_process():
            self.add_facts(facts)

    def checkpoints(self) -> list[Path]:
        """The files of all checkpoints, the last one last."""
        found = {}
        for path in self.folder.glob("checkpoint-*.safetensors"):
            if (step := whole_number(path.stem.removeprefix("checkpoint-"))) is not None:
                found[step] = path
        return [found[step] for step in sorted(found)]

    def save(self, step: int, tensors: dict[str, Tensor]) -> None:
        """Save a checkpoint. Every process must call this. Each writes its pieces, the first one the rest.
        Older ones are deleted when this one is complete."""
        facts = {"format": FORMAT, "step": step, "settings": self.settings}
        parts.write(self.folder / f"checkpoint-{step}.safetensors", tensors, facts)
        with together():
            if is_first_process():
                for path in self.checkpoints()[: -self.keep]:
                    parts.delete(path)
                parts.delete_strays(self.folder)

    def last_checkpoint(self) -> Checkpoint | None:
        """The last complete checkpoint; None if there is no checkpoint at all. Damaged ones are reported."""
        damage: Exception | None = None
        for path in reversed(self.checkpoints()):
            try:
                tensors = Parts(path)
                facts = tensors.facts
                if facts["format"] != FORMAT:
                    rule = f"must be a checkpoint of format {FORMAT}"
                    fail(str(path), rule, facts["format"], "Use the version of ttcnet that wrote it.", code="damaged")
                return Checkpoint(path, facts["step"], tensors)
            except (OSError, ValueError) as error:
                damage = error
                tell(f"{path} is damaged, and skipped. {error}")
        if damage is not None:
            remedy = "Restore a complete one, or delete all to start again from the beginning."
            fail(str(self.folder), "must have a complete checkpoint", damage, remedy, code="damaged")
        return None

    def forget(self) -> None:
        """Delete all checkpoints."""
        for path in self.checkpoints():
            parts.delete(path)

    def cut_log(self, step: int) -> None:
        """Remove the lines that a killed run wrote after its last checkpoint, at `step`, and a line that it left
        half-written."""
        log = self.folder / LOG
        if not log.exists() or not is_first_process():
            return
        remedy = "Correct the line; or move the file away, and the run is resumed with a new one."
        kept = []
        for number, line in enumerate(read_bytes(log).splitlines(keepends=True), 1):
            if line.endswith(b"\n"):
                content = None
                with suppress(ValueError, RecursionError):
                    content = json.loads(line)
                check_fields(f"{log} line {number}", content, remedy, step=int)
                if content is not None and content["step"] <= step:
                    kept.append(line)
        write_bytes(log, b"".join(kept))

    def log(self, values: Mapping[str, Any]) -> None:
        """Append a line to the log, from the first process only."""
        if is_first_process():
            with (self.folder / LOG).open("a") as file:
                file.write(json.dumps(dict(values)) + "\n")

    @contextmanager
    def result(self, name: str) -> Iterator[Path]:
        """A new folder, which gets its name at the end of the block. So a result is complete or does not exist. Every
        process may open it, and the first one fills it."""
        path = self.folder / name
        new = temporary(path)
        try:
            with tensor_file.writing(path):
                yield new
            if is_first_process():
                put(new, path)
        finally:
            shutil.rmtree(new, ignore_errors=True)
