"""Malformed command lines and files: every case must end with a sentence, soon, and never with a traceback."""
