"""A model in this process: prompts, batches by memory, LoRA, endings."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

import ttcnet.adapter as adapter
from tests.evaluate.scripted import model_folder
from tests.train import tiny
from ttcnet.evaluate.engines.base import Ask, Sampling
from ttcnet.evaluate.engines.local import Local, load

QUESTION = [{"role": "user", "content": "1 + 2 = ?"}]


def engine(chat=True, **changes):
    return Local(tiny.model(), tiny.tokenizer(chat), **changes)


def ask_all(net, asks, **options):
    settings = dict(max_tokens=6, temperature=0.0) | options
    groups = list(net.answers(asks, Sampling(**settings)))
    return [answer for _, answer in sorted(pair for group in groups for pair in group)], groups


def test_prompts_follow_the_chat_template_or_stand_one_below_the_other():
    words = tiny.tokenizer()
    net = engine()
    assert words.decode(net.prompt(Ask(QUESTION, 0))) == "<user> 1 + 2 = ? <bot>"
    assert words.decode(net.prompt(Ask(QUESTION, 0, "the answer"))) == "<user> 1 + 2 = ? <bot> the answer"
    assert words.decode(engine(chat=False).prompt(Ask(QUESTION, 0))) == "1 + 2 = ?"


def test_batches_are_of_the_size_that_fits_longest_first(monkeypatch):
    net = engine(most=3)
    asks = [Ask([{"role": "user", "content": "1 + " * length + "2"}], length) for length in (1, 5, 2, 4, 3)]
    alone = [ask_all(net, [ask])[0][0] for ask in asks]
    answers, groups = ask_all(net, asks)
    assert [[number for number, _ in group] for group in groups] == [[1, 3, 4], [2, 0]]
    assert [answer.text for answer in answers] == [answer.text for answer in alone]
    monkeypatch.setattr("ttcnet.evaluate.engines.local._free", lambda device: 40_000)
    sizes = [len(group) for group in ask_all(net, asks)[1]]
    assert sizes[0] < 3
    assert sum(sizes) == 5


def test_a_batch_that_does_not_fit_after_all_is_halved(monkeypatch):
    net, tried = engine(most=4), []
    whole = net.model.generate

    def small(ids, **options):
        tried.append(len(ids))
        if len(ids) > 2:
            raise torch.OutOfMemoryError("no room")
        return whole(ids, **options)

    monkeypatch.setattr(net.model, "generate", small)
    answers, _ = ask_all(net, [Ask(QUESTION, seed) for seed in range(5)])
    assert len(answers) == 5
    assert tried[:2] == [4, 2]
    monkeypatch.setattr(net.model, "generate", lambda ids, **_: (_ for _ in ()).throw(torch.OutOfMemoryError("no")))
    with pytest.raises(torch.OutOfMemoryError):
        ask_all(net, [Ask(QUESTION, 0)])


def test_the_end_of_text_of_the_model_and_of_the_tokenizer_count():
    net = tiny.model()
    net.generation_config.eos_token_id = [7, 9]
    assert Local(net, tiny.tokenizer()).ends == [1, 7, 9]


def test_stop_texts_and_prefixes():
    net = engine()
    (free,), _ = ask_all(net, [Ask(QUESTION, 0)])
    words = free.text.split()
    (stopped,), _ = ask_all(net, [Ask(QUESTION, 0)], stop=(words[1],))
    assert stopped.text.split() == words[: words.index(words[1]) + 1]
    assert stopped.finish == "stop"
    (rest,), _ = ask_all(net, [Ask(QUESTION, 0, stopped.text)], max_tokens=6 - stopped.new_tokens)
    assert (stopped.text + rest.text).split() == words


def test_lora_beside_ttc_layers(tmp_path):
    base = model_folder(tmp_path / "base")
    torch.manual_seed(0)
    sizes = dict(every=2, heads=2, state_size=8, rank=4, zero_init=False)
    net = adapter.insert(tiny.model(), adapter.TTCAdapterConfig(**sizes))
    net = get_peft_model(net, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    adapter.save(net, tmp_path / "adapter")
    net.save_pretrained(tmp_path / "adapter")
    loaded = load(str(base), tmp_path / "adapter")
    assert loaded.plans
    tokens = torch.randint(3, 20, (2, 5))
    with torch.no_grad():
        assert torch.allclose(loaded.model(tokens).logits, net.eval()(tokens).logits, atol=1e-5)
        assert not torch.allclose(loaded.model(tokens).logits, tiny.model()(tokens).logits, atol=1e-2)
    answers, _ = ask_all(loaded, [Ask(QUESTION, 0)], horizon=4)
    assert answers[0].new_tokens


def test_other_weights_are_another_model():
    one, same, other = engine().facts(), engine().facts(), Local(tiny.model(seed=1), tiny.tokenizer()).facts()
    assert one == same
    assert one["weights"] != other["weights"]
