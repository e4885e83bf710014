"""Engines that answer by a script, and small models and files for the command line."""

import json
from dataclasses import asdict

from typer.testing import CliRunner

import ttcnet.adapter as adapter
from tests.train import tiny
from ttcnet.cli import app
from ttcnet.evaluate.engines.base import Answer, unwatched


class Scripted:
    """Answers `say(ask, horizon)`, a text or an Answer, in groups of `size`; may break after so many groups."""

    def __init__(self, say, size=3, plans=True, breaks=None):
        self.say, self.size, self.plans, self.breaks = say, size, plans, breaks
        self.asked, self.options = [], []

    def facts(self):
        return {"model": "scripted"}

    def check(self, asks, max_tokens):
        pass

    def answers(self, asks, how, watch=unwatched):
        self.options.append(asdict(how))
        for group, start in enumerate(range(0, len(asks), self.size)):
            if group == self.breaks:
                raise KeyboardInterrupt
            numbers = range(start, min(start + self.size, len(asks)))
            self.asked += [asks[number] for number in numbers]
            watch(len(numbers) / 2)
            yield [(number, self._answer(self.say(asks[number], how.horizon))) for number in numbers]

    @staticmethod
    def _answer(said):
        return Answer(said, 5, len(said.split()), "stop", -1.0) if isinstance(said, str) else said


def write(path, *rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def sums(path, count=6):
    return write(path, *[{"problem": f"{k} + 1 = ?", "answer": str(k + 1)} for k in range(count)])


def model_folder(folder, ttc=False, room=64):
    net = tiny.model(max_position_embeddings=room)
    if ttc:
        sizes = dict(every=2, heads=2, state_size=8, rank=4)
        net = adapter.insert(net, adapter.TTCAdapterConfig(zero_init=False, **sizes))
    net.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def ttcnet(*words, code=0):
    result = CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "120"})
    assert result.exit_code == code, result.output
    return result.output
