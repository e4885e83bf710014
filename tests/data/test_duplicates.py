"""Copies are found, near ones too, and problems that are only alike are left alone."""

import random

import pytest

from tests.data.made import problems, read, rows, write
from ttcnet.data.duplicates import RECALL, SLOTS, bands, shingles
from ttcnet.data.run import run
from ttcnet.data.settings import Near, Settings, Source


def through(tmp_path, *files, near=Near()):  # noqa: B008
    """Ids that are left, and the dropped rows, each with the earlier row that it copies."""
    sources = [Source(str(write(tmp_path / f"{chr(97 + n)}.jsonl", file))) for n, file in enumerate(files)]
    folder = tmp_path / "run"
    run(Settings(str(folder), sources, near=near))
    dropped = {}
    for name in ("exact", "near"):
        if (path := folder / f"{name}.dropped.jsonl").exists():
            dropped |= {row["id"]: (row["reason"], row["of"]) for row in read(path)}
    return [row["id"] for row in read(folder / "data.jsonl")], dropped


def test_copies_in_other_clothes(tmp_path):
    first = r"Let $f(x) = \dfrac{1}{x}$. What is $f\left(1{,}000\right)$?"
    copies = [
        first.upper(),
        r"Let \(f(x)=\frac{1}{x}\).  What is \(f(1000)\)",
        "Let $f(x) = \\frac 1 x$.\nWhat is $$f(1,000)?$$",
    ]
    others = [first.replace("f(x)", "f'(x)"), first.replace("1{,}000", "1{,}001"), first.replace("f", "g")]
    content = [{"problem": text, "solution": "S"} for text in (first, *copies, *others)]
    left, dropped = through(tmp_path, content[:2], content[2:], near=None)
    assert left == ["a/1", "b/3", "b/4", "b/5"]
    assert dropped == dict.fromkeys(("a/2", "b/1", "b/2"), ("copy", "a/1"))


def other_word(text, rng):
    parts = text.split()
    place = rng.choice([place for place, part in enumerate(parts) if part.isalpha()])
    return " ".join([*parts[:place], "something", *parts[place + 1 :]])


CHANGES = {
    "a word changed": other_word,
    "a word added": lambda text, rng: text.replace(" and ", " and also ", 1),
    "a word left out": lambda text, rng: text.replace(" every ", " ", 1),
    "a number before it": lambda text, rng: f"{rng.randint(1, 99)}. {text}",
    "an instruction after it": lambda text, rng: f"{text} Give the exact answer.",
    "another name": lambda text, rng: text.replace(text.split()[0], "Zoe", 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_near_copies_are_found(change, tmp_path):
    rng, originals = random.Random(0), rows(150)
    copies = [row | {"problem": CHANGES[change](row["problem"], rng)} for row in originals]
    _, dropped = through(tmp_path, originals, copies)
    right = sum(dropped.get(f"b/{n}") == ("near copy", f"a/{n}") for n in range(1, 151))
    assert right == len(dropped)
    assert right >= 0.95 * 150


def test_distinct_problems_are_left_alone(tmp_path):
    left, dropped = through(tmp_path, rows(1500))
    assert len(left) == 1500
    assert not dropped


STORY = (
    "A baker sells {} loaves of bread on Monday, and on Tuesday he sells twice as many as on the day before. Each loaf "
    "costs him one dollar to make and earns him three. How much does he have after both days?"
)


def test_the_same_story_with_another_number_is_another_problem(tmp_path):
    content = [{"problem": STORY.format(n), "solution": f"#### {6 * n}"} for n in range(5, 25)]
    assert len(through(tmp_path, content)[0]) == 20


def test_unless_nothing_is_known_of_the_answers(tmp_path):
    content = [{"problem": STORY.format(n), "solution": "It is clear."} for n in range(5, 25)]
    left, dropped = through(tmp_path, content)
    assert left == ["a/1"]
    assert set(dropped.values()) == {("near copy", "a/1")}


def test_the_seed_is_heeded_and_results_repeat(tmp_path):
    content = [row for text in problems(30) for row in near_ones(text)]

    def left(name, seed):
        (tmp_path / name).mkdir()
        return through(tmp_path / name, content, near=Near(0.7, seed))[0]

    assert left("a", 0) == left("b", 0)
    assert len({tuple(left(f"c{seed}", seed)) for seed in range(1, 4)}) > 1


def near_ones(text):
    """Two rows as similar as the threshold, so that chance decides."""
    rng = random.Random(text)
    return [{"problem": text, "solution": "S"}, {"problem": other_word(other_word(text, rng), rng), "solution": "S"}]


@pytest.mark.parametrize("threshold", [0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
def test_bands_find_pairs_at_the_threshold(threshold):
    count = bands(threshold)
    assert SLOTS % count == 0
    assert 1 - (1 - threshold ** (SLOTS // count)) ** count >= RECALL


def test_short_problems_have_shingles_too():
    assert shingles(["a", "b"]) == ["a b"]
    assert shingles(list("abcd")) == ["a b c", "b c d"]
