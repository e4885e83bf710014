"""Alignment of plans with chains of thought, against all paths by hand and all states by hand."""

import json
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import ttcnet.adapter as adapter
from tests.adapter.bases import wake
from tests.raising import raises, told
from tests.train import tiny
from ttcnet.cli import app
from ttcnet.evaluate.analysis.alignment import path_mean, similarity, summary
from ttcnet.evaluate.analysis.trajectories import Question, generated, questions, trajectories, written
from ttcnet.evaluate.runs.storage import Generations
from ttcnet.lqr import solve
from ttcnet.nn import ttc_layers
from ttcnet.storage.reading import Row, rows

STEPS = ((1, 0), (0, 1), (1, 1))
GENERATION = dict(
    verdict="wrong", answer=None, note="", new_tokens=1, prompt_tokens=1, seconds=0.0, mean_logprob=None
)  # what else an evaluation writes of each


def paths(end, so_far=((0, 0),)):
    """All monotone paths from the first cell to the last."""
    if so_far[-1] == end:
        yield so_far
    for step in STEPS:
        cell = (so_far[-1][0] + step[0], so_far[-1][1] + step[1])
        if cell[0] <= end[0] and cell[1] <= end[1]:
            yield from paths(end, (*so_far, cell))


def test_all_paths_are_tried():
    assert len([*paths((2, 2))]) == 13  # Delannoy's numbers
    assert len([*paths((4, 5))]) == 681
    assert all((b[0] - a[0], b[1] - a[1]) in STEPS for path in paths((2, 3)) for a, b in pairwise(path))


@pytest.mark.parametrize(("T", "L"), [(1, 1), (1, 5), (6, 1), (2, 2), (3, 6), (5, 4), (5, 5), (2, 7)])
def test_the_best_path_is_found(T, L):
    scores = 2 * torch.rand(3, 2, T, L, generator=torch.Generator().manual_seed(T * L), dtype=torch.float64) - 1
    for offset in (0.0, 3.0, -3.0):  # all good: longer paths have higher sums; all bad: shorter ones
        found = path_mean(scores + offset)
        for pair in torch.cartesian_prod(torch.arange(3), torch.arange(2)):
            cells = scores[tuple(pair)] + offset
            best = max(sum(cells[cell] for cell in path) / len(path) for path in paths((T - 1, L - 1)))
            torch.testing.assert_close(found[tuple(pair)], best)


def test_the_highest_sum_may_not_have_the_highest_mean():
    scores = torch.tensor([[1.0, 0.1], [0.1, 1.0]])
    assert path_mean(scores).item() == pytest.approx(1.0)  # the diagonal, and not 2.1 / 3


def test_similarity_is_the_cosine_and_knows_no_lengths():
    generator = torch.Generator().manual_seed(0)
    plans, states = torch.randn(4, 3, 8, generator=generator), torch.randn(6, 8, generator=generator)
    cosines = torch.stack([torch.stack([F.cosine_similarity(h, x, dim=0) for x in states]) for h in plans[2]])
    found = similarity(plans, states)
    assert found.shape == (4,)
    torch.testing.assert_close(found[2], path_mean(cosines))
    torch.testing.assert_close(similarity(3 * plans, 0.1 * states), found)
    torch.testing.assert_close(similarity(states, states), torch.tensor(1.0))


def test_intervals_are_over_questions():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(30, 30, generator=generator).double() + torch.eye(30)
    found = summary(matrix)
    own, others = matrix.diagonal(), matrix[~torch.eye(30, dtype=torch.bool)]
    assert found["same"].mean == pytest.approx(own.mean().item())
    assert found["random"].mean == pytest.approx(others.mean().item())
    assert found["difference"].mean == pytest.approx((own.mean() - others.mean()).item())
    error = (own.std() / 30**0.5).item()  # of the mean of 30 independent values
    assert found["same"].high - found["same"].low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert found["same"].low < found["same"].mean < found["same"].high
    constant = summary(torch.full((2, 2), 0.5))
    assert (constant["random"].low, constant["random"].high, constant["difference"].mean) == (0.5, 0.5, 0)


def net(**changes):
    options = dict(every=1, heads=2, state_size=8, rank=4) | changes
    return wake(adapter.insert(tiny.model(initializer_range=0.3), adapter.TTCAdapterConfig(**options))).eval()


@torch.no_grad()
def test_trajectories_are_those_of_the_first_token_and_of_the_tokens_after_it():
    model, question = net(), Question([3, 7, 8, 4], [9, 10, 11, 12, 13])
    (found,) = trajectories(model, [question], 5)
    assert [*found] == ["model.layers.0.inserted.layers.0", "model.layers.1.inserted.layers.0"]
    assert model.config.horizon == 8  # as before
    seen = []
    layer = ttc_layers(model)["model.layers.1.inserted.layers.0"]
    hook = layer.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    adapter.set_horizon(model, 5)
    model(torch.tensor([[*question.prompt, *question.thought]]))
    hook.remove()
    x = seen[0][0, 4:]  # the answer
    assert x.shape == (5, 32)
    trajectory = found["model.layers.1.inserted.layers.0"]
    plan = layer.problem(x[:1]).unroll(5)
    h = plan.h0[0]
    wanted = []
    u = solve(plan).u[0]
    for t in range(5):  # the dynamics, by hand
        h = torch.einsum("hn,hn->hn", plan.A[0, :, t], h) + torch.einsum("hnm,hm->hn", plan.B[0, :, t], u[:, t])
        wanted.append(h.flatten())
    torch.testing.assert_close(trajectory.plan, torch.stack(wanted), rtol=1e-4, atol=1e-5)
    states = layer.project(layer.norm(x))[:, : layer.heads * layer.state_size]  # what comes first of it
    torch.testing.assert_close(trajectory.start, states[0])
    torch.testing.assert_close(trajectory.states, states[1:])


def test_questions_are_asked_as_in_training_and_none_is_lost_in_silence():
    words = tiny.tokenizer()
    rows = [Row(f"line {n}", {"problem": f"{n % 3} + 1 = ?", "solution": "the answer is 4"}) for n in range(5)]
    found = questions(written(rows), words)
    assert len(found.questions) == 3
    assert words.decode(found.questions[1].prompt) == "<user> 1 + 1 = ? <bot>"
    assert words.decode(found.questions[1].thought) == "the answer is 4"
    rows += [
        Row("line 6", {"problem": "the " * 60, "solution": "the answer"}),
        Row("line 7", {"problem": "2", "solution": "4"}),
    ]
    assert questions(written(rows), words, longest=20).left_out == {
        "with a question that came before": 2, "too long for the model": 1, "of less than two tokens": 1
    }  # fmt: skip
    assert len(questions(written(rows), words, limit=2).questions) == 2
    assert words.decode(questions(written(rows), tiny.tokenizer(chat=False)).questions[0].prompt) == "0 + 1 = ?"
    with raises("bad-data", "data", "line 9: no answer"):
        questions(written([*rows, Row("line 9", {"problem": "1"})]), words)
    with raises("no-data", "data"):
        questions(written(rows[:1]), words)


def test_answers_of_an_evaluation_are_chains_of_thought(tmp_path):
    problems = [{"number": k, "text": f"1 + {k} = ?", "answer": str(k + 1)} for k in (1, 2)]
    store = Generations(tmp_path, {"system": "the answer ?"}, problems)
    texts = {(1, 0): "the answer is 2", (1, 1): "2", (2, 0): " ", (2, 1): "is 3 the answer"}
    store.append(
        GENERATION | dict(problem=problem, sample=sample, horizon=8, text=text, finish="stop")
        for (problem, sample), text in texts.items()
    )
    words = tiny.tokenizer()
    found = questions(generated(tmp_path), words)
    assert [words.decode(each.thought) for each in found.questions] == ["the answer is 2", "is 3 the answer"]
    assert words.decode(found.questions[1].prompt) == "<system> the answer ? <user> 1 + 2 = ? <bot>"
    assert found.left_out == {"of less than two tokens": 2}
    store.append([GENERATION | dict(problem=1, sample=0, horizon=4, text="no 2", finish="stop")])
    assert [text.thought for text in generated(tmp_path, 4)] == ["no 2"]
    assert len(list(generated(tmp_path, 8))) == 4
    for steps in (None, 2):
        with raises("unknown-name", "horizon", str(steps)):
            list(generated(tmp_path, steps))


def test_the_command_compares_own_pairs_with_all_others(tmp_path):
    model = net(every=2, horizon=4)
    model.save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    data = tiny.sums(tmp_path / "sums.jsonl")
    out, plot = tmp_path / "new" / "alignment.json", tmp_path / "alignment.png"
    call = [
        "analyse",
        "alignment",
        "--model",
        str(tmp_path / "model"),
        "--data",
        str(data),
        "--out",
        str(out),
        "--limit",
        "6",
    ]
    done = CliRunner().invoke(app, [*call, "--plot", str(plot)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert plot.read_bytes().startswith(b"\x89PNG")
    found = json.loads(out.read_text())
    assert (found["questions"], found["horizon"]) == (6, 4)
    assert {"versions", "machine", "commit", "command", "data"} <= found.keys()

    asked = questions(written(rows(str(data))), tiny.tokenizer(), 6)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    all_of_it = [next(iter(each.values())) for each in trajectories(loaded, asked.questions, 4)]
    own = [similarity(one.plan, one.states).item() for one in all_of_it]
    others = [similarity(a.plan, b.states).item() for a in all_of_it for b in all_of_it if a is not b]
    still = [similarity(one.start.expand(4, -1), one.states).item() for one in all_of_it]
    (layer,) = found["layers"]
    assert layer["plan"]["same"]["mean"] == pytest.approx(sum(own) / 6, rel=1e-5)
    assert layer["plan"]["random"]["mean"] == pytest.approx(sum(others) / 30, rel=1e-5)
    assert layer["start"]["same"]["mean"] == pytest.approx(sum(still) / 6, rel=1e-5)
    assert found["all layers"]["plan"] == layer["plan"]  # there is but one


@pytest.mark.parametrize(
    ("options", "code", "field"),
    [
        ([], "no-layers", "model"),
        (["--limit", "1"], "too-small", "limit"),
        (["--plot", "figure.doc"], "format", "plot"),
        (["--adapter", "nowhere"], "not-found", "adapter"),
        (["--out", "."], "not-writable", "out"),
    ],
)
def test_mistakes_are_errors(tmp_path, options, code, field):
    tiny.model().save_pretrained(tmp_path / "base")
    tiny.tokenizer().save_pretrained(tmp_path / "base")
    data, out = tiny.sums(tmp_path / "sums.jsonl"), tmp_path / "out.json"
    call = ["analyse", "alignment", "--model", str(tmp_path / "base"), "--data", str(data), "--out", str(out)]
    result = CliRunner().invoke(app, [*call, *options])
    assert result.exit_code == 1
    assert told(result.output, code, field)
    assert not out.exists()
