"""Settings then and now: which may differ, and what settings.json says beside them."""

import json

from tests.raising import raises
from ttcnet.run_folder import RunFolder, check_settings, settings_of


def test_equal_settings_are_accepted_and_others_named(tmp_path):
    assert check_settings(tmp_path, {"lr": 1.0, "batch": 2}, {"batch": 2, "lr": 1.0}) == {}
    for then in ({"lr": 2.0, "batch": 2}, {"batch": 2}, {"lr": 1.0, "batch": 2, "seed": 0}):
        with raises("settings-changed", "settings", r"'(lr|seed)': \((2.0|None|0), (1.0|None)\)"):
            check_settings(tmp_path, then, {"lr": 1.0, "batch": 2})


def test_only_some_are_compared(tmp_path):
    assert check_settings(tmp_path, {"lr": 1, "day": 1}, {"lr": 1, "day": 2}, free=["day"]) == {}
    assert check_settings(tmp_path, {"lr": 1, "day": 1}, {"lr": 1, "day": 2}, only=["lr"]) == {}
    with raises("settings-changed", "machine", "'lr'"):
        check_settings(tmp_path, {"lr": 1}, {"lr": 2}, only=["lr"], field="machine")


def test_a_run_can_grow_but_not_shrink(tmp_path):
    assert check_settings(tmp_path, {"steps": 5}, {"steps": 7}, may_grow=["steps"]) == {"steps": 5}
    with raises("settings-changed", "steps", "3"):
        check_settings(tmp_path, {"steps": 5}, {"steps": 3}, may_grow=["steps"])
    with raises("settings-changed", "settings", "steps"):
        check_settings(tmp_path, {"steps": None}, {"steps": 3}, may_grow=["steps"])


def test_older_folders_lack_a_setting(tmp_path):
    assert check_settings(tmp_path, {}, {"loops": 1}, defaults={"loops": 1}) == {}
    with raises("settings-changed", "settings", "loops"):
        check_settings(tmp_path, {}, {"loops": 2}, defaults={"loops": 1})


def test_the_file_has_settings_and_provenance(tmp_path):
    folder = RunFolder(tmp_path, {"horizons": (1, 2)}, program="python -m experiments.x", packages=["typer"])
    assert settings_of(tmp_path) == folder.noted() == {}
    folder.write_settings({"extended": [3]})
    folder.add_facts({"rows": 7})
    record = json.loads((tmp_path / "settings.json").read_text())
    assert record["horizons"] == [1, 2]
    assert record["provenance"]["command"].startswith("python -m experiments.x")
    assert "typer" in record["provenance"]["versions"]
    assert (record["provenance"]["extended"], record["provenance"]["rows"]) == ([3], 7)
    assert folder.compare(settings_of(tmp_path)) == {}
    (tmp_path / "settings.json").rename(tmp_path / "config.json")  # as it was called before
    assert settings_of(tmp_path) == {"horizons": [1, 2]}


def test_a_damaged_file_is_an_error(tmp_path):
    (tmp_path / "settings.json").write_text('{"provenance": 3}')
    with raises("damaged", f"{tmp_path / 'settings.json'}: provenance"):
        RunFolder(tmp_path, {}).noted()
    (tmp_path / "settings.json").write_text("{")
    with raises("damaged", str(tmp_path / "settings.json")):
        settings_of(tmp_path)
