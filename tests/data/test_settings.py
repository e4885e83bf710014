"""The file that describes a run, and errors in it."""

from pathlib import Path

import pytest

from tests.raising import raises
from ttcnet.data.settings import Near, Sample, Settings, Source, Verify, fixed
from ttcnet.settings import from_table, read_toml

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
RECIPES = [EXPERIMENTS / "math_small/data.toml", *sorted((EXPERIMENTS / "math/data").glob("*.toml"))]
SOURCE = '[[source]]\ndata = "a.jsonl"\n'


@pytest.fixture
def load(tmp_path):
    def loaded(text, given={"out": "run"}):  # noqa: B006
        (tmp_path / "run.toml").write_text(text)
        return from_table(Settings, read_toml(tmp_path / "run.toml") | given, "run.toml")

    return loaded


def test_all_that_a_file_can_say(load):
    text = """
    [[source]]
    data = "data/gsm8k.jsonl.gz"
    [[source]]
    data = "owner/name"
    name = "other"
    subset = "main"
    split = "test"
    problem = ["question", "options"]
    solution = "answer"
    [near]
    threshold = 0.8
    [decontaminate]
    words = 8
    [[decontaminate.test]]
    data = "t.jsonl"
    [verify]
    model = "m"
    rounds = 4
    agree = 3
    [sample]
    rows = 10
    quotas = { gsm8k = 3 }
    """
    made = load(text)
    assert made.sources[0] == Source("data/gsm8k.jsonl.gz", name="gsm8k")
    assert made.sources[1].problem == ["question", "options"]
    assert (made.near, made.sample) == (Near(0.8), Sample(10, 0, {"gsm8k": 3}))
    assert made.decontaminate.tests == [Source("t.jsonl", name="t")]
    assert made.verify == Verify("m", rounds=4, agree=3)
    assert load(SOURCE) == Settings("run", [Source("a.jsonl")])
    assert load(f'out = "other"\n{SOURCE}', {}).out == "other"


@pytest.mark.parametrize(
    ("text", "code", "field", "value"),
    [
        ("", "missing", "sources", "none"),
        ('[source]\ndata = "a"', "type", "run.toml: source", "data"),
        ('[[source]]\nname = "a"', "missing", "run.toml: source", "no data"),
        ('[[source]]\ndata = "a"\nproblem = []', "missing", "problem", r"\[\]"),
        ('[[source]]\ndata = "a"\nname = "a b"', "format", "name", "a b"),
        (SOURCE + SOURCE, "format", "sources", "a"),
        (SOURCE + "[nearly]", "unknown-field", "run.toml", "nearly"),
        ("sources = 3\n" + SOURCE, "unknown-field", "run.toml", "sources"),
        (SOURCE + "[decontaminate]\ntests = 3", "unknown-field", "run.toml: decontaminate", "tests"),
        (SOURCE + "[variant.small]", "unknown-field", "run.toml", "variant"),
        (SOURCE + "[near]\nthreshold = 1.5", "out-of-range", "near.threshold", "1.5"),
        (SOURCE + "[near]\nthreshold = true", "type", "run.toml: near: threshold", "True"),
        (SOURCE + "[decontaminate]", "missing", "decontaminate.tests", "none"),
        ("near = 5\n" + SOURCE, "type", "run.toml: near", "5"),
        (SOURCE + '[verify]\nmodel = "m"\nrounds = 2', "out-of-range", "verify.agree", "32"),
        (SOURCE + '[verify]\nmodel = "m"\ntemperature = 0', "conflict", "verify.temperature", "0"),
        (SOURCE + "[verify]", "missing", "run.toml: verify", "no model"),
        (SOURCE + "[sample]\nrows = 0", "too-small", "sample.rows", "0"),
        (SOURCE + "[sample]\nquotas = { b = 1 }", "unknown-field", "sample.quotas", "b"),
        (SOURCE + "[sample]\nquotas = 3", "type", "run.toml: sample: quotas", "3"),
    ],
)
def test_settings_that_do_not_fit(text, code, field, value, load):
    with raises(code, field, value):
        load(text)


def test_a_run_has_a_folder(load):
    with raises("missing", "run.toml", "no out"):
        load(SOURCE, {})


def test_a_server_may_move():
    assert fixed(Verify("m", "a", concurrent=1)) == fixed(Verify("m", "b", concurrent=2)) != fixed(Verify("n"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_are_in_order(path):
    made = from_table(Settings, read_toml(path))
    assert made.out == f"runs/data/{'math-small' if path.stem == 'data' else path.stem}"
    if path.stem != "train":  # which joins cleaned data
        assert made.decontaminate.words == 13


def test_the_recipe_has_the_numbers_of_the_paper():
    made = from_table(Settings, read_toml(next(path for path in RECIPES if path.stem == "paper")))
    assert (made.verify.rounds, made.verify.agree, made.sample.rows) == (32, 32, 800_000)
    assert len({source.data for source in made.sources}) == 14
