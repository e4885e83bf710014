"""A few hundred cases, the same every time: a command line, and a damage to its input."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from . import damage
from .world import LINES, PUZZLE, placeholders

SEED = int(os.environ.get("FUZZ_SEED", "19"))  # another seed takes others of the same kinds
CASES = 900
# files that a model does not need, and one that a benchmark begins anew
SPARE = ("chat_template.jinja", "generation_config.json", "tokenizer_config.json", "lqr.csv")
KEPT = ("made", "again", "asked", "tuned", "trained")
UNREAD = ("adapter/config.json", "answers/summary.json")  # which others read
EACH = 6  # damaged fields of a file
ODD = [
    "", " ", "-1", "0", "1e999", "nan", "-inf", "x", damage.DIGITS, str(damage.HUGE), "1,2,", ",", "0x10", "٣", "1.5",
    "\x1b[31m", "a" * 5000, "None", "1;2", "--", "../..",
]  # fmt: skip
# options by the kind of their values; every one gets something odd
OPTIONS = {
    "sudoku train": "architecture steps batch lr final-lr weight-decay dropout augmentation ema horizon layers width "
    "heads ttc-heads seed save-every device data out loops loops-per-step interleave supervision context inserted-lr "
    "mlp-width minutes",
    "sudoku eval": "mode horizon loops by limit out device data",
    "sudoku solve": "model horizon loops device",
    "sudoku solve looped": "horizon loops device",
    "sudoku eval looped": "horizon loops by limit",
    "sudoku demo": "givens seed loops picture model device",
    "sudoku play": "model port device",
    "sudoku generate": "givens guesses seed out",
    "sudoku rate": "out",
    "sudoku probe": "train test step limit out device",
    "countdown make": "out count numbers largest operations limit split seed",
    "data": "out",
    "sft": "model data out insert every heads train horizon lr inserted-lr batch device-batch epochs steps max-length "
    "save-every report-to seed warm-up weight-decay lora-rank log-every keep split system variant",
    "sft variant": "variant out",
    "eval math": "out model adapter server data horizon samples temperature max-tokens limit batch patience seed "
    "device",
    "eval scaling": "method horizons horizon n temperature breadth depth cot max-tokens limit seed device adapter "
    "batch patience server",
    "eval likelihood": "model adapter horizon limit max-length out device split",
    "eval lm": "model out tasks adapter horizon shots limit max-tokens data batch device",
    "eval show": "only problem horizon",
    "analyse alignment": "model data out adapter horizon limit plot device",
    "bench lqr": "provider horizon problems shape sweep device regime seconds limit out",
    "bench lqr again": "horizon",
    "bench forms": "shape regime rounds out",
    "grpo": "model adapter task held-out out train batch samples max-tokens temperature beta horizon lr steps "
    "device-batch seed variant",
}
ALONE = [
    ["sudoku", "solve", ""], ["sudoku", "solve", "x" * 81], ["sudoku", "solve", "1" * 81],
    ["sudoku", "solve", "9" * 10**5],
    ["sudoku", "solve", PUZZLE, "--horizon", damage.DIGITS], ["env", "--json", "x"], ["env", "x"], ["nosuch"], ["eval"],
    ["eval", "nosuch"], ["sudoku", "solve", PUZZLE, "--nosuch"], ["bench", "nosuch"], ["bench", "tables", "x"],
    ["bench", "layer", "--width", damage.DIGITS], ["bench", "decode", "--shape", "x"],
    ["bench", "layer", "--device", "cuda"], ["bench", "layer", "--blocks", damage.DIGITS, "--device", "cpu"],
    ["bench", "layer", "--width", "16", "--heads", "3", "--device", "cpu"], ["bench", "layer", "--repeats", "0"],
    ["bench", "decode", "--new", "1"], ["bench", "decode", "--device", "x"], ["bench", "decode", "--out", "/"],
    ["eval", "show", "/dev/null"], ["eval", "show", "/"], ["data", "/dev/null"], ["sft", "/dev/null"], ["data", "/"],
    ["sudoku", "rate", "/dev/zero"], ["data", "/dev/zero"],
    ["sudoku", "eval", "--data", "/dev/urandom"], ["sudoku", "train", "--data", "/dev/zero", "--out", "new"],
    ["countdown", "make", "--out", "/dev/full", "--count", "3"], ["sudoku", "solve", PUZZLE, "--horizon", "65537"],
    ["countdown", "make", "--out", "new", "--count", "100000000000"], ["sudoku", "solve", PUZZLE, "--loops", "65537"],
    ["bench", "forms", "--shape", "1x1x1x1"],
    ["eval", "math", "/dev/null", "--model", "/", "--out", "/dev/null/x"], ["eval", "likelihood", "/", "--model", "/"],
    ["sudoku", "eval", "/dev/null", "--data", "/dev/null"], ["sudoku", "train", "--data", "/", "--out", "/dev/null"],
    ["countdown", "make", "--out", "/dev/null/x"], ["countdown", "make", "--out", "/"],
    ["countdown", "make", "--out", "new", "--count", str(damage.HUGE), "--limit", "2", "--largest", "2"],
    ["sft", "--model", "", "--data", "", "--out", ""], ["eval", "math", "", "--model", "", "--out", ""],
    ["eval", "math", "nosuch\udcff", "--model", "./nosuch\udcff", "--out", "new"],
    ["sudoku", "eval", "--data", "a" * 5000], ["data", "a" * 5000], ["eval", "show", "a" * 5000], ["sft", "a" * 5000],
    ["eval", "math", "a" * 5000, "--model", "./x", "--out", "new"], ["sft", "--model", "./" + "a" * 5000],
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A command line, in which {x} is what the world has under that name, and a damage to one of these. Where what is
    damaged may still be of use, the command may succeed."""

    name: str
    words: list[str]
    target: str = ""
    harm: Callable[[Path], object] | None = None
    may_pass: bool = False


def cases(world: Path) -> list[Case]:
    random = Random(SEED)
    alone = [Case(f"alone: {' '.join(words)[:60]!r}", words) for words in ALONE]
    found = _options(random)
    seen = set[tuple[str, str]]()
    for name, line in LINES.items():
        for root in placeholders(line):  # damage to all files of all that it reads
            for path in sorted((world / root).rglob("*")) if (world / root).is_dir() else [world / root]:
                if path.is_file() and not path.name.endswith((".md", ".tmp")):
                    target = str(path.relative_to(world))
                    found += _harmed(name, line, target, world, random, (root, path.suffix) in seen)
                    seen.add((root, path.suffix))
            if (world / root).is_dir():
                found.append(Case(f"{name}: {root} is a file", line.split(), root, damage.to_file))
    alone += _special(world)
    return [*alone, *random.sample(found, CASES - len(alone))]


def _special(world: Path) -> list[Case]:
    """What has no end in the place of a file that a group of commands reads, a pipe or /dev/zero by turns."""
    found, seen = list[Case](), set[tuple[str, str]]()
    for name, line in LINES.items():
        for root in placeholders(line):
            for path in sorted((world / root).rglob("*")) if (world / root).is_dir() else [world / root]:
                target = str(path.relative_to(world))
                if path.is_file() and (name.split()[0], target) not in seen:
                    seen.add((name.split()[0], target))
                    way, harm = (("is a pipe", damage.to_pipe), ("has no end", damage.to_zeros))[len(found) % 2]
                    useless = target.partition("/")[0] in KEPT or target in UNREAD
                    found.append(Case(f"{name}: {target}: {way}", line.split(), target, harm, useless))
    return found


def _options(random: Random) -> list[Case]:
    found = []
    for name, options in OPTIONS.items():
        for option in options.split():
            for value in random.sample(ODD, 3):
                words = [*LINES[name].split(), f"--{option}", value]
                found.append(Case(f"{name}: --{option} {value[:20]!r}", words, may_pass=True))
    return found


def _may_pass(file: Path, way: str) -> bool:
    """Whether what is left may still be of use: half of the lines, a template that is text of any kind, YAML in an
    encoding that it allows."""
    lines, yaml = file.suffix in (".jsonl", ".csv"), file.suffix == ".yaml"
    spared = way == "a piece of garbage" or file.suffix == ".jinja"
    return spared or (way == "half" and lines) or (way == "utf-16" and yaml)


def _harmed(name: str, line: str, target: str, world: Path, random: Random, again: bool) -> list[Case]:
    """Cases for one file; fewer where another command has had all of them."""
    words, file, found = line.split(), world / target, list[Case]()

    def add(way: str, harm: Callable[[Path], object], may_pass: bool = False) -> None:
        useless = target.partition("/")[0] in KEPT or target in UNREAD  # not all of a run is read when it resumes
        found.append(Case(f"{name}: {target}: {way}", words, target, harm, may_pass or useless))

    binary = file.suffix == ".safetensors"
    json_like = file.suffix in (".json", ".jsonl")
    for way in damage.BYTES:
        seed = random.random()
        add(way, lambda path, way=way, seed=seed: damage.bytes_of(path, way, Random(seed)), _may_pass(file, way))
    add("is gone", damage.gone, file.name in SPARE)
    add("is a folder", damage.to_folder)
    for way in damage.TEXTS if not binary else []:
        add(way, lambda path, way=way: damage.text_of(path, way), True)
    for way in damage.TENSORS if binary else []:
        seed = random.random()
        may_pass = way in (
            "extra",
            "whole numbers",
            "truth",
            "header without facts",
            "header of other facts",
            "complex",
        )
        add(way, lambda path, way=way, seed=seed: damage.tensors_of(path, way, Random(seed)), may_pass)
    for number in range(EACH) if json_like and file.read_text().strip() not in ("", "{}", "[]") else []:
        seed = random.random()
        add(f"odd field {number}", lambda path, seed=seed: damage.field_of(path, Random(seed)), True)
    for number in range(3 * EACH) if file.suffix == ".toml" else []:
        seed = random.random()
        add(f"odd line {number}", lambda path, seed=seed: damage.toml_of(path, Random(seed)), True)
    return random.sample(found, 3) if again else found
