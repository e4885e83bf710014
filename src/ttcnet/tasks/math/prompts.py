"""Prompts: with explicit chain of thought, and without."""

from __future__ import annotations

COT = r"Please reason step by step, and put your final answer within \boxed{}."
# the paper's words
NO_COT = r"""Solve math problems silently. Do not disclose chain-of-thought, scratch work, intermediate reasoning, or hidden deliberation.

Return only the final answer in this exact format:

\[
\boxed{...}
\]"""  # noqa: E501
