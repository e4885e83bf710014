"""Lines of the log in TensorBoard: the same from every kind of run."""

import pytest

from tests.raising import raises
from tests.train.engines import ENGINES, log_of
from ttcnet.train import trackers


def scalars(folder):
    """{name: {step: value}} of what TensorBoard was told."""
    pytest.importorskip("tensorboard", reason="needs the extra train")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {name: {each.step: each.value for each in events.Scalars(name)} for name in events.Tags()["scalars"]}


@pytest.mark.parametrize("name", ["sudoku", "fine-tuning", "reinforcement"])
def test_lines_of_the_log_are_sent(name, tmp_path):
    for _ in range(2):  # the second time, nothing is left to train
        ENGINES[name].go(tmp_path / "run", report_to="tensorboard")
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1
    sent = scalars(tmp_path / "run")
    lines = [line for line in log_of(tmp_path / "run") if line["step"]]
    assert len(lines) > 2
    for line in lines:
        step = line.pop("step")
        assert {key: sent[key][step] for key in line} == pytest.approx(line)


def test_a_tracker_that_is_not_known():
    with raises("unknown-name", "report_to", "'nothing'"):
        trackers.check_tracker("nothing")


def test_a_missing_tensorboard_gives_a_message(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert trackers.tensorboard_if_there() == "none"
    assert "Without TensorBoard" in capsys.readouterr().err
