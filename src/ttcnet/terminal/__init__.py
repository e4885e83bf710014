"""Output of commands: lines, tables and progress bars."""
