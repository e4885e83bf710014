"""Mathematics: benchmarks, prompts and grading."""

from ..task import Verdict
from .benchmarks import BENCHMARKS, Benchmark
from .grade import Graders, grade, same, verdict

__all__ = ["BENCHMARKS", "Benchmark", "Graders", "Verdict", "grade", "same", "verdict"]
