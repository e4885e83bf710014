"""Runs that wait for a GPU: takes the next one whenever minutes are left, and packs what it made.

    python -m experiments.gpu_queue list
    python -m experiments.gpu_queue run --data DATA --out OUT --minutes 9 --pack PACKED
    python -m experiments.gpu_queue unpack PACKED --out OUT    # before the next `run`, on the next machine

The jobs stand in the order in which they are worth most. A job that needs a folder which is not there is left for
later, with a line that says so. A job that is stopped by the clock resumes from its last checkpoint. `queue.json` in
OUT has the jobs that came to their end.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ttcnet.errors import errors_as_sentences, fail
from ttcnet.storage.writing import write_json

STATE, PART = "queue.json", "part"
ENDED, STOPPED = "done", "stopped"
PART_BYTES, MOST_PARTS = 15 << 20, 8  # of what comes back from a machine
GRACE = 20  # seconds from asking a job to stop to ending it
app = typer.Typer(help=__doc__, no_args_is_help=True)


@dataclass(frozen=True)
class Job:
    """A command. {data}, {base} and {out} are folders, {minutes} is the time that is left.

    Attributes:
        least: minutes without which it is not worth starting.
        needs: files in {data} or {base} that it reads.
        issue: the question that it answers.
    """

    name: str
    issue: str
    command: str
    least: float
    needs: tuple[str, ...] = ()


BOARDS = ("{data}/train-9k.csv", "{data}/test-1k.csv")
LOOPED = (
    "python -m experiments.sudoku {setting} --train {data}/train-9k.csv --test {data}/test-1k.csv --out "
    "{out}/{setting} --steps 7000 --set lr=0.004 --set final_lr=0.0002 --minutes {minutes}"
)
FROZEN = "python -m experiments.math_small {task} --frozen --base {base} --out {out}/{task}-frozen --minutes {minutes}"


def _looped(setting: str, seeds: tuple[int, ...], arms: tuple[str, ...] = ("ttc", "mlp", "transformer")) -> Job:
    only = " ".join(f"--only {arm}-{seed}" for seed in seeds for arm in arms)
    name = f"{setting}-{'-'.join(map(str, seeds))}"
    question = f"Sudoku, {setting}: more seeds of TTC-Net, MLP and Transformer"
    return Job(name, question, f"{LOOPED.replace('{setting}', setting)} {only}", 2, BOARDS)


def _equal(setting: str) -> Job:
    """TTC-Net and MLP as large as the Transformer, in a folder of their own."""
    command = LOOPED.replace("/{setting}", f"/{setting}-equal").replace("{setting}", setting)
    only = " ".join(f"--only {arm}-{seed}" for seed in range(3) for arm in ("ttc", "mlp"))
    question = f"Sudoku, {setting}: TTC-Net and MLP as large as the Transformer"
    return Job(f"{setting}-equal", question, f"{command} --set mlp_width=157 {only}", 2, BOARDS)


JOBS = (
    Job("gpu-tests", "are all kernels right?", "python -m tests.gpu --minutes {minutes} --out {out}/gpu-tests", 6),
    Job("dense", "how fast is solve on a GPU, beside mpc.pytorch and diffilqrax?",
        "python -m benchmarks dense --device cuda --problems 4096 --budget 0.5 --out {out}/dense-cuda.csv", 4),
    Job("forms", "which form of the kernels is fastest where it was not measured?",
        "ttcnet bench forms --shape 5008x48x24x24 --shape 16384x64x64x64 --out {out}/forms.csv", 2),
    Job("full-size", "8B on one GPU: time, memory, and what a dry run says of them",
        "ttcnet bench full-size --shape 8B --resume --out {out}/full-size.csv", 4),
    Job("speed", "all shapes of plan, in its present form",
        "ttcnet bench lqr --device cuda --sweep all --limit 12 --resume --out {out}/lqr-gpu.csv", 5),
    _looped("looped-strict", (3, 4)),
    *(_equal(setting) for setting in ("looped-strict", "looped-augmented")),
    _looped("looped-augmented", (3, 4)),
    Job("frozen-math", "one inserted layer in a frozen base: mathematics",
        FROZEN.replace("{task}", "math") + " --data {data}/math", 5,
        ("{data}/math/gsm8k-train.jsonl", "{base}/config.json")),
    Job("frozen-countdown", "the same: Countdown", FROZEN.replace("{task}", "countdown"), 5, ("{base}/config.json",)),
    Job("token-math", "full fine-tuning with token context: mathematics",
        "python -m experiments.math_small math --base {base} --data {data}/math --out {out}/math --tokens 16384 "
        "--minutes {minutes} --only ttc-token-0 --only ttc-token-1 --only ttc-token-2", 5,
        ("{data}/math/gsm8k-train.jsonl", "{base}/config.json")),
    Job("in-context-large", "in-context control at the large size",
        "python -m experiments.in_context_control --size large --device cuda --out {out}/in-context-large", 5),
)  # fmt: skip


@app.command("list")
def show(out: Annotated[Path | None, typer.Option(help="Folder of the runs, to see what is done.")] = None) -> None:
    """Show the jobs in their order."""
    found = _state(out) if out else {}
    for job in JOBS:
        typer.echo(f"{job.name:22} {found.get(job.name, {}).get('outcome', 'waits'):8} {job.issue}")


@app.command()
def run(
    out: Annotated[Path, typer.Option(help="Folder for the runs.")],
    data: Annotated[Path, typer.Option(help="Folder of boards and problems.")] = Path("data"),
    base: Annotated[Path, typer.Option(help="Folder of the base model.")] = Path("base"),
    minutes: Annotated[float, typer.Option(min=0, help="Time for all jobs together.")] = 9,
    only: Annotated[list[str] | None, typer.Option(help="Jobs by name; all if not given.")] = None,
    pack: Annotated[Path | None, typer.Option(help="Folder for OUT in parts of 15 MiB, at the end.")] = None,
) -> None:
    """Run the jobs that are not done, one after the other, as long as there is time."""
    with errors_as_sentences():
        if unknown := set(only or ()) - {job.name for job in JOBS}:
            rule, remedy = f"must name a job: {', '.join(job.name for job in JOBS)}", "See `list`."
            fail("only", rule, ", ".join(sorted(unknown)), remedy, "unknown-name")
        out.mkdir(parents=True, exist_ok=True)
        work(JOBS, {"out": out, "data": data, "base": base}, minutes, only)
        if pack:
            packed(out, pack)


def work(jobs: tuple[Job, ...], folders: dict[str, Path], minutes: float, only: list[str] | None = None) -> None:
    """Take the jobs in their order until the minutes are over."""
    end, out = time.monotonic() + 60 * minutes, folders["out"]
    for job in jobs:
        state, left = _state(out), (end - time.monotonic()) / 60
        if (only and job.name not in only) or state.get(job.name, {}).get("outcome") == ENDED:
            continue
        words = {name: str(folder) for name, folder in folders.items()}
        missing = [path for need in job.needs if not Path(path := need.format(**words)).exists()]
        if missing or left < job.least:
            why = f"needs {', '.join(missing)}" if missing else f"needs {job.least:g} minutes, {left:.1f} are left"
            typer.echo(f"{job.name:22} waits: {why}")
            continue
        command = job.command.format(minutes=f"{max(left - 0.5, 0.1):.1f}", **words).split()
        began, code = time.monotonic(), _execute(command, out / f"{job.name}.log", 60 * left)
        outcome = ENDED if code == 0 else STOPPED if code is None else f"failed, {code}"
        if outcome == ENDED and "Stopped for the time being" in (out / f"{job.name}.log").read_text():
            outcome = STOPPED
        took = round((time.monotonic() - began) / 60, 1) + state.get(job.name, {}).get("minutes", 0)
        write_json(out / STATE, state | {job.name: {"outcome": outcome, "minutes": took, "command": command}})
        typer.echo(f"{job.name:22} {outcome}, {took:.1f} minutes: {out / job.name}.log")


def _execute(command: list[str], log: Path, seconds: float) -> int | None:
    """Run a command. Returns its exit code; None if the time ended it."""
    python = {"python": [sys.executable], "ttcnet": [sys.executable, "-m", "ttcnet.cli"]}
    command = [*python[command[0]], *command[1:]]
    with log.open("a") as file:
        running = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            return running.wait(seconds)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGTERM)
        try:
            running.wait(GRACE)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
    return None


def packed(out: Path, folder: Path) -> None:
    """Everything in `out` but checkpoints of finished runs, as parts in `folder`, small enough to come back."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / "whole.tar.gz"
    with tarfile.open(whole, "w:gz") as archive:
        for path in sorted(out.rglob("*")):
            needless = path.name.startswith("checkpoint") and (path.parent / "metrics.json").exists()
            if path.is_file() and not needless:
                archive.add(path, path.relative_to(out))
    with whole.open("rb") as source:
        parts = 0
        while chunk := source.read(PART_BYTES):
            (folder / f"{PART}-{parts:02}").write_bytes(chunk)
            parts += 1
    whole.unlink()
    if parts > MOST_PARTS:
        largest = sorted((path for path in out.rglob("*") if path.is_file()), key=lambda path: -path.stat().st_size)
        names = ", ".join(f"{path.relative_to(out)} ({path.stat().st_size >> 20} MiB)" for path in largest[:5])
        typer.echo(f"{parts} parts, more than the {MOST_PARTS} that come back. The largest files: {names}")


@app.command()
def unpack(
    packed: Annotated[Path, typer.Argument(help="Folder of the parts.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs.")],
) -> None:
    """Put the runs of an earlier machine in place."""
    with errors_as_sentences():
        parts = sorted(packed.glob(f"{PART}-*"))
        if not parts:
            fail("packed", f"must hold {PART}-00 and so on", packed, "Pass the folder of --pack.", "not-found")
        out.mkdir(parents=True, exist_ok=True)
        whole = out / "whole.tar.gz"
        with whole.open("wb") as file:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, file)
        with tarfile.open(whole) as archive:
            archive.extractall(out, filter="data")
        whole.unlink()


def _state(out: Path) -> dict[str, dict[str, Any]]:
    return dict(json.loads((out / STATE).read_text())) if (out / STATE).exists() else {}


if __name__ == "__main__":
    app()
