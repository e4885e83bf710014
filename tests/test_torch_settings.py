"""What is changed for a whole process is said, and put back where it can be."""

import pytest
import torch

from ttcnet.torch_settings import avoid_cudnn, compiling_up_to


@pytest.fixture
def attention(monkeypatch):
    """Torch on a machine with a GPU, as far as attention goes."""
    state = {"cudnn": True}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cuda, "cudnn_sdp_enabled", lambda: state["cudnn"])
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", lambda value: state.update(cudnn=value))
    return state


def test_attention_by_cudnn_is_switched_off_aloud_and_once(attention, capsys):
    avoid_cudnn()
    assert attention == {"cudnn": False}
    assert "cuDNN is off" in capsys.readouterr().err
    avoid_cudnn()
    assert capsys.readouterr().err == ""


def test_without_a_gpu_nothing_is_changed(attention, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    avoid_cudnn()
    assert attention == {"cudnn": True}
    assert capsys.readouterr().err == ""


def test_the_limit_of_recompiling_is_said_and_put_back(capsys):
    before = torch._dynamo.config.recompile_limit
    with compiling_up_to(before + 5):
        assert torch._dynamo.config.recompile_limit == before + 5
    assert torch._dynamo.config.recompile_limit == before
    assert f"{before + 5} times" in capsys.readouterr().err
    with compiling_up_to(1):
        assert torch._dynamo.config.recompile_limit == before
    assert capsys.readouterr().err == ""
