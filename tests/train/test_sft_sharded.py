"""ttcnet sft by several processes that share one model: they train the same weights as one, save in pieces, and resume
in any number."""

import os
import shutil
import signal
from functools import wraps

import pytest
import torch
from safetensors.torch import load_file
from torch.func import functional_call
from transformers import LlamaModel

from tests.raising import told
from tests.train import jobs
from ttcnet.storage import tensor_file
from ttcnet.train.parts import Parts, part_of
from ttcnet.train.run import Run
from ttcnet.train.sft import RESULTS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of datasets, peft and transformers
SHORT = dict(steps=7, save_every=3, keep=1)


def learned(run):
    return {(file.name, name): x for file in run.glob("*/*.safetensors") for name, x in load_file(file).items()}


def furthest(run, other):
    one, two = learned(run), learned(other)
    assert one.keys() == two.keys()
    assert one
    return max((one[name] - two[name]).abs().max().item() for name in one)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return jobs.base(tmp_path_factory.mktemp("cluster"), tie_word_embeddings=True)


@pytest.mark.parametrize("train", RESULTS)
def test_two_processes_are_one(train, folder):
    """Tied embeddings, LoRA, and inserted layers that start at zero, after 20 steps."""
    assert jobs.job(1, jobs.tune, folder, f"{train}-1", train=train) == [0]
    assert jobs.job(2, jobs.tune, folder, f"{train}-2", train=train) == [0, 0]
    assert furthest(folder / f"{train}-1", folder / f"{train}-2") < 1e-6
    values = learned(folder / f"{train}-2")
    outputs = [x for (_, name), x in values.items() if ".inserted." in name and "out" in name]
    assert outputs
    assert all(x.abs().max() > 1e-3 for x in outputs), "they started at zero, and have learned"


def rounded(folder, out, **changes):
    """One process that computes all in bfloat16, as FSDP2 does; autocast leaves much in float32."""
    forward, inside = LlamaModel.forward, set()

    def rounded_forward(net, *args, **options):
        if net in inside:
            return forward(net, *args, **options)
        inside.add(net)
        try:
            weights = {name: x.bfloat16() for name, x in net.named_parameters()}
            return functional_call(net, weights, args, options)
        finally:
            inside.remove(net)

    LlamaModel.forward = wraps(forward)(rounded_forward)
    jobs.tune(folder, out, **changes)


@pytest.mark.parametrize(("train", "weights"), [("all", "float32"), ("lora", "bfloat16"), ("all", "bfloat16")])
def test_bfloat16(train, weights, folder):
    """Two processes are as far from what float32 gives as one that computes all in bfloat16; and with weights in
    bfloat16 inserted layers stay in float32, for both numbers of processes."""
    name, options = f"{train}-{weights}", dict(train=train, weights=weights, bf16=True)
    assert jobs.job(1, jobs.tune, folder, f"{name}-exact", **options | dict(bf16=False, weights="float32")) == [0]
    assert jobs.job(1, rounded, folder, f"{name}-1", **options) == [0]
    assert jobs.job(2, jobs.tune, folder, f"{name}-2", check_pointing=True, **options) == [0, 0]
    exact, one, two = (learned(folder / f"{name}-{which}") for which in ("exact", "1", "2"))
    assert one.keys() == two.keys() == exact.keys()
    assert {key: x.dtype for key, x in one.items()} == {key: x.dtype for key, x in two.items()}
    assert {x.dtype for (_, key), x in two.items() if ".inserted." in key} == {torch.float32}
    assert 0 < distance(two, exact) < 2 * distance(one, exact), (distance(two, exact), distance(one, exact))


def distance(some, others):
    return sum((some[name] - others[name]).double().square().sum() for name in some).sqrt().item()


def dies(folder, out, step, **changes):
    """All processes are killed before a step."""
    from ttcnet.train.learner import Learner

    advance = Learner.advance

    def watched(self):
        if self.step == step:
            os._exit(9)
        advance(self)

    Learner.advance = watched
    jobs.tune(folder, out, **changes)


@pytest.fixture(scope="module")
def killed(folder):
    """A run of four processes, killed after its first checkpoint; and where one process ends."""
    assert jobs.job(4, dies, folder, "killed", 4, **SHORT) == [9] * 4
    assert jobs.job(1, jobs.tune, folder, "alone", **SHORT) == [0]
    return folder / "killed"


@pytest.mark.parametrize("count", [1, 2, 4])
def test_resumed_by_another_number(count, killed, folder):
    """It starts from the same weights, to the bit, and ends at those of a run that was never killed."""
    files = sorted(path.name for path in killed.glob("checkpoint*"))
    assert files == [*(f"checkpoint-3.part-{number}.safetensors" for number in (1, 2, 3)), "checkpoint-3.safetensors"]
    out = folder / f"resumed-{count}"
    shutil.copytree(killed, out)
    assert jobs.job(count, jobs.tune, folder, out.name, **SHORT) == [0] * count
    assert furthest(out, folder / "alone") < 1e-6
    if count == 4:
        assert jobs.job(4, jobs.tune, folder, "never", **SHORT) == [0] * 4
        assert furthest(out, folder / "never") == 0


def killed_in_a_save(folder, out, **changes):
    """The last process is killed while it writes its part of the second checkpoint."""
    real = tensor_file.save_file

    def save(tensors, path, **options):
        if "checkpoint-6.part-1" in path.name:
            path.write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        real(tensors, path, **options)

    tensor_file.save_file = save
    jobs.tune(folder, out, **changes)


def test_a_killed_save_loses_only_the_steps_since_the_last(folder):
    codes = jobs.job(2, killed_in_a_save, folder, "half", train="inserted", **SHORT)
    assert codes[1] == -signal.SIGKILL
    assert codes[0] not in (0, None)
    out = folder / "half"
    assert Parts(out / "checkpoint-3.safetensors").facts["parts"] == 2
    assert not (out / "checkpoint-6.safetensors").exists()
    part_of(out / "checkpoint-6.safetensors", 3).write_bytes(b"of a save by four processes that was killed")
    assert jobs.job(2, jobs.tune, folder, "half", train="inserted", **SHORT) == [0, 0]
    assert jobs.job(2, jobs.tune, folder, "whole", train="inserted", **SHORT) == [0, 0]
    assert furthest(out, folder / "whole") == 0
    assert not [*out.glob("*.part-3.*"), *out.glob(".*.tmp.*")]


def full_disk(folder, out, **changes):
    from safetensors import SafetensorError

    real = tensor_file.save_file

    def save(tensors, path, **options):
        if "checkpoint-6.part-1" in path.name:
            raise SafetensorError("I/O error: No space left on device")
        real(tensors, path, **options)

    tensor_file.save_file = save
    from ttcnet.errors import errors_as_sentences

    with errors_as_sentences():
        jobs.tune(folder, out, **changes)


def test_a_full_disk_of_one_process_is_its_error(folder, tmp_path):
    jobs.job(2, full_disk, folder, "full", said=tmp_path / "said", train="inserted", **SHORT)
    said = (tmp_path / "said").read_text()
    assert said.count("No space left on device") == 1
    assert [path.name for path in Run(folder / "full", {}, results=[]).checkpoints()] == ["checkpoint-3.safetensors"]


def other_settings(folder, out, **changes):
    from ttcnet.errors import errors_as_sentences

    with errors_as_sentences():
        jobs.tune(folder, out, lr=(float(os.environ["RANK"]) + 1) / 4, **changes)


def test_processes_with_other_settings_are_an_error(folder, tmp_path):
    codes = jobs.job(2, other_settings, folder, "odd", seconds=60, said=tmp_path / "said")
    assert not {0, None} & set(codes)
    said = (tmp_path / "said").read_text()
    assert said.count("[disagree]") == 1
    assert told(said, "disagree", "settings", "{'lr': 0.5} in process 1")
    assert "{'lr': 0.25}; got" in " ".join(said.split())
    assert not (folder / "odd" / "settings.json").exists()
