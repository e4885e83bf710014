"""Options that several commands have."""

from tests.raising import raises
from ttcnet import command_options as options
from ttcnet.command_options import numbers, usable


def test_devices(monkeypatch):
    assert usable("cpu") == "cpu"
    for count, best in ((0, "cpu"), (2, "cuda")):
        monkeypatch.setattr(options, "gpus", lambda count=count: count)
        assert usable("auto") == usable(None) == best
    assert [usable(name) for name in ("cuda", "cuda:1")] == ["cuda", "cuda:1"]
    for name in ("cuda:2", "cuda:x", "cuda:-1", "cpu:1", "abacus", ""):
        with raises("device", "device", f"'{name}'"):
            usable(name)


def test_numbers():
    assert numbers("horizon", None) == numbers("horizon", []) == ()
    assert numbers("horizon", ["4, 0,8", "4"]) == (4, 0, 8)
    for texts in (["-1"], ["1,"], [""], ["4", "x"], ["1.5"]):
        with raises("format", "horizon"):
            numbers("horizon", texts)
