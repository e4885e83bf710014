"""Mathematics: benchmarks, prompts and grading."""

from .benchmarks import BENCHMARKS, Benchmark, Problem, benchmark, problems
from .grade import Graders, Verdict, grade, verdict
from .prompts import conversation, system_prompt

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "Graders",
    "Problem",
    "Verdict",
    "benchmark",
    "conversation",
    "grade",
    "problems",
    "system_prompt",
    "verdict",
]
