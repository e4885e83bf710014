"""One answer against the gold one, by math-verify. `grade` runs this module as a process of its own, one JSON object a
line in and out, because symbolic mathematics may never end, in places that no exception reaches: the operating system
then ends the process."""

from __future__ import annotations

import json
import logging
import re
import sys
import warnings
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from ttcnet.errors import TTCNetError, fail
from ttcnet.extras import require

from .stated import BOX, HASHES, stated

ANTLR = "4.13.2"  # 4.11 and 4.9 read 75% differently
INTEGER = re.compile(r"-?\d{1,100}", re.ASCII)
PERCENT = re.compile(r"^(-?\d+\.\d+)\s*\\?%$", re.ASCII)
MEMORY = 4 << 30


def compare(gold: str, text: str) -> tuple[bool, str | None]:
    """Whether the text gives the gold answer, and the answer that was read from it; None if none could be."""
    place = stated(text)
    if not place.strip():
        return False, None
    content = place.removeprefix("\\boxed{").removesuffix("}") if place.startswith("\\boxed{") else place
    content, gold = content.strip(), gold.strip()
    if content == gold or (INTEGER.fullmatch(content) and INTEGER.fullmatch(gold)):  # most answers; nothing to parse
        return content == gold or int(content) == int(gold), content
    read = _parse(place)
    right = bool(read) and _math_verify().verify(_gold(gold), read, timeout_seconds=None)
    bare, other = PERCENT.sub(r"\1", content), PERCENT.sub(r"\1", gold)
    if read and not right and (bare, other) != (content, gold):  # it takes 20 for 20 %, and not 12.5 for 12.5 %
        right = _math_verify().verify(_gold(other), _parse(f"\\boxed{{{bare}}}"), timeout_seconds=None)
    parsed = [each for each in read if not isinstance(each, str)]
    written = next((each for each in read if isinstance(each, str)), None)
    return right, (written or str(parsed[0])) if parsed or right else None


@lru_cache(maxsize=10_000)
def _gold(gold: str) -> Any:
    marked = BOX.search(gold) or HASHES.search(gold)
    return _parse(stated(gold if marked else f"\\boxed{{{gold}}}"))


def _parse(text: str) -> list[Any]:
    return list(_math_verify().parse(text, parsing_timeout=None))


@lru_cache
def _math_verify() -> Any:
    module = require("math_verify", "eval", "Grading answers")
    if version("antlr4-python3-runtime") != ANTLR:
        remedy = f"Run: pip install antlr4-python3-runtime=={ANTLR}"
        fail("antlr4-python3-runtime", f"must be {ANTLR}", version("antlr4-python3-runtime"), remedy, "package")
    return module


def main() -> None:
    """Answer lines of {"gold", "text", "seconds"} until there are no more. An answer that takes more seconds of
    processor time than that ends the process."""
    import resource
    import signal

    with suppress(ValueError, OSError):  # not every system has it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    try:
        _math_verify()
        warnings.simplefilter("ignore")  # behind the import of sympy, which has filters of its own
        _say({"ready": True})
    except TTCNetError as error:
        _say({"error": (error.field, error.rule, str(error.value), error.remedy)})
        return
    except ImportError as error:
        remedy = "Install it anew with: pip install --force-reinstall 'ttcnet[eval]'"
        _say({"error": ("Grading answers", "needs math_verify as it is released", str(error), remedy)})
        return
    for line in sys.stdin:
        task = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, task["seconds"])
        try:
            right, answer = compare(task["gold"], task["text"])
        except Exception as error:
            _say({"right": False, "answer": None, "note": f"{type(error).__name__}: {error}"})
        else:
            _say({"right": right, "answer": answer, "note": ""})
        signal.setitimer(signal.ITIMER_PROF, 0)


def _say(content: dict[str, Any]) -> None:
    print(json.dumps(content), flush=True)


if __name__ == "__main__":
    main()
