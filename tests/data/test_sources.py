"""Rows of many forms, brought into one."""

import gzip
import json

import pytest

from tests.data.made import read, write
from tests.raising import raises
from ttcnet.data.run import run
from ttcnet.data.settings import Settings, Source
from ttcnet.data.sources import answer_in, check, opened, parts


def test_parts_by_their_usual_names():
    row = {"question": " Q ", "response": "S", "final_answer": 7, "id": 3}
    assert parts(row, Source("a")) == {"problem": "Q", "solution": "S", "answer": "7"}
    assert parts({"problem": "", "answer": True}, Source("a")) == {"problem": None, "solution": None, "answer": None}


def test_parts_by_name():
    row = {"a.b": "dotted", "talk": [{"says": "Q"}, {"says": None}, {"by": {"says": 2.5}}], "more": "M"}
    assert parts(row, Source("a", problem="talk.0.says", solution=["a.b", "talk.1.says", "more"])) == {
        "problem": "Q",
        "solution": "dotted\n\nM",
        "answer": None,
    }
    assert parts(row, Source("a", problem="talk.9.says", answer="talk.2.by.says"))["answer"] == "2.5"


def test_a_field_is_one_part_only():
    """GSM8K has its solutions under the name of answer."""
    row = {"question": "Q", "answer": "S\n#### 4"}
    assert parts(row, Source("a", solution="answer")) == {"problem": "Q", "solution": "S\n#### 4", "answer": None}


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"First \boxed{1}, but then $\boxed{\frac{\{a\}}{2}}$.", r"\frac{\{a\}}{2}"),
        ("Half is <<4/2=2>>2.\n#### 1,200", "1,200"),
        ("#### 5\nno, wait\n#### 6", "6"),
        (r"\boxed{2} is better than" + "\n#### 3", "2"),
        ("It is 4.", None),
        (r"It is 75\% of \boxed{4", None),
        (r"Put it in \boxed{}.", None),
    ],
)
def test_answers_in_solutions(solution, answer):
    assert answer_in(solution) == answer


def fetched(tmp_path, **source):
    folder = tmp_path / "run"
    run(Settings(str(folder), [Source(name="s", **source)]))
    return read(folder / "data.jsonl"), json.loads((folder / "counts.json").read_text())["stages"]["fetch-s"]


def test_rows_of_a_file_are_kept_or_counted(tmp_path):
    content = [
        {"problem": "P one", "solution": r"So $\boxed{1}$."},
        {"problem": "P two", "solution": "No idea.", "answer": "2"},
        {"problem": None, "solution": "S"},
        {"problem": "P four", "answer": "4"},
        {"problem": "P five"},
        {"problem": "P six", "solution": "Proved."},
        {"problem": "P seven", "solution": "\ud835"},
    ]
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write("\n\n".join(json.dumps(row) for row in content))
    made, counts = fetched(tmp_path, data=str(tmp_path / "a.jsonl.gz"))
    assert made == [
        {"problem": "P one", "solution": r"So $\boxed{1}$.", "answer": "1", "source": "s", "id": "s/1"},
        {"problem": "P two", "solution": "No idea.", "answer": "2", "source": "s", "id": "s/2"},
        {"problem": "P six", "solution": "Proved.", "answer": None, "source": "s", "id": "s/6"},
    ]  # without a solution there is nothing to train on
    assert (counts["read"], counts["kept"], counts["sources"]) == (7, 4, {"s": 4})
    assert counts["dropped"] == {"no problem": 1, "neither solution nor answer": 1, "not Unicode": 1}
    assert counts["notes"] == {"answers read from solutions": 1, "without answer": 1, "without solution": 1}
    dropped = read(tmp_path / "run" / "fetch-s.dropped.jsonl")
    assert dropped[0] == {"id": "s/3", "reason": "no problem", "place": f"{tmp_path / 'a.jsonl.gz'} line 5"}
    assert read(tmp_path / "run" / "sample.dropped.jsonl") == [{"id": "s/4", "reason": "no solution"}]


@pytest.mark.filterwarnings("ignore")  # of datasets
def test_rows_of_the_hub_come_one_by_one(tmp_path, monkeypatch):
    """A folder named like a dataset of the Hub stands for one; `datasets` reads both in the same way."""
    (tmp_path / "owner" / "name").mkdir(parents=True)
    talk = [{"conversations": [{"value": f"Q {n}"}, {"value": f"#### {n}"}]} for n in range(3)]
    write(tmp_path / "owner" / "name" / "test.jsonl", talk)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names = dict(problem="conversations.0.value", solution="conversations.1.value")
    made, _ = fetched(tmp_path, data="owner/name", split="test", **names)
    assert [(row["problem"], row["answer"]) for row in made] == [(f"Q {n}", str(n)) for n in range(3)]


def test_the_hub_gets_the_settings_of_the_source(monkeypatch):
    datasets, asked = pytest.importorskip("datasets"), []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: asked.append((args, options)) or [])
    assert list(opened(Source("owner/name", subset="main", split="test", revision="1a2b"))) == []
    assert asked == [(("owner/name",), dict(split="test", streaming=True, name="main", revision="1a2b"))]


@pytest.mark.parametrize(
    ("content", "source", "code", "field", "value"),
    [
        ([], {}, "no-data", "source", "s "),
        ([{"q": "Q"}], {}, "bad-data", "problem of source s", "fields q in"),
        ([{"q": ["Q"]}], {"problem": "q.1"}, "bad-data", "problem of source s", "fields q in .*line 1"),
        ([{"problem": "Q"}], {"answer": "key"}, "bad-data", "answer of source s", "fields problem in"),
        ([{"problem": ""}, {"problem": "P"}], {}, "no-data", "source s", "none of 2"),
    ],
)
def test_sources_that_cannot_be_used(content, source, code, field, value, tmp_path):
    path = write(tmp_path / "a.jsonl", content)
    with raises(code, field, value):
        fetched(tmp_path, data=str(path), **source)


def test_a_file_that_is_not_there(tmp_path):
    with raises("not-found", "data", "which does not exist"):
        check(Source(str(tmp_path / "none.jsonl")))


def test_a_broken_line_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"problem": "P", "answer": "1"}\n{"problem": \n')
    with raises("bad-data", "data", r"a\.jsonl line 2"):
        fetched(tmp_path, data=str(tmp_path / "a.jsonl"))


def test_a_digit_that_is_no_number_reaches_nowhere(tmp_path):
    """Python takes ² for a digit, and for no number."""
    source = Source(str(write(tmp_path / "a.jsonl", [{"problem": ["1"]}])), problem="problem.²")
    with raises("bad-data", "problem of source a"):
        check(source)
