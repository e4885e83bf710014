"""The tests that need a CUDA device, several processes at once: `python -m tests.gpu [--minutes 9] [--out FOLDER]`.

Most of their time is the compiler's, which takes one core, and float64 on the way to the truth. What tells most comes
first; what is not done in time is stopped and named.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import torch

from ttcnet.testing.tolerance import SHAPES

DIGITS = "tests/lqr/test_digits.py::test_the_kernels_are_as_good_as_their_inputs_on_a_gpu"
# the largest first, for they take longest
JOBS = [f"{DIGITS}[{n}-{m}]" for n, m in sorted(SHAPES, reverse=True)] + [
    "tests/lqr/kernels/test_fused_cuda.py", "tests/lqr/test_plan_gpu.py", "tests/lqr/test_dense_gpu.py",
    "tests/lqr/kernels/test_symplectic_cuda.py", "tests/nn", "tests/evaluate", "tests/train/test_sudoku.py",
    "tests/bench", "tests/experiments",
]  # fmt: skip
OUTCOME = re.compile(r"\d+ (?:passed|failed|errors?|skipped|deselected)\b.* in [\d.]+s")


def command(job: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "--durations=5", job]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9, help="tests that are not done by then are stopped")
    parser.add_argument("--out", type=Path, default=Path("gpu-tests"), help="folder for the output of each process")
    parser.add_argument("--at-once", type=int, default=max(1, (os.cpu_count() or 1) - 1), help="processes")
    parser.add_argument("--only", default="", help="only tests with this in their names")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no CUDA device here: torch.cuda.is_available() is False.")
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    end, waiting, running = time.monotonic() + 60 * options.minutes, [x for x in JOBS if options.only in x], {}
    outcomes = dict.fromkeys(waiting, "not begun")
    while (waiting or running) and time.monotonic() < end:
        while waiting and len(running) < options.at_once:
            job = waiting.pop(0)
            file = (options.out / (re.sub(r"\W+", "-", job.rpartition("/")[2]).strip("-") + ".txt")).open("w+")
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            running[job] = subprocess.Popen(command(job), stdout=file, stderr=subprocess.STDOUT, env=environment), file
        for job, (process, file) in list(running.items()):
            if process.poll() is not None:
                outcomes[job] = told(process.returncode, file)
                print(f"{job}: {outcomes[job]}", flush=True)
                del running[job]
        time.sleep(0.2)
    for job, (process, file) in running.items():
        process.kill()
        process.wait()
        outcomes[job] = "stopped: " + told(None, file)
    for job, outcome in outcomes.items():
        print(f"{outcome:60} {job}")
    return int(not all(re.match(r"\d+ passed", outcome) for outcome in outcomes.values()))


def told(code: int | None, file) -> str:
    """The last line of pytest; of one that was stopped, its letters for tests."""
    file.seek(0)
    text = file.read()
    file.close()
    found = OUTCOME.findall(text)
    if code in (0, 1) and found:
        return found[-1]
    return text.strip().splitlines()[-1][-50:] if text.strip() else f"ended with {code} and said nothing"


if __name__ == "__main__":
    sys.exit(main())
