"""What a run writes down for people, in files that are written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Any) -> None:
    _replace(path, json.dumps(content, indent=2) + "\n")


def cut_log(log: Path, step: int) -> None:
    """Drop the lines that a killed run wrote after its last checkpoint, at `step`."""
    if log.exists():
        lines = [line for line in log.read_text().splitlines() if json.loads(line)["step"] <= step]
        _replace(log, "".join(f"{line}\n" for line in lines))


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_name(f"{path.name}.tmp")
    unfinished.write_text(text)
    os.replace(unfinished, path)
