"""Mathematics: benchmarks, prompts and grading."""

from .grade import Graders, Verdict, grade, verdict

__all__ = ["Graders", "Verdict", "grade", "verdict"]
