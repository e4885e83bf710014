"""One answer out of several samples: by likelihood, and by vote."""

from tests.raising import raises
from ttcnet.evaluate.analysis.selection import Vote, best_of
from ttcnet.tasks.jsonl import JsonLines

TASK = JsonLines("sums.jsonl")  # which is not read


def line(sample, answer, verdict="wrong", logprob=-1.0, problem=1):
    told = dict(problem=problem, sample=sample, horizon=8, answer=answer, verdict=verdict, mean_logprob=logprob)
    return told | dict(new_tokens=10, seconds=0.5, note="")


def test_best_of_n_is_the_likeliest():
    samples = [line(0, "1", logprob=-0.5), line(1, "2", logprob=-0.2), line(2, "3", logprob=-0.9)]
    assert best_of(samples)["answer"] == "2"
    assert best_of(samples[:1])["answer"] == "1"
    with raises("conflict", "best-of-n"):
        best_of([line(0, "1", logprob=None)])
    nothing = line(0, None, logprob=None) | {"new_tokens": 0}
    assert best_of([nothing, *samples[2:]])["answer"] == "3"
    assert best_of([nothing]) == nothing


def test_votes_count_equal_answers_together():
    said = ["3", r"\frac{1}{2}", "0.5", None, "3", r"\frac{2}{4}"]
    samples = [line(sample, answer) for sample, answer in enumerate(said)]
    vote = Vote({1: samples}, TASK)
    assert vote.winner(samples)["sample"] == 1  # a half, in three words
    assert vote.winner(samples[:5])["sample"] == 0  # two against two: the earlier one
    assert vote.winner(samples[3:4])["sample"] == 3
    assert vote.winner([line(0, None)])["answer"] is None


def test_votes_count_answers_that_the_task_calls_the_same():
    class Lengths:
        name = "lengths"

        def same(self, one, other):
            return len(one) == len(other)

    samples = [line(sample, answer) for sample, answer in enumerate(["a", "bb", "cc", "d", "ee"])]
    assert Vote({1: samples}, Lengths()).winner(samples)["answer"] == "bb"
