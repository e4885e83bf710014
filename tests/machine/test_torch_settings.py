"""A change for a whole process prints a message, and is undone if possible."""

import pytest
import torch

from ttcnet import command_options
from ttcnet.machine.torch_settings import (
    a_program_each,
    avoid_cudnn,
    compiling_up_to,
    float32_products,
    made_in,
    one_thread,
)

enabled = torch.backends.cuda.cudnn_sdp_enabled


@pytest.fixture(autouse=True)
def attention():
    """Restore the setting that torch starts with, before each test and after it."""
    before = enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


def test_attention_by_cudnn_is_switched_off_aloud_and_once(monkeypatch, capsys):
    monkeypatch.setattr(command_options, "gpus", lambda: 1)
    avoid_cudnn()
    assert not enabled()
    assert "cuDNN is off" in capsys.readouterr().err
    avoid_cudnn()
    assert capsys.readouterr().err == ""


def test_without_a_gpu_nothing_is_changed(monkeypatch, capsys):
    monkeypatch.setattr(command_options, "gpus", lambda: 0)
    avoid_cudnn()
    assert enabled()
    assert capsys.readouterr().err == ""


def test_the_limit_of_recompiling_is_printed_and_restored(capsys):
    before = torch._dynamo.config.recompile_limit
    with compiling_up_to(before + 5):
        assert torch._dynamo.config.recompile_limit == before + 5
    assert torch._dynamo.config.recompile_limit == before
    assert f"{before + 5} times" in capsys.readouterr().err
    with compiling_up_to(1):
        assert torch._dynamo.config.recompile_limit == before
    assert capsys.readouterr().err == ""


def test_changes_for_a_block_end_with_it():
    def now():
        dynamo = torch._dynamo.config
        precision = torch.get_float32_matmul_precision()
        return torch.get_num_threads(), torch.get_default_dtype(), precision, dynamo.recompile_limit

    before = now()
    torch.set_float32_matmul_precision("medium")
    try:
        with one_thread(), made_in(torch.float64), float32_products(), a_program_each(64):
            assert now() == (1, torch.float64, "highest", 64)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before[2])
    assert now() == before
