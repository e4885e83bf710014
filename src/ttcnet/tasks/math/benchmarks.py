"""Benchmarks of the paper, with the settings that it evaluates them in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ttcnet.errors import fail
from ttcnet.storage.reading import rows

from ..rows import examples_of
from ..task import Example, Task, Verdict
from .grade import PACKAGES, same, verdict
from .prompts import COT, NO_COT


@dataclass
class Benchmark(Task):
    """Mathematical problems, from the Hub or from a file.

    Args:
        source: a file, or owner/name of the Hub.
        config: of a dataset of the Hub.
        files: its names in a folder of data.
    """

    name: str
    source: str
    config: str | None = None
    split: str = "test"
    files: tuple[str, ...] = ()
    horizon: int = 8
    samples: int = 1
    temperature: float = 0.0
    max_tokens: int = 4096
    system: str = COT
    system_no_cot: str = NO_COT
    packages: tuple[str, ...] = PACKAGES

    def located(self, data: Path | None) -> Benchmark:
        """The benchmark with its problems in a folder of data, if one is given."""
        if data is None:
            return self
        for file in self.files:
            if (data / file).is_file():
                return replace(self, source=str(data / file), config=None)
        remedy = "Put it there, or leave out the folder to take it from the Hub."
        fail("data", f"must hold {' or '.join(self.files)}", str(data), remedy, "not-found")

    def examples(self) -> list[Example]:
        options = {} if self.config is None else {"name": self.config}
        remedy = f"Check the network; or pass --data FOLDER with {' or '.join(self.files)} in it."
        return examples_of(rows(self.source, self.split, remedy, **options), self.source)

    def grade(self, example: Example, text: str) -> Verdict:
        return verdict(example.answer, text)

    def same(self, one: str, other: str) -> bool:
        return same(one, other)


_CONTEST = Benchmark("", "", horizon=16, samples=8, temperature=0.6)
BENCHMARKS = {
    each.name: each
    for each in (
        Benchmark("math500", "HuggingFaceH4/MATH-500", files=("math500.jsonl",)),
        replace(
            _CONTEST, name="amc", source="AI-MO/aimo-validation-amc", split="train", files=("amc83.jsonl", "amc.jsonl")
        ),
        replace(_CONTEST, name="aime24", source="HuggingFaceH4/aime_2024", split="train", files=("aime24.jsonl",)),
        replace(_CONTEST, name="aime25", source="math-ai/aime25", files=("aime25.jsonl",)),
        Benchmark("gsm8k", "openai/gsm8k", "main", files=("gsm8k-test.jsonl", "gsm8k.jsonl"), max_tokens=1024),
    )
}
