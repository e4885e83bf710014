"""settings.json in the folder of a run: what the run is, and whether a command may resume it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ttcnet.errors import fail
from ttcnet.insertable import CONTEXTS
from ttcnet.reading import read_json

from .fine_tuner import checkpoints
from .settings import FineTuning

CONTENTS = "settings.json"
RESULTS = {"all": "model", "inserted": "adapter", "lora": "adapter"}


def begun(out: Path) -> bool:
    """Whether something was learned there."""
    return bool(checkpoints(out)) or any((out / result).exists() for result in RESULTS.values())


def checked(config: FineTuning, out: Path, tell: Callable[[str], None]) -> dict[str, Any] | None:
    """What settings.json is to say from now on, None if it says so already. A folder holds one run: once something was
    learned there, other settings are refused, but for a greater length; `tell` is told of one."""
    kept, now = out / CONTENTS, _named(config.to_dict(), CONTEXTS[0])
    if not (kept.exists() and begun(out)):
        return {"settings": now}
    content = read_json(kept, "Restore it, or choose another folder.", settings=dict)
    # saved before there was a choice of context: as it was then
    before, extended = _named(content["settings"], "head"), list(content.get("extended", []))
    changed = {name: (before.get(name), now[name]) for name in now if before.get(name) != now[name]}
    changed.pop("out", None)  # a folder may be moved
    unit = "epochs" if before.get("steps") is None else "steps"
    if unit == "steps":
        changed.pop("epochs", None)  # which do not count
    length = changed.pop(unit, None) if now[unit] is not None else None
    if changed:
        remedy = "Give the settings that it was started with, or choose another folder."
        fail("settings", f"must be those of the run in {out}", f"(then, now): {changed}", remedy)
    if length is None:
        return None
    if length[1] < length[0]:
        remedy = "A run can be made longer, not shorter."
        fail(unit, f"must be those of the run in {out}, {length[0]}, or more", length[1], remedy)
    tell(
        f"The run in {out} was to end after {length[0]:,} {unit}, and is extended to {length[1]:,}. From its last "
        "checkpoint on, the learning rate is that of a run of this length."
    )
    return {"settings": now, "extended": [*extended, {unit: length[0]}]}


def _named(settings: Any, context: str) -> Any:
    """Settings that name the context of inserted layers, which is `context` if they do not."""
    adapter = settings.get("adapter")
    return settings if adapter is None else settings | {"adapter": {"context": context} | adapter}
