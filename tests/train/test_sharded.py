"""More than one process: FSDP2 trains what one process trains, and what two saved, one loads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import ttcnet.adapter as adapter
from tests.train.sharded_run import build, steps
from tests.train.tiny import model
from ttcnet import files
from ttcnet.train.state import gather, scatter

ROOT = Path(__file__).parents[2]


def two_processes(folder, train):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [*launch, "-m", "tests.train.sharded_run", str(folder), train]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]


def inserted(net):
    return {name: parameter.detach() for name, parameter in adapter.parameters(net).items()}


def worst(found, expected):
    assert found.keys() == expected.keys()
    return max((found[name] - expected[name]).abs().max().item() for name in expected)


@pytest.mark.parametrize("train", ["inserted", pytest.param("all", marks=pytest.mark.slow)])
def test_two_processes_train_and_save_as_one(train, tmp_path):
    two_processes(tmp_path, train)
    alone, optimizer = build(train, shard=False)
    fresh = inserted(alone)
    fresh = {name: value.clone() for name, value in fresh.items()}
    steps(alone, optimizer, 0, 20)
    assert worst(inserted(alone), fresh) > 1e-2  # it moved
    base = model() if train == "inserted" else AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    if train == "inserted":
        loaded = adapter.load(base, tmp_path / "adapter")
        assert worst(inserted(loaded), inserted(alone)) < 1e-5
    else:
        found, expected = dict(base.named_parameters()), dict(alone.named_parameters())
        assert worst(found, expected) < 1e-5

    # what two processes saved, one goes on from
    again, memory = build(train, shard=False)
    tensors, facts = files.load(tmp_path / "state.safetensors")
    scatter(again, memory, tensors, facts, "the checkpoint")
    steps(again, memory, 20, 25)
    later, _ = files.load(tmp_path / "later" / "ttc_adapter.safetensors")
    assert worst(inserted(again), later) < 1e-5


def test_a_checkpoint_of_other_weights_is_refused():
    net, optimizer = build("inserted", shard=False)
    steps(net, optimizer, 0, 1)
    tensors, facts = gather(net, optimizer)
    other, memory = build("all", shard=False)
    with pytest.raises(
        ValueError, match=r"here must hold the weights that are trained; got missing \['lm_head.weight'"
    ):
        scatter(other, memory, tensors, facts, "here")
    again, memory = build("inserted", shard=False)
    scatter(again, memory, tensors, facts, "here")
    for name, value in inserted(net).items():
        assert torch.equal(value, inserted(again)[name])
