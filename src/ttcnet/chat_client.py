"""A client for servers that speak OpenAI's chat protocol, such as vLLM's. It sends many requests at once, with time
limits. A request that drops, stalls or is refused is tried again after growing pauses, and in the end returns
`Failed`."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from .errors import fail
from .extras import require
from .storage.reading import is_unicode

KEY = "OPENAI_API_KEY"  # the environment variable with the key, for servers that ask for one
LONGEST_PAUSE = 60.0
LARGEST = 2**26  # bytes of an answer
ODD = (KeyError, TypeError, AttributeError, ValueError, OverflowError)  # raised by an answer of another format
GREETING = 30.0  # seconds for a server to list its models


@dataclass(frozen=True)
class Request:
    """`n` answers to a conversation, greedily at temperature 0. They end after any text in `stop`, which is part of
    them, and continue from `prefix`, which is not. `stop` and `prefix` are parameters of vLLM."""

    messages: list[dict[str, str]]
    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    prefix: str = ""


@dataclass(frozen=True)
class Choice:
    """One answer, why it ended ("stop", "length", ...), and the mean log-likelihood of its tokens, if asked for."""

    text: str
    finish: str
    mean_logprob: float | None = None


@dataclass(frozen=True)
class Reply:
    """The answers. Tokens are those that the server counted, over all answers; None if it did not count."""

    choices: list[Choice]
    prompt_tokens: int | None
    new_tokens: int | None
    seconds: float


@dataclass(frozen=True)
class Failed:
    """Stands for an answer that did not come, and says why."""

    reason: str
    attempts: int


class _RefusedError(Exception):
    """The server refused the request; another try would get the same answer."""


class _PassingError(Exception):
    """A failure that may pass: try again, after a pause that the server may ask for."""

    def __init__(self, reason: str, pause: float = 0.0) -> None:
        super().__init__(reason)
        self.pause = pause


@dataclass
class Endpoint:
    """A model on a server. Close it, or use it in a `with` block.

    Args:
        url: such as "http://localhost:8000/v1".
        model: its name there; if not given, the only model of the server.
        concurrent: requests in flight.
        limit: seconds from sending a request to having its answer.
        attempts: of a request, before it counts as failed.
        pause: seconds before the second attempt; twice as many before each further one.
    """

    url: str
    model: str = ""
    concurrent: int = 64
    limit: float = 600.0
    attempts: int = 5
    pause: float = 1.0
    _client: Any = field(init=False, repr=False)
    _loop: asyncio.AbstractEventLoop = field(init=False, repr=False)
    _thread: threading.Thread = field(init=False, repr=False)

    def __post_init__(self) -> None:
        httpx = require("httpx", "eval", "Asking a server")
        self.url = self.url.rstrip("/")
        try:
            address = httpx.URL(self.url)
        except httpx.InvalidURL:
            address = httpx.URL()
        if address.scheme not in ("http", "https") or not address.host:
            fail("server", "must be an address", repr(self.url), "Pass it as in http://localhost:8000/v1.", "format")
        for name in ("concurrent", "attempts"):
            if getattr(self, name) < 1:
                fail(name, "must be 1 or more", getattr(self, name), "Pass a larger number.", "too-small")
        key = os.environ.get(KEY)
        self._loop = asyncio.new_event_loop()
        self._client = httpx.AsyncClient(
            headers={"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=httpx.Timeout(None, connect=10.0),  # a whole request has another limit
            limits=httpx.Limits(max_connections=self.concurrent),
        )
        # requests have their own thread, so that slow code of the caller does not delay them
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up requests in flight, and close the connections."""
        self._submit(self._leave()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def connect(self) -> Endpoint:
        """Ask for the server's models, and choose one; an error if the server or the model is not there."""
        try:
            body = self._submit(self._once("GET", "/models", None, min(self.limit, GREETING))).result()
            names = [_text(entry["id"]) for entry in body["data"]]
        except (_RefusedError, _PassingError, *ODD) as error:
            remedy = "Start it, or correct the address, which usually ends in /v1."
            fail("server", "must answer", f"{self.url}: {error}", remedy, "server")
        if not self.model and len(names) == 1:
            self.model = names[0]
        if self.model not in names:
            rule = f"must be one that {self.url} serves: {', '.join(names)}"
            fail("model", rule, repr(self.model), "Name one.", "unknown-name")
        return self

    def ask(self, request: Request) -> Reply | Failed:
        """One request, tried again up to `attempts` times."""
        return self._submit(self._persistently(request)).result()

    def ask_all(self, requests: Iterable[Request]) -> Iterator[tuple[int, Reply | Failed]]:
        """Ask many requests at once. Yields answers as they arrive, each with the number of its request, from 0.
        Requests are taken from the iterable when there is room."""
        for group in self.ask_in_groups(requests, 0.0):
            yield from group

    def ask_in_groups(self, requests: Iterable[Request], seconds: float) -> Iterator[list[tuple[int, Reply | Failed]]]:
        """Ask all requests, and yield answers in groups: those that arrive within `seconds` of each other."""
        source = enumerate(requests)
        running: dict[Future[Reply | Failed], int] = {}
        group, end = list[tuple[int, Reply | Failed]](), 0.0
        try:
            while True:
                for number, request in islice(source, self.concurrent - len(running)):
                    running[self._submit(self._persistently(request))] = number
                left = max(end - time.monotonic(), 0.0) if group else None
                for done in wait(running, left, FIRST_COMPLETED).done:
                    end = end if group else time.monotonic() + seconds
                    group.append((running.pop(done), done.result()))
                if group and (time.monotonic() >= end or not running):
                    yield group
                    group = []
                elif not running:
                    return
        finally:
            for unfinished in running:
                unfinished.cancel()

    async def _leave(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.aclose()

    def _submit(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _persistently(self, request: Request) -> Reply | Failed:
        for attempt in range(1, self.attempts + 1):
            begin = time.monotonic()
            try:
                body = await self._once("POST", "/chat/completions", _payload(request, self.model), self.limit)
                return _reply(body, request.n, time.monotonic() - begin)
            except _RefusedError as error:
                return Failed(str(error), attempt)
            except _PassingError as error:
                if attempt == self.attempts:
                    return Failed(str(error), attempt)
                doubled = self.pause * 2 ** (attempt - 1) * random.uniform(0.75, 1.25)
                await asyncio.sleep(min(max(doubled, error.pause), LONGEST_PAUSE))
        raise AssertionError("attempts is positive")

    async def _once(self, method: str, path: str, payload: Any, limit: float) -> dict[str, Any]:
        """The server's answer to one attempt, as JSON."""
        import httpx

        sent = None if payload is None else json.dumps(payload)  # encoded here: httpx cannot send half a letter
        content = bytearray()
        try:
            async with (
                asyncio.timeout(limit),
                self._client.stream(method, self.url + path, content=sent) as response,
            ):
                async for part in response.aiter_bytes():
                    content += part
                    if len(content) > LARGEST:
                        raise _RefusedError(f"an answer of more than {LARGEST:,} bytes")
        except (TimeoutError, httpx.TimeoutException) as error:
            raise _PassingError(f"no answer within {limit:g} s") from error
        except httpx.RequestError as error:
            raise _PassingError(f"{type(error).__name__} {error}".rstrip()) from error
        status, said = response.status_code, content.decode("utf-8", "replace")
        if status in (408, 429) or status >= 500:
            raise _PassingError(f"status {status}: {said[:200]}", _seconds(response.headers.get("Retry-After")))
        if status != 200:
            raise _RefusedError(f"status {status}: {said[:500]}")
        try:
            body: dict[str, Any] = json.loads(said)
        except (ValueError, RecursionError) as error:
            raise _PassingError(f"no JSON: {said[:200]!r}") from error
        return body


def _payload(request: Request, model: str) -> dict[str, Any]:
    payload: dict[str, Any] = {"model": model, "messages": request.messages, "max_tokens": request.max_tokens}
    payload |= {"temperature": request.temperature, "n": request.n}
    if request.seed is not None:
        payload["seed"] = request.seed
    if request.stop:
        payload |= {"stop": list(request.stop), "include_stop_str_in_output": True}
    if request.logprobs:
        payload["logprobs"] = True
    if request.prefix:
        payload["messages"] = [*request.messages, {"role": "assistant", "content": request.prefix}]
        payload |= {"continue_final_message": True, "add_generation_prompt": False}
    return payload


def _reply(body: dict[str, Any], wanted: int, seconds: float) -> Reply:
    try:
        choices = [_choice(entry) for entry in body["choices"]]
        usage = body.get("usage") or {}
        asked, written = (_count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
    except ODD as error:
        raise _PassingError(f"no answer in {str(body)[:200]}") from error
    if len(choices) != wanted:
        raise _PassingError(f"{len(choices)} answers where {wanted} were asked for")
    return Reply(choices, asked, written, seconds)


def _choice(entry: dict[str, Any]) -> Choice:
    tokens = (entry.get("logprobs") or {}).get("content") or []
    mean = sum(float(token["logprob"]) for token in tokens) / len(tokens) if tokens else None
    text = (entry["message"]["content"] or "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return Choice(text, _text(entry["finish_reason"]), mean)  # half a letter is replaced, as tokenizers do


def _text(value: Any) -> str:
    """A value from a server, if it is a text that can be written."""
    if not isinstance(value, str) or not is_unicode(value):
        raise TypeError(f"{value!r:.40} where a text belongs")
    return value


def _count(value: Any) -> int | None:
    """Check that a value of a reply is a number of tokens, or None."""
    if value is None or (type(value) is int and 0 <= value < 2**53):
        return value
    raise TypeError(f"{value!r:.40} where a number of tokens belongs")


def _seconds(header: str | None) -> float:
    """The seconds that Retry-After asks for, if it gives seconds."""
    return float(header) if header and header.strip().isdecimal() else 0.0
