"""Modules whose optional package is not installed have no examples to try."""

from importlib.util import find_spec

collect_ignore = [
    f"ttcnet/evaluate/{name}.py" for name in ("harness", "journal", "lm_model") if not find_spec("lm_eval")
]
