"""ttcnet sft with recipes/fsdp2.yaml, as accelerate and Trainer carry it out, by two processes.

On the CPU accelerate takes DDP for FSDP without a word. Two patches have it do what it does on GPUs: it is told that
this is FSDP, and torch is told which devices there are.
"""

import json
import os
import shutil
import socket
from multiprocessing import get_context
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from tests.train.conftest import run_settings
from tests.train.tiny import model, tokenizer
from ttcnet.train import sft

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of trl, datasets and transformers
RECIPE = yaml.safe_load((Path(__file__).parents[2] / "recipes/fsdp2.yaml").read_text())
RESULTS = {"all": ["model/model"], "lora": ["adapter/ttc_adapter", "adapter/adapter_model"]}


def shard_on_the_cpu(seen):
    import torch.distributed.fsdp as fsdp
    from accelerate.state import AcceleratorState
    from accelerate.utils import FullyShardedDataParallelPlugin
    from torch.distributed.device_mesh import init_device_mesh

    shard, start = fsdp.fully_shard, AcceleratorState.__init__

    def fully_shard(part, **options):
        seen.append(part)
        return shard(part, **options | {"mesh": init_device_mesh("cpu", (2,))})

    def begin(self, *args, **options):
        start(self, *args, **options)
        self.fsdp_plugin = options.get("fsdp_plugin") or FullyShardedDataParallelPlugin()  # from the environment
        self.distributed_type = RECIPE["distributed_type"]

    fsdp.fully_shard, AcceleratorState.__init__ = fully_shard, begin


def one_of_two(folder, out, train, rank, port):
    os.environ |= {name.upper(): str(value) for name, value in RECIPE["fsdp_config"].items()}  # as accelerate does
    os.environ |= dict(ACCELERATE_USE_FSDP="true", ACCELERATE_USE_CPU="true", LOCAL_RANK=str(rank))
    os.environ |= dict(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=port)
    sharded = []
    shard_on_the_cpu(sharded)
    net = model()
    sft.fine_tune(
        run_settings(folder, out, train=train, inserted_lr=1e-2, device_batch=2, check_pointing=True), net, tokenizer()
    )
    assert all(layer in sharded for layer in net.model.layers)


def two_processes(folder, out, train):
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    spawn = get_context("spawn")
    both = [spawn.Process(target=one_of_two, args=(folder, out, train, rank, port)) for rank in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(200)
        assert process.exitcode == 0


@pytest.mark.parametrize("train", RESULTS)
def test_the_shipped_configuration(train, tmp_path):
    sft.fine_tune(run_settings(tmp_path, "one", train=train, inserted_lr=1e-2), model(), tokenizer())
    two_processes(tmp_path, "two", train)
    shutil.copytree(tmp_path / "two", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoint-6")
    shutil.rmtree(tmp_path / "again" / sft.RESULTS[train])
    two_processes(tmp_path, "again", train)
    for file in RESULTS[train]:
        one, two, again = (load_file(tmp_path / run / f"{file}.safetensors") for run in ("one", "two", "again"))
        assert one.keys() == two.keys() == again.keys()
        assert all((one[name] - two[name]).abs().max() < 1e-5 for name in one)
        assert all((two[name] == again[name]).all() for name in two)
    if train == "all":
        assert json.loads((tmp_path / "two/model/config.json").read_text())["architectures"] == ["TTCLlamaForCausalLM"]
