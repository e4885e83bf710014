"""The folder of a run: settings.json holds the settings, flat, and under "provenance" the command, commit, versions and
machine. A run that is resumed must have the settings that it was started with."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from .environment import provenance
from .errors import fail
from .storage.reading import check_fields, read_json
from .storage.writing import write_json

SETTINGS, PROVENANCE = "settings.json", "provenance"
OLDER_SETTINGS = "config.json"  # in results that were published before
REMEDY = "Restore it, or choose another folder."
Settings = dict[str, Any]


class RunFolder:
    """Settings and provenance of a run, in its folder.

    Args:
        folder: of the run.
        settings: fit for JSON.
        what: the kind of run, for messages.
        may_grow: settings that may be greater when the run is resumed, such as steps.
        defaults: values of settings that older folders lack.
        free: settings that may change, and are not compared.
        program: the command that settings.json names.
        packages: further packages whose versions settings.json names.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        *,
        what: str = "run",
        may_grow: Sequence[str] = (),
        defaults: Mapping[str, Any] | None = None,
        free: Sequence[str] = (),
        program: str = "ttcnet",
        packages: Sequence[str] = (),
    ) -> None:
        self.folder, self.settings = folder, _plain(settings)
        self._rules: dict[str, Any] = dict(may_grow=may_grow, defaults=_plain(defaults or {}), free=free)
        self._what, self._program, self._packages = what, program, packages

    def compare(self, then: Mapping[str, Any]) -> Settings:
        """Fail if these settings differ from those of the run. Returns those that have grown, with earlier values."""
        return check_settings(self.folder, then, self.settings, self._what, **self._rules)

    def provenance(self) -> dict[str, Any]:
        """Command, commit, versions and machine of this process."""
        return provenance(*self._packages, program=self._program)

    def write_settings(self, others: Mapping[str, Any] | None = None) -> None:
        """Write settings.json with the provenance of this process, and other facts."""
        self._write(self.provenance() | dict(others or {}))

    def add_facts(self, facts: Mapping[str, Any]) -> None:
        """Add facts to the provenance in settings.json."""
        self._write(self.noted() | dict(facts))

    def noted(self) -> dict[str, Any]:
        """The provenance in settings.json; empty if there is none."""
        file = self.folder / SETTINGS
        found = read_json(file, REMEDY).get(PROVENANCE, {}) if file.exists() else {}
        check_fields(f"{file}: {PROVENANCE}", found, REMEDY)
        return found

    def _write(self, facts: Mapping[str, Any]) -> None:
        write_json(self.folder / SETTINGS, self.settings | {PROVENANCE: facts})


def settings_of(folder: Path, **fields: type) -> Settings:
    """The settings of the run in a folder, with at least these fields; empty if there are none."""
    for name in (SETTINGS, OLDER_SETTINGS):
        if (folder / name).exists():
            found = read_json(folder / name, REMEDY, **fields)
            found.pop(PROVENANCE, None)
            return found
    return {}


def check_settings(
    place: Path,
    then: Mapping[str, Any],
    now: Mapping[str, Any],
    what: str = "run",
    *,
    may_grow: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    free: Sequence[str] = (),
    only: Collection[str] | None = None,
    field: str = "settings",
    remedy: str = "Give the settings that it was started with, or choose another folder.",
) -> Settings:
    """Fail if the run at a place is resumed with other settings than it was started with. Returns those that have
    grown, with their earlier values. `only` names the settings to compare; other arguments are those of `RunFolder`."""
    then, grown = {**(defaults or {}), **then}, Settings()
    for name in may_grow:
        both = (then.get(name), now.get(name))
        if both[0] != both[1] and all(isinstance(number, int | float) for number in both):
            grown[name] = both[0]
    names = [name for name in then | dict(now) if name not in (*free, *grown) and (only is None or name in only)]
    if changed := {name: (then.get(name), now.get(name)) for name in names if then.get(name) != now.get(name)}:
        rule = f"must be those of the {what} in {place}"
        fail(field, rule, f"(then, now): {changed}", remedy, code="settings-changed")
    for name, before in grown.items():
        if now[name] < before:
            rule = f"must be those of the {what} in {place}, {before}, or more"
            fail(name, rule, now[name], "A run cannot be shortened.", code="settings-changed")
    return grown


def _plain(settings: Mapping[str, Any]) -> Settings:
    """The values as JSON gives them back."""
    plain: Settings = json.loads(json.dumps(dict(settings)))
    return plain
