"""The client of chat servers, against a server that drops, stalls and errs."""

import json
import socket
import time
from itertools import pairwise

import pytest

from tests.fake_server import answer, serving
from tests.raising import raises
from ttcnet.chat_client import Choice, Endpoint, Failed, Reply, Request

HELLO = Request([{"role": "user", "content": "hello"}], max_tokens=8)


def endpoint(url, **changes):
    return Endpoint(url, **{"model": "tiny", "pause": 0.01, "attempts": 3, "limit": 5.0} | changes)


def ask(url, request=HELLO, **changes):
    with endpoint(url, **changes) as server:
        return server.ask(request)


def test_requests_and_replies():
    request = Request(HELLO.messages, 8, temperature=0.6, seed=5, n=2, stop=("\n",), logprobs=True)
    with serving(lambda *_: answer("a", "b", logprob=-0.5)) as (url, seen):
        reply = ask(url, request)
    assert seen == [
        {"model": "tiny", "messages": HELLO.messages, "max_tokens": 8, "temperature": 0.6, "n": 2, "seed": 5}
        | {"stop": ["\n"], "include_stop_str_in_output": True, "logprobs": True}
    ]
    assert isinstance(reply, Reply)
    assert reply.choices == [Choice("a", "stop", -0.5), Choice("b", "stop", -0.5)]
    assert (reply.prompt_tokens, reply.new_tokens) == (7, 6)


@pytest.mark.parametrize("trouble", ["drop", "tear", 500, 503, 429, 0.4, {"choices": []}, {"oh": "no"}], ids=str)
def test_trouble_is_met_with_another_try(trouble):
    with serving(lambda _, number: trouble if number < 3 else answer("at last")) as (url, seen):
        reply = ask(url, limit=0.2)
    assert isinstance(reply, Reply)
    assert reply.choices[0].text == "at last"
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("trouble", "words"), [("drop", "disconnected"), (500, "status 500"), (0.4, "within 0.2 s"), (429, "429")]
)
def test_trouble_without_end_is_a_failure(trouble, words):
    with serving(lambda *_: trouble) as (url, seen):
        reply = ask(url, limit=0.2 if isinstance(trouble, float) else 5.0)
    assert isinstance(reply, Failed)
    assert words in reply.reason
    assert reply.attempts == len(seen) == 3


def test_a_bad_request_is_not_repeated():
    with serving(lambda *_: 400) as (url, seen):
        reply = ask(url)
    assert reply == Failed('status 400: {"error": "status 400 by script"}', 1)
    assert len(seen) == 1


def test_back_off_grows_and_heeds_the_server():
    def times(script, **changes):
        moments = []

        def timed(request, number):
            moments.append(time.monotonic())
            return script(request, number)

        with serving(timed) as (url, _):
            ask(url, **changes)
        return [later - sooner for sooner, later in pairwise(moments)]

    first, second = times(lambda *_: 500, pause=0.1)
    assert 0.075 <= first <= second
    assert second >= 0.15
    assert times(lambda *_: (429, {"Retry-After": "1"}), attempts=2)[0] >= 1.0


def test_many_at_once_and_one_that_fails():
    def script(request, _):
        text = request["messages"][0]["content"]
        return "drop" if text == "7" else answer(text)

    requests = [Request([{"role": "user", "content": str(k)}], 8) for k in range(40)]
    with serving(script) as (url, seen), endpoint(url, concurrent=8) as server:
        replies = dict(server.ask_all(requests))
    assert sorted(replies) == list(range(40))
    assert isinstance(replies.pop(7), Failed)
    assert all(reply.choices[0].text == str(number) for number, reply in replies.items())
    assert len(seen) == 39 + 3


def test_requests_run_side_by_side_and_are_taken_as_there_is_room():
    taken = []

    def requests():
        for number in range(8):
            taken.append(number)
            yield HELLO

    with serving(lambda *_: 0.3) as (url, _), endpoint(url, concurrent=4) as server:
        begin = time.monotonic()
        replies = server.ask_all(requests())
        next(replies)
        assert len(taken) == 4
        assert len(list(replies)) == 7
        assert time.monotonic() - begin < 1.5  # one after the other: 2.4


def test_answers_do_not_wait_for_stalled_requests():
    with serving(lambda _, number: 3.0 if number == 1 else answer("fast")) as (url, _):
        begin = time.monotonic()
        with endpoint(url, concurrent=4) as server:
            groups = server.ask_in_groups([HELLO] * 6, 0.3)
            first = next(groups)
            assert time.monotonic() - begin < 2.0
            assert len(first) == 5
            assert len(next(groups)) == 1
            assert list(groups) == []


def test_leaving_early_does_not_wait():
    with serving(lambda _, number: answer("fast") if number == 1 else 3.0) as (url, _):
        begin = time.monotonic()
        with endpoint(url, concurrent=4) as server:
            next(server.ask_all([HELLO] * 8))
        assert time.monotonic() - begin < 1.0


def connect(url, model=""):
    with Endpoint(url, model) as server:
        return server.connect().model


def test_connecting_settles_on_the_model_of_the_server():
    with serving(lambda *_: answer("x"), model="only") as (url, _):
        assert connect(url) == connect(url, "only") == "only"
        with raises("unknown-name", "model", "'other'"):
            connect(url, "other")
        with raises("server", "server"):
            connect(url.removesuffix("/v1"))
    with raises("server", "server"):
        connect(url)
    with raises("format", "server"):
        Endpoint("localhost:8000")


@pytest.mark.parametrize("url", ["http://localhost:port/v1", "http://[::1/v1", "http://", "https:///v1"])
def test_addresses_that_are_none(url):
    with raises("format", "server"):
        Endpoint(url)


@pytest.mark.parametrize("changes", [{"concurrent": 0}, {"attempts": 0}])
def test_numbers_that_would_ask_nothing(changes):
    with raises("too-small", next(iter(changes)), "0"):
        endpoint("http://localhost:8000/v1", **changes)


def test_a_server_that_stalls_is_an_error_soon(monkeypatch):
    monkeypatch.setattr("ttcnet.chat_client.GREETING", 0.2)
    said = raises("server", "server", r"no answer within 0\.2 s")
    with socket.create_server(("127.0.0.1", 0)) as silent, said:  # takes the connection, and says nothing
        connect(f"http://127.0.0.1:{silent.getsockname()[1]}/v1")


def test_half_letters():
    """JSON can hold them, and files cannot: they are sent as they are, and replaced in answers, as tokenizers do."""
    half = json.loads('"\\ud83d!"')
    with serving(lambda *_: answer(half + json.loads('"\\ud83d\\ude00"'))) as (url, seen):
        reply = ask(url)
        asked = ask(url, Request([{"role": "user", "content": half}], 8))
    assert reply.choices[0].text == "\ufffd!\U0001f600"
    assert isinstance(asked, Reply)
    assert seen[1]["messages"][0]["content"] == half


DEEP = b"[" * 200_000 + b"]" * 200_000
ODD = {
    "deep": DEEP,
    "deep inside": b'{"choices": ' + DEEP + b"}",
    "many digits": b'{"choices": ' + b"9" * 5000 + b"}",
    "a list": [],
    "no bytes": b"",
    "no text": answer(5),
    "parts of a text": answer([{"type": "text", "text": "1"}]),
    "no reason to end": answer("1", finish=None),
    "a number as reason": answer("1", finish=5),
    "half a letter as reason": answer("1", finish="\ud800"),
    "usage as list": answer("1") | {"usage": [1]},
    "usage as text": answer("1") | {"usage": "x"},
    "usage of a text": answer("1") | {"usage": {"prompt_tokens": "x", "completion_tokens": 2}},
    "usage of a truth": answer("1") | {"usage": {"prompt_tokens": 3, "completion_tokens": True}},
    "usage of a fraction": answer("1") | {"usage": {"prompt_tokens": 3, "completion_tokens": 0.5}},
    "usage below zero": answer("1") | {"usage": {"prompt_tokens": -3, "completion_tokens": 2}},
    "usage beyond measure": answer("1") | {"usage": {"prompt_tokens": 3, "completion_tokens": 10**300}},
    "likelihood of a text": answer("1", logprob="x"),
    "likelihood beyond measure": answer("1", logprob=10**400),
}


@pytest.mark.parametrize("what", ODD)
def test_odd_answers_are_failures_with_a_reason(what):
    body = ODD[what] if isinstance(ODD[what], bytes) else json.dumps(ODD[what]).encode()
    with serving(lambda *_: body) as (url, seen):
        reply = ask(url, attempts=2)
    assert isinstance(reply, Failed)
    assert reply.reason
    assert len(seen) == 2


def test_a_server_need_not_count():
    for usage in (None, {}, {"prompt_tokens": None}):
        with serving(lambda *_, usage=usage: answer("1") | {"usage": usage}) as (url, _):
            reply = ask(url)
        assert (reply.choices[0].text, reply.prompt_tokens, reply.new_tokens) == ("1", None, None)


@pytest.mark.parametrize(
    "models",
    [DEEP, b"[1]", b"5", b"{}", {"data": 5}, {"data": [5]}, {"data": [{"id": 1}, {"id": 2}]}, {"data": [{"id": None}]},
     b'{"data": [{"id": "\\ud800"}]}'],
    ids=lambda models: repr(models)[:40],
)  # fmt: skip
def test_odd_lists_of_models_are_errors(models):
    with serving(lambda *_: answer("1"), model=models) as (url, _), raises("server", "server"):
        connect(url, "m")


def test_an_answer_without_end_is_not_kept(monkeypatch):
    monkeypatch.setattr("ttcnet.chat_client.LARGEST", 10_000)
    with serving(lambda *_: answer("x" * 20_000)) as (url, seen):
        reply = ask(url)
    assert isinstance(reply, Failed)
    assert "more than 10,000 bytes" in reply.reason
    assert len(seen) == 1
