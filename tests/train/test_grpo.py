"""Reinforcement learning: the loss, learning by reward, resumption, the model at the start, errors."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from typer.testing import CliRunner

import ttcnet.adapter as adapter
from tests.raising import raises, told
from tests.tasks import echo
from tests.train.conftest import ADAPTER, run_settings
from tests.train.tiny import model, tokenizer
from ttcnet.adapter.base_with_adapter import with_adapter
from ttcnet.cli import app
from ttcnet.models import TTCNetConfig, TTCNetForCausalLM
from ttcnet.settings import from_table
from ttcnet.tasks import Verdict
from ttcnet.train import sft
from ttcnet.train.grpo import samples
from ttcnet.train.grpo.loss import advantages, is_flat, terms
from ttcnet.train.grpo.run import learner, reinforce, start
from ttcnet.train.grpo.samples import Actor, Questions
from ttcnet.train.grpo.settings import Reinforcement

pytestmark = pytest.mark.filterwarnings("ignore")  # of trl and transformers
KINDS = ("ids", "mask")
TASK = str(Path(echo.__file__))


def settings(folder, out="run", **changes):
    values = dict(model="tiny", task=TASK, out=str(folder / out), batch=10, samples=4, max_tokens=3, lr=1e-2, steps=4)
    values |= dict(bf16=False, device_batch=40, save_every=2, log_every=1, held_out_every=2)
    return from_table(Reinforcement, values | changes)


def planner(**changes):
    """A tiny model whose TTC layers have something to say."""
    return adapter.insert(model(), adapter.TTCAdapterConfig(**ADAPTER, zero_init=False, **changes))


def made(folder, net=None, **changes):
    """What learns, before its first step."""
    config = settings(folder, **changes)
    questions = Questions(echo.task, echo.task.examples(), tokenizer(), None, config.rewards)
    return learner(start(net or model(), config), tokenizer(), [questions, None], config, "cpu")


def log(folder, out="run"):
    return [json.loads(line) for line in (folder / out / "log.jsonl").read_text().splitlines()]


# the loss


def plainly(new, old, gain, reference, clip, clip_high, beta):
    """Token by token, as the formula has it."""
    losses = []
    for p, q, a, r in zip(new.tolist(), old.tolist(), gain.tolist(), reference.tolist(), strict=True):
        ratio = math.exp(p - q)
        kept = min(max(ratio, 1 - clip), 1 + clip_high)
        losses.append(-min(ratio * a, kept * a) + beta * ratio * (math.exp(r - p) - (r - p) - 1))
    return torch.tensor(losses, dtype=torch.float64)


def test_the_loss_is_the_formula():
    torch.manual_seed(0)
    new, old, gain, reference = torch.randn(4, 200, dtype=torch.float64).unbind()
    new, old = new.mul(0.3).requires_grad_(), old * 0.3
    found = terms(new, old, gain, clip=0.2, clip_high=0.3, reference=reference, beta=0.1)
    torch.testing.assert_close(found.loss, plainly(new, old, gain, reference, 0.2, 0.3, 0.1))
    ratio = (new - old).exp()
    outside = ((ratio > 1.3) & (gain > 0)) | ((ratio < 0.8) & (gain < 0))
    assert torch.equal(found.clipped, outside)
    assert 0.2 < outside.double().mean() < 0.8
    (gradient,) = torch.autograd.grad(terms(new, old, gain, clip=0.2, clip_high=0.3).loss.sum(), new)
    torch.testing.assert_close(gradient, torch.where(outside, 0.0, -gain * ratio).detach())


def test_advantages_are_rewards_above_the_mean_of_the_group():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.1, 0.1, 0.1, 0.1], [2.0, 1.0, 3.0, 0.0]], dtype=torch.float64)
    plain, scaled = advantages(rewards, scale=False), advantages(rewards)
    torch.testing.assert_close(plain[0], torch.tensor([0.75, -0.25, -0.25, -0.25], dtype=torch.float64))
    torch.testing.assert_close(scaled[0], plain[0] / (0.5 + 1e-4))
    assert is_flat(rewards).tolist() == [False, True, False]
    for found in (plain, scaled):
        assert torch.equal(found[1], torch.zeros(4)), "not a rounding of zero over a rounding of zero"
    assert not is_flat(torch.tensor([[1.0, 1.0 + 1e-6]])).any()


def logprobs(net, inputs, temperature):
    """The log-probabilities of completions; prompts are padded at the left."""
    ids, mask = (torch.cat([inputs[f"{part}_{kind}"] for part in ("prompt", "completion")], 1) for kind in KINDS)
    every = (net(ids, attention_mask=mask).logits[:, :-1] / temperature).log_softmax(-1)
    return every.gather(2, ids[:, 1:, None])[:, :, 0][:, -inputs["completion_ids"].shape[1] :]


@pytest.mark.parametrize("updates", [1, 2])
def test_the_loss_and_its_gradient_are_those_of_trl(updates, tmp_path):
    """On the same samples: TRL's code for log-probabilities, KL, clipping and token-level normalisation."""
    changes = dict(updates=updates, beta=0.05, temperature=0.8, device_batch=7)
    trained = made(tmp_path, planner(), **changes)
    policy, net = trained.objective, trained.model
    for weight in policy.reference.parameters():
        weight.data.mul_(0.9)
    pieces = next(iter(trained.batches()))
    with torch.no_grad():  # a policy that has moved
        for weight in net.parameters():
            weight.add_(0.02 * torch.randn_like(weight))
    for piece in pieces:
        policy.loss(net, *piece)[0].backward()
    ours = sum(policy.loss(net, *piece)[0].item() for piece in pieces)
    gradients = [weight.grad.clone() for weight in net.parameters()]
    net.zero_grad()

    again = made(tmp_path, planner(), **changes).objective
    gained = torch.zeros(10, 4, dtype=torch.float64)
    groups = again.draw(0, again.drawn_at(0))
    for row, group in enumerate(groups):
        gained[row] = advantages(torch.tensor([[each.reward for each in group]], dtype=torch.float64))[0]
    chosen = [(row, column) for row in range(0, 10, updates) for column in range(4)]
    prompts = [again.questions.prompts[groups[row][column].question] for row, column in chosen]
    answers = [groups[row][column].answer for row, column in chosen]
    wide, long = max(map(len, prompts)), max(map(len, answers))
    inputs = dict(
        prompt_ids=torch.tensor([[0] * (wide - len(p)) + p for p in prompts]),
        prompt_mask=torch.tensor([[0] * (wide - len(p)) + [1] * len(p) for p in prompts]),
        completion_ids=torch.tensor([a + [0] * (long - len(a)) for a in answers]),
        completion_mask=torch.tensor([[1] * len(a) + [0] * (long - len(a)) for a in answers]),
        advantages=torch.tensor([gained[place] for place in chosen]).float(),
        num_items_in_batch=torch.tensor(float(sum(map(len, answers)))),
    )

    trl = pytest.importorskip("trl")
    plain = dict(report_to="none", use_cpu=True, bf16=False, per_device_train_batch_size=2, num_generations=2)
    config = trl.GRPOConfig(str(tmp_path / "trl"), temperature=0.8, loss_type="dapo", epsilon=0.2, **plain)
    rows = Dataset.from_list([dict(prompt="1 = ?")] * 2)
    theirs = trl.GRPOTrainer(net, lambda **_: [], config, train_dataset=rows, processing_class=tokenizer())
    theirs.beta, theirs.current_gradient_accumulation_steps = 0.05, 1
    before = made(tmp_path, planner(), **changes).model  # the policy before it moved
    for name, by in [("ref", policy.reference)] + [("old", before)] * (updates > 1):
        adapter.set_horizon(by, policy.drawn_at(0))
        inputs[f"{name}_per_token_logps"] = logprobs(by, inputs, 0.8).detach()
    adapter.set_horizon(net, policy.drawn_at(0))
    loss = theirs._compute_loss(net, inputs)
    loss.backward()
    assert loss.item() == pytest.approx(ours, abs=1e-6)
    assert abs(ours) > 1e-5
    for weight, gradient in zip(net.parameters(), gradients, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-3, atol=2e-6)


def test_pieces_do_not_change_the_gradient(tmp_path):
    def gradients(device_batch):
        trained = made(tmp_path, planner(), device_batch=device_batch)
        (pieces,) = trained.batches()
        for piece in pieces:
            trained.objective.loss(trained.model, *piece)[0].backward()
        return [weight.grad for weight in trained.model.parameters()]

    for whole, parts in zip(gradients(40), gradients(3), strict=True):
        torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-6)


# learning


def test_a_tiny_model_learns_by_reward(tmp_path):
    """It learns to repeat a number, from random weights. By chance it is right once in 33 times."""
    config = settings(tmp_path, samples=16, max_tokens=2, steps=60, device_batch=160, save_every=60, log_every=10)
    reinforce(from_table(Reinforcement, config.to_dict() | {"held_out_every": 60}), model(), tokenizer())
    found = [line["right"] for line in log(tmp_path)]
    assert found[0] < 0.1
    assert found[-1] > 0.6


def test_scores_and_weights_make_the_reward(tmp_path):
    """Answers of few words earn more, right ones nothing."""
    config = settings(tmp_path, samples=8, max_tokens=6, steps=15, device_batch=80, rewards={"short": 1.0})
    reinforce(config, model(), tokenizer())
    found = log(tmp_path)
    assert found[-1]["reward"] > found[0]["reward"] + 0.1
    assert found[0]["reward"] != found[0]["right"]


def test_where_all_earn_the_same_nothing_is_learned(tmp_path, capfd):
    config = settings(tmp_path, rewards={"right": 0.0}, steps=3)
    trained = reinforce(config, model(), tokenizer())
    for one, other in zip(trained.parameters(), model().parameters(), strict=True):
        assert torch.equal(one, other)
    assert [line["flat"] for line in log(tmp_path)] == [1.0] * 3
    said = " ".join(capfd.readouterr().err.split())
    assert said.count("nothing to learn from") == 1


def test_empty_answers_are_graded_and_learned(tmp_path):
    """A model that ends at once."""
    net = model()
    with torch.no_grad():
        net.lm_head.weight[1] = 30 * net.model.norm.weight
    policy = made(tmp_path, net).objective
    policy.actor.answers = lambda prompts, *_: [samples.Decoded([1], True, 0.0)] * len(prompts)
    (pieces,) = ([piece] for (piece,) in policy.begin(0))
    assert [piece.goals.tolist() for piece in pieces] == [[1] * 40]
    assert pieces[0].facts.tolist() == [40, 0, 0, 40, 0, 40]


def test_several_updates_clip_and_one_does_not(tmp_path):
    for updates in (1, 5):
        reinforce(settings(tmp_path, f"run{updates}", updates=updates, samples=8), model(), tokenizer())
    assert all(line["clipped"] == 0 for line in log(tmp_path, "run1"))
    assert any(line["clipped"] > 0 for line in log(tmp_path, "run5"))


def test_the_reference_stays(tmp_path):
    trained = made(tmp_path, planner(), beta=0.1)
    before = [weight.clone() for weight in trained.objective.reference.parameters()]
    found = []
    for _ in range(3):
        trained.advance()
        found.append(trained.news()["kl"])
    assert found[0] == pytest.approx(0, abs=1e-6)
    assert found[2] > 1e-5
    for one, other in zip(trained.objective.reference.parameters(), before, strict=True):
        assert torch.equal(one, other)
    strong = made(tmp_path, planner(), beta=100.0)
    for _ in range(3):
        strong.advance()
    assert strong.news()["kl"] / 3 < found[2]


def test_samples_are_of_the_policy_and_its_horizon(tmp_path):
    trained = made(tmp_path, planner(), horizon="uniform:1,32")
    drawn, learned, answers, loss = [], [], trained.objective.actor.answers, trained.objective.loss

    def drawing(prompts, seeds, temperature, horizon):
        drawn.append(horizon)
        return answers(prompts, seeds, temperature, horizon)

    def learning(model, piece):
        learned.append(piece.horizon)
        return loss(model, piece)

    trained.objective.actor.answers, trained.objective.loss = drawing, learning
    for _ in range(4):
        learned.clear()
        trained.advance()
        assert {*learned} == {drawn[-1]}
    assert len(set(drawn)) > 1
    assert trained.model.config.horizon == planner().config.horizon
    trained.objective.draw(4, 8)
    for one, other in zip(trained.objective.actor.model.parameters(), trained.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_samples_may_be_drawn_at_another_horizon_if_asked(tmp_path):
    """The ratios are then those of the two horizons."""
    trained = made(tmp_path, planner(), horizon="fixed:2", sampling_horizon="fixed:16")
    ((piece,),) = next(iter(trained.batches()))
    assert piece.horizon == 2
    with torch.no_grad():
        assert (trained.objective.logprobs(trained.model, piece) - piece.old).abs().max() > 1e-4
        drawn = replace(piece, horizon=16)
        assert torch.equal(trained.objective.logprobs(trained.model, drawn), piece.old)


def test_any_model_answers(tmp_path):
    """One that has no fast decoding, too."""
    torch.manual_seed(0)
    net = TTCNetForCausalLM(TTCNetConfig.tiny(vocab_size=40, eos_token_id=1))
    trained = made(tmp_path, net)
    trained.advance()
    assert trained.news()["length"] > 1
    few = Actor(net, tokenizer(), "cpu", limit=3, tokens=12, bf16=False)
    many = Actor(net, tokenizer(), "cpu", limit=3, tokens=1000, bf16=False)
    prompts = trained.objective.questions.prompts
    assert [x.tokens for x in few.answers(prompts, range(10), 1.0)] == [
        x.tokens for x in many.answers(prompts, range(10), 1.0)
    ]


# runs


def test_held_out_examples_are_measured(tmp_path):
    (tmp_path / "others.py").write_text("from tests.tasks.echo import Echo\n\ntask = Echo(range(10, 16))\n")
    options = dict(held_out=str(tmp_path / "others.py"), held_out_examples=4, steps=5)
    reinforce(settings(tmp_path, **options), model(), tokenizer())
    found = log(tmp_path)
    assert [line["step"] for line in found if "held_out" in line] == [0, 2, 4, 5]
    assert all(line["held_out"] in (0, 0.25, 0.5, 0.75, 1) for line in found if "held_out" in line)


def timeless(lines):
    return [{name: value for name, value in line.items() if "second" not in name} for line in lines]


@pytest.mark.parametrize("updates", [1, 2])
def test_a_run_whose_grading_fails_is_an_error_and_resumes_to_the_bit(updates, tmp_path):
    """Nothing is lost but the step that could not be graded."""
    task = tmp_path / "fragile.py"
    broken = (
        "from tests.tasks.echo import Echo\n\n\nclass Fragile(Echo):\n    calls = 0\n\n"
        "    def grade(self, example, text):\n        Fragile.calls += 1\n"
        "        if Fragile.calls > 150:\n            raise RuntimeError('the judge is asleep')\n"
        "        return super().grade(example, text)\n\n\ntask = Fragile()\n"
    )
    options = dict(task=str(task), steps=6, save_every=4, updates=updates, beta=0.01)
    task.write_text(broken.replace("150", "10**9"))
    whole = reinforce(settings(tmp_path, "whole", **options), planner(dropout=0.1), tokenizer())
    task.write_text(broken)
    with raises("bad-task", "task", "RuntimeError: the judge is asleep, for example .* and the answer"):
        reinforce(settings(tmp_path, **options), planner(dropout=0.1), tokenizer())
    assert [path.name for path in (tmp_path / "run").glob("*.safetensors")] == ["checkpoint-3.safetensors"]
    task.write_text(broken.replace("150", "10**9"))
    again = reinforce(settings(tmp_path, **options), planner(dropout=0.1), tokenizer())
    for one, other in zip(again.parameters(), whole.parameters(), strict=True):
        assert torch.equal(one, other)
    assert timeless(log(tmp_path)) == timeless(log(tmp_path, "whole"))
    saved = [(tmp_path / out / "model" / "model.safetensors").read_bytes() for out in ("run", "whole")]
    assert saved[0] == saved[1]


def test_a_run_can_be_extended(tmp_path):
    """If the rate is constant, the extended run is the same as a long one."""
    whole = reinforce(settings(tmp_path, "whole"), model(), tokenizer())
    reinforce(settings(tmp_path, steps=2), model(), tokenizer())
    again = reinforce(settings(tmp_path), model(), tokenizer())
    for one, other in zip(again.parameters(), whole.parameters(), strict=True):
        assert torch.equal(one, other)
    with raises("settings-changed", "settings"):
        reinforce(settings(tmp_path, lr=1e-3), model(), tokenizer())


@pytest.mark.parametrize("kind", ["whole", "inserted", "lora"])
def test_it_starts_from_a_model_of_sft(kind, tmp_path):
    train = "all" if kind == "whole" else kind
    model().save_pretrained(tmp_path / "tiny")
    tokenizer().save_pretrained(tmp_path / "tiny")
    base = str(tmp_path / "tiny")
    tuned = sft.fine_tune(run_settings(tmp_path, "sft", model=base, train=train, steps=2)).eval()
    where = dict(model=str(tmp_path / "sft/model")) if kind == "whole" else dict(adapter=str(tmp_path / "sft/adapter"))
    ids = torch.tensor([[3, 6, 28, 4]])
    options = dict(model=base) | where | dict(steps=2, lr=1e-3)
    for then in {"whole": ["all", "lora"], "inserted": ["inserted", "lora", "all"], "lora": ["lora", "all"]}[kind]:
        config = settings(tmp_path, f"{kind}-{then}", train=then, **options)
        first = start(_loaded(config), config)
        with torch.no_grad():
            torch.testing.assert_close(first(ids).logits, tuned(ids).logits, rtol=1e-5, atol=1e-5)
        trained = reinforce(config).eval()
        moved = {name for name, weight in trained.named_parameters() if weight.requires_grad}
        assert any("inserted" in name for name in moved) == (then != "lora" or kind != "whole")
        assert any("lora" in name for name in moved) == (then == "lora")
        folder = Path(config.out) / ("model" if then == "all" else "adapter")
        again = _again(config, folder, then)
        with torch.no_grad():
            torch.testing.assert_close(again(ids).logits, trained(ids).logits, rtol=1e-5, atol=1e-5)
            assert (again(ids).logits - tuned(ids).logits).abs().max() > 1e-4


def _loaded(config):
    from ttcnet.models.loading import causal_lm

    return causal_lm(config.model, torch.float32).eval()


def _again(config, folder, then):
    if then == "all":
        return _loaded(SimpleNamespace(model=str(folder)))
    return with_adapter(_loaded(config), folder).eval()


# input


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"lr": "1e-6"}, "type"),
        ({"rewards": {"right": "much"}}, "type"),
        ({"rewards": {}}, "out-of-range"),
        ({"rewards": {"right": math.nan}}, "out-of-range"),
        ({"samples": 1}, "too-small"),
        ({"max_tokens": 0}, "too-small"),
        ({"temperature": 0}, "out-of-range"),
        ({"clip": -0.1}, "out-of-range"),
        ({"beta": -1}, "out-of-range"),
        ({"seed": 10**30}, "out-of-range"),
        ({"warm_up": 1}, "out-of-range"),
        ({"train": "some"}, "unknown-name"),
        ({"train": "inserted"}, "conflict"),
        ({"batch": 5, "updates": 2}, "conflict"),
        ({"held_out_every": 5, "log_every": 2, "held_out": "h"}, "conflict"),
        ({"task": ""}, "missing"),
    ],
)
def test_values_that_do_not_fit(value, code):
    field = {"updates": "batch"}.get([*value][-1], next(iter(value)))
    with raises(code, f"settings: {field}" if code == "type" else field):
        from_table(Reinforcement, dict(model="m", task="t", out="o") | value)


def test_errors_before_training(tmp_path):
    def refused(code, field, value="", net=None, **changes):
        with raises(code, field, value):
            reinforce(settings(tmp_path, **changes), net or model(), tokenizer())

    refused("not-found", "benchmark", task="nowhere.jsonl")
    refused("unknown-name", "rewards", "elegant", rewards={"right": 1.0, "elegant": 0.5})
    refused("conflict", "held_out", "10 of 10", held_out=TASK)
    refused("too-large", "batch", batch=20)
    refused("too-long", "max_tokens", net=model(max_position_embeddings=4))
    refused("unknown-name", "horizon sampler", horizon="8")
    refused("conflict", "inserted_lr", inserted_lr=0.1)
    tuned = run_settings(tmp_path, "sft", train="lora", steps=1)
    sft.fine_tune(tuned, model(), tokenizer())
    refused("conflict", "train", train="inserted", adapter=str(tmp_path / "sft/adapter"))
    assert not (tmp_path / "run" / "log.jsonl").exists()
    worthless = Questions(echo.task, echo.task.examples(), tokenizer(), None, {"short": 1.0})
    with pytest.raises(ValueError, match="a reward of inf"):
        worthless.worth(Verdict(True, "1", scores={"short": math.inf}), True)


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model().save_pretrained("tiny")
    tokenizer().save_pretrained("tiny")
    Path("run.toml").write_text(
        f'model = "tiny"\ntask = "{TASK}"\nout = "runs/{{variant}}"\nbatch = 10\nsamples = 2\nmax_tokens = 2\n'
        "bf16 = false\n\n[variant.short]\nsteps = 2\n"
    )

    def said(*words):
        result = CliRunner().invoke(app, ["grpo", *words], catch_exceptions=False)
        return result.exit_code, result.output

    code, text = said("run.toml", "--variant", "short", "--lr", "1e-4")
    assert code == 0, text
    assert "runs/short/model" in text
    written = json.loads(Path("runs/short/settings.json").read_text())
    assert (written["lr"], written["steps"], written["samples"]) == (1e-4, 2, 2)
    for words, error in [
        (["nowhere.toml"], ("not-found", "settings")),
        (["run.toml"], ("missing", "variant")),
        (["--variant", "short"], ("conflict", "variant")),
        (["run.toml", "--variant", "short", "--model", "./none"], ("not-found", "model")),
        (["run.toml", "--variant", "short", "--adapter", "tiny"], ("not-found", "adapter")),
    ]:
        code, text = said(*words)
        assert code == 1
        assert told(text, *error), text
