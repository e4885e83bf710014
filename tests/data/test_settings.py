"""The file that describes a run, and what is wrong with it."""

from pathlib import Path

import pytest

from ttcnet.data.settings import Near, Sample, Settings, Source, Verify, fixed, settings

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
RECIPES = [EXPERIMENTS / "math_small/data.toml", *sorted((EXPERIMENTS / "math/data").glob("*.toml"))]
SOURCE = '[[source]]\ndata = "a.jsonl"\n'


@pytest.fixture
def load(tmp_path):
    def loaded(text, out="run"):
        (tmp_path / "run.toml").write_text(text)
        return settings(tmp_path / "run.toml", out)

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
    assert load(f'out = "other"\n{SOURCE}', None).out == "other"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[source]\n", "run.toml must be TOML"),
        ("", r"sources must be given; got none. Add a table \[\[source\]\]"),
        ('[source]\ndata = "a"', "two brackets"),
        ('[[source]]\nname = "a"', "must say data; got only name"),
        ("[[source]]\ndata = 5", "source.data must be text; got 5"),
        ('[[source]]\ndata = "a"\nproblem = []', "problem must be the name of a field, or a list of names"),
        ('[[source]]\ndata = "a"\nname = "a b"', "name must be made of letters"),
        (SOURCE + SOURCE, "sources must have names of their own; got a"),
        (SOURCE + "[nearly]", "must hold fields among out, source, near.*got nearly"),
        ("sources = 3\n" + SOURCE, "must hold fields among .*; got sources"),
        (SOURCE + "[decontaminate]\ntests = 3", "must hold fields among test, words; got tests"),
        (SOURCE + "[near]\nthreshold = 1.5", r"near.threshold must lie in \[0.5, 1\); got 1.5"),
        (SOURCE + "[near]\nthreshold = true", "near.threshold must be a number; got True"),
        (SOURCE + "[decontaminate]", r"decontaminate.tests must be given; got none. Add .* \[\[decontaminate.test\]\]"),
        ("near = 5\n" + SOURCE, "near must be a table; got 5"),
        (SOURCE + '[verify]\nmodel = "m"\nrounds = 2', "verify.agree must be at most verify.rounds, 2; got 32"),
        (SOURCE + '[verify]\nmodel = "m"\ntemperature = 0', "temperature must be above 0"),
        (SOURCE + "[verify]", "must say model; got only nothing"),
        (SOURCE + "[sample]\nrows = 0", "sample.rows must be a whole number of 1 or more; got 0"),
        (SOURCE + "[sample]\nquotas = { b = 1 }", "sample.quotas must name sources among a; got b"),
        (SOURCE + "[sample]\nquotas = 3", "sample.quotas must be a table of whole numbers; got 3"),
    ],
)
def test_complaints(text, words, load):
    with pytest.raises(ValueError, match=words):
        load(text)


def test_a_run_has_a_folder(load):
    with pytest.raises(ValueError, match="must say out"):
        load(SOURCE, None)


def test_a_server_may_move():
    assert fixed(Verify("m", "a", concurrent=1)) == fixed(Verify("m", "b", concurrent=2)) != fixed(Verify("n"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_are_in_order(path):
    made = settings(path)
    assert made.out == f"runs/data/{'math-small' if path.stem == 'data' else path.stem}"
    if path.stem != "train":  # which puts together what has been cleaned
        assert made.decontaminate.words == 13


def test_the_recipe_says_what_the_paper_says():
    made = settings(next(path for path in RECIPES if path.stem == "paper"))
    assert (made.verify.rounds, made.verify.agree, made.sample.rows) == (32, 32, 800_000)
    assert len({source.data for source in made.sources}) == 14
