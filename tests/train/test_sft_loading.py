"""A base model that several processes load holds its memory once, not once in each."""

import json
import threading
import time
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

from tests.raising import raises
from tests.train import jobs
from tests.train.tiny import model
from ttcnet.machine.processes import count, join_job, leave_job, rank
from ttcnet.models.loading import causal_lm
from ttcnet.models.sharded_loading import Weights, without_weights
from ttcnet.train.sharding import gathered, shard

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers
SIZES = dict(hidden_size=512, intermediate_size=2048, num_hidden_layers=6, vocab_size=8000, num_attention_heads=8)


def own_memory():
    """Bytes that only this process has: files that are mapped are shared, and can be given back at any time."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon")]
    return 1024 * int(line.split()[1])


class Peak:
    """The peak memory of a block, and the memory that it leaves in use."""

    def __enter__(self):
        self.before = self.most = own_memory()
        self.done = False
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.done:
            self.most = max(self.most, own_memory())
            time.sleep(0.001)

    def __exit__(self, *_):
        self.done = True
        self.thread.join()
        self.most = max(self.most, own_memory()) - self.before


def load(folder, in_pieces):
    """A process of a job loads the base, and leaves its peak beside it."""
    torch.set_num_threads(1)
    device = join_job("cpu")
    small, files, names = without_weights(str(folder / "small"), torch.float32)
    shard(small, device, bf16=False)  # so that all that this needs is imported
    files.fill(small, names)
    with Peak() as peak:
        if in_pieces:
            net, files, names = without_weights(str(folder / "large"), torch.float32)
            shard(net, device, bf16=False)
            files.fill(net, names)
        else:
            net = causal_lm(str(folder / "large"), torch.float32)
    (folder / f"{in_pieces}-{count()}-{rank()}.json").write_text(json.dumps(peak.most))
    if in_pieces:
        assert all(isinstance(parameter, DTensor) for parameter in net.parameters())
        whole, expected = gathered(net), causal_lm(str(folder / "large"), torch.float32)
        if rank() == 0:
            for name, value in expected.state_dict().items():
                assert torch.equal(whole[name], value), name
        found = dict(net.named_buffers())
        assert found.keys() == dict(expected.named_buffers()).keys()
        for name, value in expected.named_buffers():
            assert torch.equal(found[name], value), name
    leave_job()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    model().save_pretrained(folder / "small")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).to(torch.bfloat16).save_pretrained(folder / "large", max_shard_size="20MB")
    return folder


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_hold_one_copy_in_all(processes, models):
    """Whole loading, measured in the same way, takes a copy in each."""
    size = 4 * sum(parameter.numel() for parameter in LlamaForCausalLM(LlamaConfig(**SIZES)).parameters())
    sums = {}
    for in_pieces in (True, False):
        assert jobs.job(processes, load, models, in_pieces) == [0] * processes
        peaks = (json.loads(file.read_text()) for file in models.glob(f"{in_pieces}-{processes}-*.json"))
        sums[in_pieces] = sum(peaks) / size
    print(f"{processes} processes, copies in all: {sums[True]:.2f}; each loading the whole: {sums[False]:.2f}")
    assert sums[True] < 1.3
    assert sums[False] > 0.9 * processes


def test_files_that_do_not_fit_are_refused(models, tmp_path):
    model().save_pretrained(tmp_path / "base")
    config = json.loads((tmp_path / "base" / "config.json").read_text())
    for changes, said in (
        ({"num_hidden_layers": 3}, "has no model.layers.2"),
        ({"num_hidden_layers": 1}, "hold model.layers.1"),
        ({"vocab_size": 50}, "is of shape"),
    ):
        (tmp_path / "base" / "config.json").write_text(json.dumps(config | changes))
        with raises("no-model", "model", said):
            without_weights(str(tmp_path / "base"), torch.float32)
    (tmp_path / "base" / "model.safetensors").unlink()
    with raises("no-model", "model", "base"):
        Weights(str(tmp_path / "base"))


def test_tied_embeddings_stay_tied(tmp_path):
    model(tie_word_embeddings=True).save_pretrained(tmp_path / "base")
    net, files, names = without_weights(str(tmp_path / "base"), torch.bfloat16)
    files.fill(net, names)
    assert net.lm_head.weight is net.model.embed_tokens.weight
    assert torch.equal(net.lm_head.weight, model(tie_word_embeddings=True).lm_head.weight.bfloat16())
