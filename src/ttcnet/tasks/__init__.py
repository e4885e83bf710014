"""Tasks: questions for models, and grades for their answers.

    task = find("gsm8k")                      # or "countdown", "sudoku", a JSON Lines file, a Python file
    examples = task.examples()
    task.prompt(examples[0])                  # the text that a model is asked
    task.grade(examples[0], "...").right      # whether an answer is right

Every task implements the protocol `Task`. The page "Add a task" of the documentation shows how to write one.
"""

from .registry import NAMES, find
from .task import Example, Task, Verdict

__all__ = ["NAMES", "Example", "Task", "Verdict", "find"]
