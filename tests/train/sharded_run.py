"""A short training run of a model with TTC layers, by one process or spread over several by torch's fully_shard."""

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

import ttcnet.adapter as adapter
from tests.train.tiny import model
from ttcnet.train.checkpoint import model_state, restore_model
from ttcnet.train.parts import Parts, write

FACTS = {"format": 2, "step": 20, "settings": {}}


def build(train, shard):
    base = model(tie_word_embeddings=train == "all")
    net = adapter.insert(base, adapter.TTCAdapterConfig(every=2, heads=2, state_size=8, rank=4, zero_init=False))
    adapter.freeze_base(net) if train == "inserted" else adapter.train_all(net)
    if shard:
        for layer in net.model.layers:
            fully_shard(layer)
        fully_shard(net)
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    return net, torch.optim.AdamW(trained, lr=1e-3)


def steps(net, optimizer, first, last, rank=0, world=1):
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(6, 20, (4, 9), generator=generator)[rank::world]
        adapter.set_horizon(net, 1 + step % 5)
        net(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main(folder, train, rank, world):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=world)
    net, optimizer = build(train, shard=True)
    steps(net, optimizer, 0, 20, rank, world)
    adapter.save(net, folder / "adapter")
    write(folder / "state.safetensors", model_state(net, optimizer), FACTS)
    if train == "all":
        weights = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if rank == 0:
            net.save_pretrained(folder / "model", state_dict=weights)
    dist.barrier()
    net, optimizer = build(train, shard=True)
    restore_model(Parts(folder / "state.safetensors"), net, optimizer)
    steps(net, optimizer, 20, 25, rank, world)
    adapter.save(net, folder / "later")
    dist.barrier()
    dist.destroy_process_group()
