"""Test problems are found in all their disguises, and nothing else is."""

import pytest

from tests.data.made import problems, read, rows, write
from tests.raising import raises
from ttcnet.data.contamination import Index
from ttcnet.data.run import run
from ttcnet.data.settings import Decontaminate, Settings, Source

LONG = (
    r"Let $ABC$ be a triangle with $AB = 1{,}000$, $\dfrac{BC}{2} = 14$ and $\left|CA\right| = 15\,\text{cm}$. "
    "Find its area."
)
SHORT = r"Compute $\dbinom{31}{28}$."
SUM = "What is $17 + 25 - 9$?"


def index(*texts, length=13):
    made = Index(length)
    for number, text in enumerate(texts, 1):
        made.add(text, f"test/{number}")
    return made


@pytest.mark.parametrize(
    "planted",
    [
        LONG,
        LONG.upper(),
        LONG.replace("$", "").replace(", ", " ").replace(".", ""),
        LONG.replace("$", "$$ ").replace(" ", "\n"),
        r"Let \(ABC\) be a triangle with \(AB=1000\), \(\frac{BC}{2}=14\) and \(|CA|=15\;\mathrm{cm}\). Find its area!",
        f"Solve the following problem, and reason step by step. {LONG} Put the answer into a box.",
        LONG.replace("Find its area", "What is the length of its longest height"),
        LONG.replace("Let $ABC$ be", "Suppose that $PQR$ is"),
        SHORT,
        r"compute  $\binom{31}{28}$",
        rf"Question 5: {SHORT} Answer with a number.",
        "What is $17+25-9$",
    ],
)
def test_planted_problems_are_found(planted):
    assert index(LONG, SHORT, SUM).find(planted) is not None


@pytest.mark.parametrize(
    "innocent",
    [
        LONG.replace("14", "13").replace("be a triangle", "be the triangle"),
        r"Compute $\dbinom{31}{27}$.",
        "What is $17 - 25 + 9$?",
        "What is $17 + 25$?",
        "Compute",
        "",
    ],
)
def test_others_are_not(innocent):
    assert index(LONG, SHORT, SUM).find(innocent) is None


def test_as_many_words_as_are_asked_for():
    text = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    parts = text.split()
    for shared in range(10, 16):
        planted = " ".join(["Something", "else:", *parts[:shared], "and", "then"])
        assert (index(text).find(planted) is not None) == (shared >= 13)
        assert (index(text, length=11).find(planted) is not None) == (shared >= 11)
    assert index(text).find(text) == ("test/1", " ".join(parts[:13]))


def test_a_test_problem_of_one_word_is_refused():
    with raises("bad-data", "a test problem", r"'Solve\.' in test/1"):
        index("Solve.")


def test_none_of_many_is_missed_and_none_too_many_dropped(tmp_path):
    train, tests = rows(400, seed=1), problems(60, seed=2)
    planted = {7: tests[0], 100: tests[20].upper(), 399: "Hint: " + tests[59].replace(" ", "\n")}
    for place, text in planted.items():
        train[place]["problem"] = text
    content = [{"question": text} for text in tests]
    sources = [Source(str(write(tmp_path / "t.jsonl", content)), name="held", problem="question")]
    folder = tmp_path / "run"
    made = [Source(str(write(tmp_path / "a.jsonl", train)))]
    run(Settings(str(folder), made, decontaminate=Decontaminate(sources)))
    dropped = read(folder / "decontaminate.dropped.jsonl")
    assert [(row["id"], row["test"]) for row in dropped] == [
        ("a/8", "held/1"),
        ("a/101", "held/21"),
        ("a/400", "held/60"),
    ]
    assert all(row["reason"] == "in held" and len(row["words"].split()) == 13 for row in dropped)
    assert len(read(folder / "data.jsonl")) == 397


def test_a_test_set_with_a_hole_is_refused(tmp_path):
    tests = write(tmp_path / "t.jsonl", [{"problem": "What is it that we seek?"}, {"problem": None}])
    made = [Source(str(write(tmp_path / "a.jsonl", rows(3))))]
    with raises("bad-data", "a test set", r"t\.jsonl line 2"):
        run(Settings(str(tmp_path / "run"), made, decontaminate=Decontaminate([Source(str(tests))])))
