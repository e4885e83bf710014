"""Runs cases one after the other in this process, from number FIRST on, and says how each ended: a line of JSON before
each and one after it. Whoever started this process ends it where it stalls, and starts another for the rest.

    python -m tests.fuzz WORLD FIRST [STEP]
"""

import json
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

from .world import placed

MEMORY = 16 << 30


def main(world: Path, first: int, step: int = 1) -> None:
    os.environ.update(HF_HUB_OFFLINE="1", COLUMNS="200", RANK="0", WORLD_SIZE="1")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))  # what asks for more is told so
    warnings.simplefilter("ignore")
    out, sys.stdout = sys.stdout, sys.stderr
    from typer.testing import CliRunner

    from ttcnet.cli import app

    from .cases import cases

    for number, case in list(enumerate(cases(world)))[first::step]:
        words = [word[:80] for word in case.words]
        print(json.dumps({"number": number, "case": case.name, "words": words}), file=out, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            words, harm = prepare(case, world, Path(folder))
            os.chdir(folder)
            begin = time.monotonic()
            result = CliRunner().invoke(app, words, input="y\n" * 9)
            os.chdir("/")
        trace = "".join(traceback.format_exception(result.exception)) if result.exception else ""
        news = {
            "number": number,
            "seconds": time.monotonic() - begin,
            "code": result.exit_code,
            "said": result.output[-2000:],
            "trace": "" if isinstance(result.exception, SystemExit) else trace,
            "harm": str(harm),
            "may_pass": case.may_pass,
        }
        print(json.dumps(news), file=out, flush=True)


def prepare(case, world, folder):
    """The command line, in a folder with copies of all that it reads, one of them damaged."""
    shutil.copytree(world, folder, dirs_exist_ok=True)
    return placed(case.words), case.harm(folder / case.target) if case.harm else None


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *map(int, sys.argv[3:]))
