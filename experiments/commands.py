"""Recorded commands with today's names.

A result file records the command that made it, word for word. Modules and folders have moved since: recipes.NAME is
experiments.NAME, and results/NAME is experiments/NAME/results. docs/reproduce.md has the list.
"""

from __future__ import annotations

import re

NAMES = ("sudoku", "math-small", "lqr-in-a-token", "where-planning-pays")  # names of folders under results/


def current(command: str) -> str:
    """A recorded command with today's names."""
    command = re.sub(r"\bpython -m recipes\.", "python -m experiments.", command)
    for name in NAMES:
        command = re.sub(rf"(?<![\w/])results/{name}\b", f"experiments/{name.replace('-', '_')}/results", command)
    return command
