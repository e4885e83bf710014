"""Verification, against a server on this machine: who is asked, how often, and what becomes of it."""

import json
import re

import pytest

from tests.data.made import read, rows, write
from tests.fake_server import answer, serving
from tests.raising import raises
from ttcnet.data import verification
from ttcnet.data.run import run
from ttcnet.data.settings import Settings, Source, Verify

REFUSED = 400


def number(request):
    """Problems of these tests ask for the number that they have in them."""
    return int(re.search(r"number (\d+)", request["messages"][0]["content"])[1])


def content(count, **changes):
    return [{"problem": f"Which is the number {n}?", "answer": str(n), "solution": "S"} | changes for n in range(count)]


@pytest.fixture
def verified(tmp_path):
    def made(url, data, folder="run", **changes):
        source = Source(str(write(tmp_path / "a.jsonl", data)))
        options = dict(model="tiny", url=url, rounds=4, agree=3, concurrent=4) | changes
        run(Settings(str(tmp_path / folder), [source], verify=Verify(**options)))
        counts = json.loads((tmp_path / folder / "counts.json").read_text())["stages"]["verify"]
        return [row["id"] for row in read(tmp_path / folder / "data.jsonl")], counts

    return made


def test_rows_are_kept_by_how_often_the_model_agrees(verified):
    """The model finds the number n in the first n rounds, and then no more."""
    asked = {}

    def script(request, _):
        n = number(request)
        asked.setdefault(n, []).append(request["seed"])
        return answer(rf"So it is $\boxed{{{n if len(asked[n]) <= n else -1}}}$.")

    with serving(script) as (url, seen):
        left, counts = verified(url, content(6))
    assert left == ["a/4", "a/5", "a/6"]
    assert counts["dropped"] == {"not agreed": 3}
    # no more rounds than the verdict needs: two wrong of four are enough, and so are three right
    assert {n: len(seeds) for n, seeds in asked.items()} == {0: 2, 1: 3, 2: 4, 3: 3, 4: 3, 5: 3}
    assert len({seed for seeds in asked.values() for seed in seeds}) == len(seen)  # independent rounds
    assert all(request["temperature"] == 1.0 and request["model"] == "tiny" for request in seen)


def test_answers_are_compared_as_mathematics(verified):
    data = [{"problem": "Which is the number 0?", "answer": r"\frac{1}{2}", "solution": "S"}]
    with serving(lambda *_: answer(r"It is \boxed{0.5}.")) as (url, _):
        assert verified(url, data)[0] == ["a/1"]


def test_a_solution_that_is_missing_is_the_models_first_right_one(verified, tmp_path):
    texts = iter([r"Bad: \boxed{7}", r"Good: \boxed{0}", r"Also good: \boxed{0}"])
    with serving(lambda *_: answer(next(texts))) as (url, _):
        left, counts = verified(url, content(1, solution=None), rounds=3, agree=2, concurrent=1)
    assert left == ["a/1"]
    assert counts["notes"] == {"solutions by the model": 1}
    assert read(tmp_path / "run" / "data.jsonl")[0]["solution"] == r"Good: \boxed{0}"


def test_half_a_letter_of_the_model_is_no_solution(verified, tmp_path):
    texts = iter(["\ud835 #### 0", "#### 0"])
    with serving(lambda *_: answer(next(texts))) as (url, _):
        verified(url, content(1, solution=None), rounds=2, agree=2)
    assert read(tmp_path / "run" / "data.jsonl")[0]["solution"] == "#### 0"


def test_rows_without_an_answer_are_not_asked_for(verified):
    data = [*content(2), {"problem": "Which is the number 2?", "solution": "Who knows."}]
    with serving(lambda request, _: answer(rf"\boxed{{{number(request)}}}")) as (url, seen):
        left, counts = verified(url, data, rounds=1, agree=1)
    assert left == ["a/1", "a/2"]
    assert counts["dropped"] == {"no answer to verify": 1}
    assert len(seen) == 2


def test_a_row_that_the_server_refuses_is_dropped_and_told(verified, tmp_path):
    def script(request, _):
        return REFUSED if number(request) == 1 else answer(rf"\boxed{{{number(request)}}}")

    with serving(script) as (url, seen):
        left, counts = verified(url, content(3))
    assert left == ["a/1", "a/3"]
    assert counts["dropped"] == {"no reply": 1}
    assert sum(number(request) == 1 for request in seen) == 1
    assert "status 400" in (tmp_path / "run" / verification.LOG).read_text()


@pytest.fixture
def hasty(monkeypatch):
    made = verification.Endpoint
    monkeypatch.setattr(verification, "Endpoint", lambda *args: made(*args, attempts=2, pause=0.001))


def test_a_row_that_gets_no_reply_has_three_chances(verified, hasty):
    def script(request, _):
        return "drop" if number(request) == 1 else answer(rf"\boxed{{{number(request)}}}")

    with serving(script) as (url, seen):
        left, counts = verified(url, content(3))
    assert left == ["a/1", "a/3"]
    assert counts["dropped"] == {"no reply": 1}
    assert sum(number(request) == 1 for request in seen) == 3 * 2


def test_a_server_that_fails_stops_the_run_which_then_resumes(verified, hasty, monkeypatch, tmp_path):
    """It answers ten times, and then no more; no answer is asked for twice, and none is taken for a wrong one."""
    monkeypatch.setattr(verification, "SILENCE", 5)

    def script(request, count):
        return answer(rf"\boxed{{{number(request)}}}") if count <= 10 else 500

    with serving(script) as (url, _), raises("server", "server", "status 500"):
        verified(url, content(12))
    log = read(tmp_path / "run" / verification.LOG)[1:]
    assert [line["right"] for line in log if "right" in line] == [True] * 10
    with serving(lambda request, _: answer(rf"\boxed{{{number(request)}}}")) as (url, seen):
        left, _ = verified(url, content(12))  # at another address
    assert len(left) == 12
    assert len(seen) == 12 * 3 - 10


def test_the_last_rows_are_not_given_up_at_once(verified, hasty):
    def script(request, count):
        return answer(rf"\boxed{{{number(request)}}}") if number(request) == 0 else "drop"

    with serving(script) as (url, seen):
        with raises("server", "server"):
            verified(url, content(2), rounds=1, agree=1)
        left, counts = verified(url, content(2), rounds=1, agree=1)
    assert left == ["a/1"]
    assert counts["dropped"] == {"no reply": 1}
    assert sum(number(request) == 0 for request in seen) == 1


@pytest.mark.parametrize("data", [content(2), content(7)])
def test_a_server_that_never_answers_drops_nothing(data, verified, hasty, monkeypatch, tmp_path):
    monkeypatch.setattr(verification, "SILENCE", 5)
    with serving(lambda *_: REFUSED) as (url, _), raises("server", "server", "status 400"):
        verified(url, data)
    assert read(tmp_path / "run" / verification.LOG) == []


def test_no_server(verified):
    with raises("server", "server"):
        verified("http://127.0.0.1:9/v1", content(1))


def test_a_line_that_was_cut_short_is_asked_for_again(verified, hasty, tmp_path):
    def script(request, count):
        return answer(rf"\boxed{{{number(request)}}}") if count <= 6 else 500

    with serving(script) as (url, _), pytest.raises(ConnectionError):
        verified(url, content(3), rounds=3, concurrent=1)
    log = tmp_path / "run" / verification.LOG
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:7])[:-4])
    with serving(lambda request, _: answer(rf"\boxed{{{number(request)}}}")) as (url, seen):
        left, _ = verified(url, content(3), rounds=3, concurrent=1)
    assert left == ["a/1", "a/2", "a/3"]
    assert len(seen) == 3 * 3 - 6 + 1
    assert len(read(log)) == 1 + 9


def test_answers_under_other_settings_are_not_mixed(verified, hasty):
    with serving(lambda request, count: answer("#### 0") if count == 1 else 500) as (url, _):
        with pytest.raises(ConnectionError):
            verified(url, content(1))
        with raises("settings-changed", "verify", r"'rounds': \(\d, 5\)"):
            verified(url, content(1), rounds=5)


def test_made_up_rows_pass_from_end_to_end(verified):
    """The answers were made by hand; a wrong label is found out."""
    data = rows(20)
    right = {row["problem"]: row["answer"] for row in data}
    data[3]["answer"] = "1000"

    def script(request, _):
        return answer(f"#### {right[request['messages'][0]['content'].partition(chr(10))[0]]}")

    with serving(script) as (url, _):
        left, _ = verified(url, data, rounds=2, agree=2)
    assert left == [f"a/{n}" for n in range(1, 21) if n != 4]
