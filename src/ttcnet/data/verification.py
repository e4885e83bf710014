"""Verification: a model solves every problem several times, and rows whose answer it finds often enough are kept. A row
without a solution gets the model's first right one.

A round asks for one answer to every row, with its own seeds, and leaves out rows whose verdict is clear. Every answer
is written down at once, so that a killed run resumes with the next.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttcnet.chat_client import Endpoint, Failed, Request
from ttcnet.errors import fail
from ttcnet.run_folder import check_settings
from ttcnet.storage.reading import check_fields
from ttcnet.tasks.math import verdict
from ttcnet.tasks.math.prompts import COT

from .settings import Verify, fixed
from .stages import Content, Stage
from .text import digest

LOG = "verify.log.jsonl"
REPLACED = "\ufffd"  # stands for half a letter
STRIKES = 3  # failed requests, before a row is given up
SILENCE = 100  # failed requests in a row, for any rows, before the server is given up


@dataclass(slots=True)
class Tally:
    """The answers to a row so far."""

    asked: int = 0
    agreed: int = 0
    failed: int = 0
    solution: int | None = None  # place in the log

    def clear(self, settings: Verify) -> bool:
        """Whether more answers would change nothing."""
        left = settings.rounds - self.asked
        return self.failed >= STRIKES or self.agreed >= settings.agree or self.agreed + left < settings.agree

    def rounds(self, settings: Verify) -> int:
        """How many rounds it has finished, including those that it can skip."""
        return settings.rounds if self.clear(settings) else self.asked


def _entry(path: Path, line: bytes, is_answer: bool) -> Content:
    """A line of the log, checked."""
    entry, remedy = None, f"Take the line out, or remove {path} to start verification anew."
    with suppress(ValueError, RecursionError):
        entry = json.loads(line)
    place = f"{path}: {line[:40].decode('utf-8', 'replace')!r}"
    failed = isinstance(entry, dict) and "failed" in entry
    kinds: dict[str, type] = {} if not is_answer else dict(id=str, refused=bool) if failed else dict(id=str, right=bool)
    check_fields(place, entry, remedy, **kinds)
    return entry or {}


class Log:
    """The settings, then all answers so far, one on each line, and their counts. An incomplete last line is removed."""

    def __init__(self, path: Path, settings: Verify) -> None:
        self.tallies: dict[str, Tally] = {}
        self.answers, self._settings = 0, fixed(settings)
        self._file = path.open("a+b")
        self._file.seek(0)
        whole = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            entry = _entry(path, line, whole > 0)
            if whole:
                self._count(entry, whole)
            else:
                if entry != self._settings:
                    self._file.close()
                remedy = f"Give the settings that it was started with, or remove {path} to start verification anew."
                check_settings(path, entry, self._settings, "verification", field="verify", remedy=remedy)
            whole += len(line)
        self._file.truncate(whole)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def tally(self, name: str) -> Tally:
        return self.tallies.get(name, Tally())

    def add(self, entry: Content) -> None:
        if self._file.seek(0, os.SEEK_END) == 0:
            self._write(self._settings)
        self._count(entry, self._write(entry))

    def _write(self, entry: Content) -> int:
        place = self._file.seek(0, os.SEEK_END)
        self._file.write(json.dumps(entry).encode() + b"\n")
        self._file.flush()
        return place

    def solution(self, place: int) -> str:
        self._file.seek(place)
        text: str = json.loads(self._file.readline())["solution"]
        return text

    def _count(self, entry: Content, place: int) -> None:
        tally = self.tallies.setdefault(entry["id"], Tally())
        if "failed" in entry:
            tally.failed += STRIKES if entry["refused"] else 1
            return
        self.answers += 1
        tally.asked += 1
        tally.agreed += entry["right"]
        if "solution" in entry:
            tally.solution = place


def verify(stage: Stage, settings: Verify) -> None:
    """Ask for every row until its verdict is clear, then keep or drop it."""
    with Log(stage.folder / LOG, settings) as log:
        behind = [log.tally(row["id"]).rounds(settings) for row in stage.peek() if row["answer"] is not None]
        if sum(behind) < settings.rounds * len(behind):
            stage.bar.begin(settings.rounds * len(behind), sum(behind))
            with Endpoint(settings.url, settings.model, settings.concurrent) as server:
                server.connect()
                while _round(stage, settings, log, server):
                    pass
        for row in stage.peek():
            stage.read += 1
            tally = log.tally(row["id"])
            if row["answer"] is None:
                stage.drop(row["id"], "no answer to verify")
            elif tally.failed >= STRIKES:
                stage.drop(row["id"], "no reply")
            elif tally.agreed < settings.agree:
                stage.drop(row["id"], "not agreed", agreed=tally.agreed, rounds=tally.asked)
            else:
                if row["solution"] is None and tally.solution is not None:
                    row["solution"] = log.solution(tally.solution)
                    stage.notes["solutions by the model"] += 1
                stage.keep(row)


def _round(stage: Stage, settings: Verify, log: Log, server: Endpoint) -> bool:
    """Ask for one more answer to every row that needs it. Returns whether there was any."""
    waiting: dict[int, Content] = {}
    silent: list[Content] = []  # failures since the last answer

    def requests() -> Iterator[Request]:
        rows = (row for row in stage.peek() if row["answer"] is not None)
        for number, row in enumerate(row for row in rows if not log.tally(row["id"]).clear(settings)):
            waiting[number] = row
            seed = digest([str(settings.seed), row["id"], str(log.tally(row["id"]).asked)]) % 2**31
            messages = [{"role": "user", "content": f"{row['problem']}\n\n{COT}"}]
            yield Request(messages, settings.max_tokens, settings.temperature, seed)

    def note(*entries: Content) -> None:
        for entry in entries:
            before = log.tally(entry["id"]).rounds(settings)
            log.add(entry)
            stage.bar.advance(log.tally(entry["id"]).rounds(settings) - before)

    asked = answered = 0
    for number, reply in server.ask_all(requests()):
        row, asked = waiting.pop(number), asked + 1
        if isinstance(reply, Failed):
            silent.append({"id": row["id"], "failed": reply.reason, "refused": reply.attempts == 1})
            if len(silent) == SILENCE:
                break
        else:  # the server works, so failures count against their rows
            note(_judged(row, reply.choices[0].text, log.tally(row["id"])), *silent)
            silent.clear()
            answered += 1
    if silent:
        lost = len(silent) == SILENCE or not log.answers
        if not lost:
            server.connect()  # an error if the server is not there
            note(*silent)
            lost = not answered and any(not log.tally(failure["id"]).clear(settings) for failure in silent)
        if lost:
            remedy = (
                f"Repair it, and give the command again: answers are kept. After {STRIKES} failures a row is dropped."
            )
            fail("server", "must answer", f"{settings.url}: {silent[-1]['failed']}", remedy, "server")
    return asked > 0


def _judged(row: Content, text: str, tally: Tally) -> Content:
    found = verdict(row["answer"], text)
    entry: dict[str, Any] = {"id": row["id"], "round": tally.asked + 1, "right": found.right, "answer": found.answer}
    if found.right and row["solution"] is None and tally.solution is None and REPLACED not in text:
        entry["solution"] = text
    return entry
