"""A run: every example of a task put to an engine, every answer graded and stored, figures at the end."""
