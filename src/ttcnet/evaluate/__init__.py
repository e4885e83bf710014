"""Evaluation of language models: generation, grading, figures with intervals."""

from ttcnet.tasks.statistics import bootstrap, pass_at_k, wilson

__all__ = ["bootstrap", "pass_at_k", "wilson"]
