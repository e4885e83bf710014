"""Tasks: data, puzzles, prompts and grading. A task is a package of its own; this module imports none of them."""
