"""Spell a word backwards."""

from statistics import fmean

from ttcnet.tasks import Example, Task, Verdict
from ttcnet.tasks.statistics import accuracy

WORDS = ("planning", "horizon", "costate", "quadratic", "riccati")


class Backwards(Task):
    name = "backwards"
    max_tokens = 64
    system = "Think step by step. End with the answer, a single word."
    system_no_cot = "Reply with a single word."

    def examples(self):
        return [Example(number, word, word[::-1]) for number, word in enumerate(WORDS, 1)]

    def prompt(self, example):
        return f"Spell the word {example.text} backwards."

    def grade(self, example, text):
        words = text.split()
        if not words:
            return Verdict(False, None, "the answer is empty", {"letters": 0.0})
        answer = words[-1].strip(".").lower()
        letters = sum(one == other for one, other in zip(answer, example.answer, strict=False))
        scores = {"letters": letters / len(example.answer)}
        return Verdict(answer == example.answer, answer, scores=scores)

    def metrics(self, verdicts, samples):
        letters = [fmean(verdict.scores["letters"] for verdict in each) for each in verdicts]
        return super().metrics(verdicts, samples) | {"letters": accuracy(letters)}


task = Backwards()
