"""The sample: of its size, by its quotas, at random, and the same again."""

from collections import Counter

import pytest

from tests.data.made import read, rows, write
from tests.raising import raises
from ttcnet.data.run import run
from ttcnet.data.sampling import sample
from ttcnet.data.settings import Sample, Settings, Source


@pytest.fixture
def drawn(tmp_path):
    files = [write(tmp_path / f"{name}.jsonl", rows(100, seed)) for seed, name in enumerate("abc")]

    def made(order=(0, 1, 2), **options):
        folder = tmp_path / f"run-{order}-{options}"
        run(Settings(str(folder), [Source(str(files[n])) for n in order], sample=Sample(**options)))
        return read(folder / "data.jsonl")

    return made


def ids(sample):
    return {row["id"] for row in sample}


def test_quotas_and_size(drawn):
    assert len(drawn()) == 300
    assert Counter(row["source"] for row in drawn(quotas={"a": 5, "b": 1000})) == {"a": 5, "b": 100, "c": 100}
    few = drawn(rows=60, quotas={"a": 3})
    assert len(few) == 60
    assert Counter(row["source"] for row in few)["a"] <= 3
    assert len(drawn(rows=1000)) == 300


def test_the_seed_decides_and_nothing_else(drawn):
    assert ids(drawn(rows=50)) == ids(drawn((2, 0, 1), rows=50)) != ids(drawn(rows=50, seed=1))
    assert ids(drawn(rows=50)) < ids(drawn(rows=51))


class Rows(list):
    """What `sample` needs of a stage."""

    peek = rows = list.__iter__

    def __init__(self, content):
        super().__init__(content)
        self.kept = []
        self.keep = self.kept.append

    def drop(self, *_):
        pass


def test_all_have_the_same_chance():
    """30 of 300 rows are drawn, 40 times: some 400 of each source, and every row some 4 times."""
    content = [{"id": f"{name}/{n}", "source": name, "solution": "S"} for name in "abc" for n in range(100)]
    times = Counter()
    for seed in range(40):
        stage = Rows(content)
        sample(stage, Sample(30, seed))
        times.update(row["id"] for row in stage.kept)
    for name in "abc":
        assert sum(times[f"{name}/{n}"] for n in range(100)) == pytest.approx(400, abs=65)  # four deviations
    assert max(times.values()) <= 13
    assert len(times) >= 285


def test_nothing_to_draw_from_is_an_error(tmp_path):
    source = Source(str(write(tmp_path / "a.jsonl", [{"problem": "P", "answer": "1"}])))
    with raises("no-data", "data"):
        run(Settings(str(tmp_path / "run"), [source]))
