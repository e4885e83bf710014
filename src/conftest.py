"""Modules whose optional package is not installed have no examples to try."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("lm_eval") else ["ttcnet/evaluate/lm_eval"]
