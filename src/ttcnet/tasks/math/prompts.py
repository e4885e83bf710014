"""Prompts: with explicit chain of thought, and without."""

from __future__ import annotations

COT = r"Please reason step by step, and put your final answer within \boxed{}."
# the paper's words
NO_COT = r"""Solve math problems silently. Do not disclose chain-of-thought, scratch work, intermediate reasoning, or hidden deliberation.

Return only the final answer in this exact format:

\[
\boxed{...}
\]"""  # noqa: E501


def system_prompt(cot: bool) -> str:
    return COT if cot else NO_COT


def conversation(problem: str, system: str) -> list[dict[str, str]]:
    """The messages that put a problem. No system message where `system` is empty."""
    opening = [{"role": "system", "content": system}] if system else []
    return [*opening, {"role": "user", "content": problem}]
