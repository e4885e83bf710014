"""Short runs of fine-tuning, for several tests."""

import gc

import pytest

from tests.train.tiny import model, sums, tokenizer
from ttcnet.settings import from_table
from ttcnet.train.settings import FineTuning

ADAPTER = {"every": 2, "heads": 2, "state_size": 8, "rank": 4}


def run_settings(folder, out="run", **changes):
    data = folder / "data.jsonl"
    if not data.exists():
        sums(data)
    values = dict(model="tiny", data=str(data), out=str(folder / out), adapter=ADAPTER, batch=8, device_batch=4)
    values |= dict(steps=6, lr=3e-3, bf16=False, save_every=2, log_every=2, check_pointing=False)
    return from_table(FineTuning, values | changes)


@pytest.fixture(scope="session", autouse=True)
def frozen():
    """accelerate collects garbage at every run: half of its time, where all that was imported is looked through."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def make(tmp_path):
    return lambda out="run", **changes: run_settings(tmp_path, out, **changes)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A run that came to its end: its folder and its model. To be looked at or copied, not changed."""
    from ttcnet.train import sft

    folder = tmp_path_factory.mktemp("finished")
    adapter = ADAPTER | {"dropout": 0.1, "horizon": 5}
    config = run_settings(folder, adapter=adapter, steps=7, save_every=3, inserted_lr=1e-2)
    trained = sft.fine_tune(config, model(), tokenizer())
    return folder / "run", trained.eval(), config
