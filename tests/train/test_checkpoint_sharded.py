"""More than one process: FSDP2 gives the weights of one process, and one process loads the checkpoint of two."""

from multiprocessing import get_context

import pytest
import torch
from transformers import AutoModelForCausalLM

import ttcnet.adapter as adapter
from tests.raising import raises
from tests.train.sharded_run import build, main, steps
from tests.train.tiny import model
from ttcnet.storage import tensor_file
from ttcnet.train.checkpoint import model_state, restore_model
from ttcnet.train.parts import Parts


def two_processes(folder, train):
    """Both are forked from one that has imported everything and computed nothing."""
    server = get_context("forkserver")
    server.set_forkserver_preload(["tests.train.sharded_run"])
    both = [server.Process(target=main, args=(folder, train, rank, 2)) for rank in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
        assert process.exitcode == 0


def inserted(net):
    return {name: parameter.detach() for name, parameter in adapter.parameters(net).items()}


def worst(found, expected):
    assert found.keys() == expected.keys()
    return max((found[name] - expected[name]).abs().max().item() for name in expected)


@pytest.mark.parametrize("train", ["inserted", "all"])
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

    # what two processes saved, two and one go on from
    steps(alone, optimizer, 20, 25)
    again, memory = build(train, shard=False)
    restore_model(Parts(tmp_path / "state.safetensors"), again, memory)
    steps(again, memory, 20, 25)
    later, _ = tensor_file.load(tmp_path / "later" / "ttc_adapter.safetensors")
    assert worst(later, inserted(alone)) < 1e-5
    assert worst(inserted(again), inserted(alone)) < 1e-5


def test_a_checkpoint_of_other_weights_is_refused():
    net, optimizer = build("inserted", shard=False)
    steps(net, optimizer, 0, 1)
    tensors = model_state(net, optimizer)
    other, memory = build("all", shard=False)
    with raises("weights", "here", r"missing \['model.embed_tokens.weight'"):
        restore_model(tensors, other, memory, "here")
    again, memory = build("inserted", shard=False)
    restore_model(tensors, again, memory, "here")
    for name, value in inserted(net).items():
        assert torch.equal(value, inserted(again)[name])
