"""TTC-Net models: Hugging Face conventions, generation, masks."""

import json
import pathlib

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification

from tests.raising import raises
from ttcnet.models import TTCNetConfig, TTCNetForCausalLM, TTCNetForCellClassification, TTCNetModel
from ttcnet.models.pattern import blocks_of, interleaved
from ttcnet.nn import TTCLayer
from ttcnet.nn.mixers import KINDS

SMALL = dict(vocab_size=40, hidden_size=32, num_attention_heads=2, ttc_state_size=8, ttc_rank=8)
PATTERNS = [*([kind, "ttc"] for kind in KINDS), *(["attention", f"+{kind}", "ttc"] for kind in KINDS)]


def causal(pattern, **changes):
    torch.manual_seed(0)
    # as small as the TTC layer whose place it takes
    options = {"+mamba2": {"state_size": 8}} if "+mamba2" in pattern else {}
    return TTCNetForCausalLM(TTCNetConfig(**SMALL, pattern=pattern, mixer_options=options, **changes)).eval()


@pytest.fixture
def tokens():
    return torch.randint(0, 40, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("pattern", PATTERNS, ids="-".join)
def test_generation_with_a_cache_is_the_same_as_without(pattern, tokens):
    model = causal(pattern)
    with torch.no_grad():
        whole = model(tokens, use_cache=False).logits
        first = model(tokens[:, :4], use_cache=True)
        second = model(tokens[:, 4:8], past_key_values=first.past_key_values)
        third = model(tokens[:, 8:], past_key_values=second.past_key_values)
    parts = torch.cat([first.logits, second.logits, third.logits], 1)
    assert torch.allclose(parts, whole, atol=2e-5)
    assert third.past_key_values.get_seq_length() == 9
    options = dict(max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert torch.equal(model.generate(tokens, **options), model.generate(tokens, use_cache=False, **options))


@pytest.mark.parametrize("pattern", PATTERNS, ids="-".join)
def test_causal_models_do_not_look_ahead(pattern, tokens):
    model = causal(pattern)
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 40
    with torch.no_grad():
        before, after = model(tokens).logits, model(changed).logits
    assert torch.allclose(before[:, :5], after[:, :5], atol=1e-6)
    assert not torch.allclose(before[:, 5:], after[:, 5:], atol=1e-3)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mlp"])
def test_bidirectional_models_look_both_ways(kind):
    torch.manual_seed(0)
    config = TTCNetConfig(**SMALL | dict(vocab_size=10), pattern=[kind, "ttc"], causal=False, num_labels=9)
    model = TTCNetForCellClassification(config).eval()
    boards = torch.randint(0, 10, (1, 12))
    changed = boards.clone()
    changed[:, 6] = (changed[:, 6] + 1) % 10
    with torch.no_grad():
        moved = (model(boards).logits - model(changed).logits).abs().amax(-1)[0]
    assert moved[0] > 1e-5
    assert moved[-1] > 1e-5


@pytest.mark.parametrize("pattern", [["attention", "ttc"], ["gdn", "ttc"], ["samba", "+mamba2"]], ids="-".join)
def test_padding_changes_nothing(pattern, tokens):
    model = causal(pattern)
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), tokens], 1)
    mask = torch.ones_like(padded)
    mask[:, :3] = 0
    options = dict(max_new_tokens=5, do_sample=False, pad_token_id=0)
    plain = model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
    assert torch.equal(model.generate(padded, attention_mask=mask, **options)[:, 3:], plain)


@pytest.mark.parametrize("kind", ["attention", "mamba"])
def test_beam_search(kind, tokens):
    model = causal([kind, "ttc"])
    options = dict(max_new_tokens=5, num_beams=3, num_return_sequences=2, do_sample=False, pad_token_id=0)
    assert torch.equal(model.generate(tokens, **options), model.generate(tokens, use_cache=False, **options))


@pytest.mark.parametrize("pattern", [["attention", "ttc"], ["mamba", "mesanet", "+gdn", "retnet", "ttc"]], ids="-".join)
def test_saved_and_loaded_to_the_bit(pattern, tokens, tmp_path):
    model = causal(pattern, horizon=5)
    model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.bin"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(loaded, TTCNetForCausalLM)
    assert loaded.config.blocks == model.config.blocks
    assert loaded.config.horizon == 5
    for (name, mine), other in zip(model.state_dict().items(), loaded.state_dict().values(), strict=True):
        assert torch.equal(mine, other), name
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, loaded.eval()(tokens).logits)
    inner = AutoModel.from_pretrained(tmp_path)
    assert isinstance(inner, TTCNetModel)
    assert torch.equal(inner.embed_tokens.weight, model.model.embed_tokens.weight)


def test_classifier_saved_and_loaded(tmp_path):
    config = TTCNetConfig.sudoku(num_hidden_layers=2, interleave="2:1", hidden_size=32)
    model = TTCNetForCellClassification(config).eval()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    boards = torch.randint(0, 10, (2, 81))
    with torch.no_grad():
        assert torch.equal(model(boards).logits, loaded(boards).logits)


def test_a_missing_weight_is_drawn_and_told(tmp_path):
    """Loading a model without TTC into one with it keeps what there is and draws the rest."""
    plain = causal(["attention", "attention"])
    plain.save_pretrained(tmp_path)
    config = TTCNetConfig(**SMALL, pattern=["attention", "attention", "ttc"])
    model, report = TTCNetForCausalLM.from_pretrained(tmp_path, config=config, output_loading_info=True)
    assert {name.split(".")[3] for name in report["missing_keys"]} == {"inserted"}
    assert torch.equal(model.model.layers[1].mlp.out.weight, plain.model.layers[1].mlp.out.weight)
    layer = model.model.layers[1].inserted[0]
    assert isinstance(layer, TTCLayer)
    assert layer.project.weight.std().item() == pytest.approx(32**-0.5, rel=0.2)
    assert layer.problem(torch.randn(3, 32)).decay_A.max() < 5


def test_initial_values_are_the_layers_own():
    model = causal(["attention", "ttc"])
    layer = model.model.layers[0].inserted[0]
    assert layer.context.bases_B.std().item() == pytest.approx(0.25, rel=0.3)
    assert model.model.layers[0].mixer.project.weight.std().item() == pytest.approx(32**-0.5, rel=0.2)


def test_the_model_card(tmp_path):
    model = causal(["attention", "attention", "ttc"])
    model.save_pretrained(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "1 x attention, 1 x attention + ttc" in text
    assert "pipeline_tag: text-generation" in text
    assert "pipeline_tag: feature-extraction" in model.model.card()
    (tmp_path / "README.md").write_text("mine")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_no_tokens_at_all(tokens):
    model = causal(["mamba", "ttc"])
    assert model(tokens[:0]).logits.shape == (0, 9, 40)
    cache = model(tokens).past_key_values
    nothing = model(tokens[:, :0], past_key_values=cache, attention_mask=torch.ones_like(tokens))
    assert nothing.logits.shape == (2, 0, 40)


def test_shapes_alone_on_the_meta_device(tokens):
    model = causal(["mamba", "ttc", "attention", "+gdn"]).to("meta")
    output = model(tokens.to("meta"), attention_mask=torch.ones_like(tokens, device="meta"))
    assert output.logits.shape == (2, 9, 40)


def test_the_horizon_changes_the_answer_and_nothing_else(tokens):
    model = causal(["attention", "attention", "ttc"])
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        own, far = model(tokens).logits, model(tokens, horizon=20).logits
        assert not torch.allclose(own, far, atol=1e-4)
        off = model(tokens, horizon=0).logits
        assert torch.equal(own, model(tokens).logits)
    model.model.layers[1].inserted = torch.nn.ModuleList()
    with torch.no_grad():
        assert torch.equal(off, model(tokens).logits), "horizon 0 must be the model without TTC"
    remaining = model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in remaining.items())
    generated = causal(["attention", "ttc"]).generate(tokens, horizon=3, max_new_tokens=2, pad_token_id=0)
    assert generated.shape == (2, 11)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_lowers_the_loss(tokens, checkpointing):
    model = causal(["attention", "attention", "ttc"]).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(40):
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_200_steps_end_the_same_with_every_backend():
    losses = {}
    for backend in ("reference", "fused"):
        model = causal(["attention", "ttc"], horizon=3).train()
        model.model.layers[0].inserted[0].backend = backend
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        generator = torch.Generator().manual_seed(0)
        for _ in range(200):
            start = torch.randint(0, 40, (4, 1), generator=generator)
            counting = (start + torch.arange(8)) % 40
            loss = model(counting, labels=counting).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[backend] = loss.item()
    assert losses["fused"] < 1.5
    assert losses["fused"] == pytest.approx(losses["reference"], rel=0.02)


def test_deep_supervision():
    torch.manual_seed(0)
    config = TTCNetConfig.sudoku(num_hidden_layers=3, interleave="3:1", hidden_size=32)
    model = TTCNetForCellClassification(config)
    boards, labels = torch.randint(0, 10, (2, 81)), torch.randint(0, 9, (2, 81))
    labels[boards > 0] = -100
    output = model(boards, labels=labels)
    assert output.block_logits.shape == (3, 2, 81, 9)
    assert torch.equal(output.block_logits[-1], output.logits)
    each = [torch.nn.functional.cross_entropy(block.mT, labels, ignore_index=-100) for block in output.block_logits]
    assert torch.allclose(output.loss, torch.stack(each).mean(), atol=1e-6)
    assert torch.allclose(model.eval()(boards).logits, output.logits, atol=1e-5)
    changed = labels.clone()
    changed[boards > 0] = -100
    assert torch.equal(model(boards, labels=changed).loss, output.loss)


def test_cells_of_a_grid_know_row_column_and_box():
    config = TTCNetConfig.sudoku(num_hidden_layers=1, interleave=None, hidden_size=32)
    model = TTCNetModel(config)
    torch.nn.init.zeros_(model.embed_positions.weight)
    where = model._positions(81, torch.device("cpu")).view(9, 9, 32)
    row, column, box = model.embed_grid.weight.view(3, 9, 32)
    assert torch.allclose(where[4, 7], row[4] + column[7] + box[5], atol=1e-6)


@pytest.mark.parametrize("name", ["tiny", "base", "paper", "sudoku"])
def test_presets(name):
    config = getattr(TTCNetConfig, name)()
    kind = TTCNetForCellClassification if name == "sudoku" else TTCNetForCausalLM
    with torch.device("meta"):
        model = kind(config)
    assert any(isinstance(module, TTCLayer) for module in model.modules())
    again = TTCNetConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again.blocks == config.blocks
    assert isinstance(AutoConfig.for_model("ttcnet"), TTCNetConfig)


def test_interleaving():
    def places(text, blocks):
        return {
            k: len(plan.inserted)
            for k, plan in enumerate(blocks_of(interleaved(text, blocks, "attention")), 1)
            if plan[1]
        }

    assert places("8:1", 32) == {8: 1, 16: 1, 24: 1, 32: 1}
    assert places("4:1", 8) == {4: 1, 8: 1}
    assert places("16:2", 32) == {16: 2, 32: 2}
    assert places("16:1", 32) == {16: 1, 32: 1}
    assert places("8:1", 12) == {8: 1}
    assert places(None, 4) == {}


def test_other_layers_are_interleaved_alike():
    config = TTCNetConfig.tiny(insert="gdn")
    assert config.blocks[3].inserted == ("gdn",)


@pytest.mark.parametrize("kind", KINDS)
def test_every_preset_takes_every_baseline(kind):
    for preset in (TTCNetConfig.base, TTCNetConfig.paper, TTCNetConfig.sudoku):
        with torch.device("meta"):
            TTCNetModel(preset(pattern=["attention", f"+{kind}"]))


def test_the_configured_horizon_counts_whenever_it_is_changed(tokens, tmp_path):
    model = causal(["attention", "ttc"])
    with torch.no_grad():
        far = model(tokens, horizon=20).logits
        model.config.horizon = 20
        assert torch.equal(model(tokens).logits, far)
        model.save_pretrained(tmp_path)
        assert torch.equal(TTCNetForCausalLM.from_pretrained(tmp_path).eval()(tokens).logits, far)


def test_conventions_of_outputs(tokens):
    model = causal(["attention", "attention", "ttc"])
    with torch.no_grad():
        output = model(tokens, output_hidden_states=True)
        assert len(output.hidden_states) == 3
        inner = model.model(tokens, output_hidden_states=True)
        assert torch.equal(inner.hidden_states[-1], inner.last_hidden_state)
        assert model.model(tokens).hidden_states is None
        assert torch.equal(model(tokens, return_dict=False)[0], output.logits)
    board = TTCNetForCellClassification(TTCNetConfig.sudoku(num_hidden_layers=2, interleave="2:1", hidden_size=32))
    cells = torch.zeros(1, 81, dtype=torch.long)
    assert len(board(cells, output_hidden_states=True, use_cache=False).hidden_states) == 3
    empty = board(cells, labels=torch.full((1, 81), -100)).loss
    assert empty == 0, "a batch without masked cells must not make the weights NaN"


def test_padding_in_the_classifier():
    torch.manual_seed(0)
    config = TTCNetConfig.sudoku(num_hidden_layers=2, interleave="2:1", hidden_size=32, grid=None)
    model = TTCNetForCellClassification(config).eval()
    cells = torch.randint(0, 10, (1, 20))
    mask = torch.ones(1, 20)
    mask[:, 15:] = 0
    changed = cells.clone()
    changed[:, 15:] = (changed[:, 15:] + 1) % 10
    with torch.no_grad():
        one, other = (model(x, attention_mask=mask).logits[:, :15] for x in (cells, changed))
    assert torch.allclose(one, other, atol=1e-6)


def test_gradient_accumulation_in_the_trainer_changes_nothing(tmp_path):
    from transformers import Trainer, TrainingArguments

    config = TTCNetConfig.sudoku(num_hidden_layers=1, interleave="1:1", hidden_size=32)
    boards = torch.randint(0, 10, (8, 81), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": board, "labels": (board + 1) % 9} for board in boards]
    weights = []
    for batch, accumulate in ((8, 1), (2, 4)):
        torch.manual_seed(0)
        model = TTCNetForCellClassification(config)
        options = dict(max_steps=1, optim="sgd", learning_rate=0.1, report_to=[], save_strategy="no", use_cpu=True)
        options |= dict(per_device_train_batch_size=batch, gradient_accumulation_steps=accumulate, max_grad_norm=0.0)
        arguments = TrainingArguments(str(tmp_path), dataloader_pin_memory=False, disable_tqdm=True, **options)
        Trainer(model=model, args=arguments, train_dataset=data).train()
        weights.append(model.classifier.weight.detach().clone())
    assert torch.allclose(*weights, atol=1e-6)


def test_the_card_goes_to_the_hub(tmp_path):
    from unittest.mock import patch

    model = causal(["attention", "ttc"])
    seen = {}

    def upload(_, repo_id, folder_path, **options):
        seen[repo_id] = (pathlib.Path(folder_path) / "README.md").read_text()
        return "https://hub/somewhere"

    with (
        patch("huggingface_hub.HfApi.create_repo", lambda _, name, **options: type("Repo", (), {"repo_id": name})),
        patch("huggingface_hub.HfApi.upload_folder", upload),
    ):
        assert model.push_to_hub("me/net", private=True) == "https://hub/somewhere"
        model.save_pretrained(tmp_path / "mine", push_to_hub=True, repo_id="me/other")
    assert all("# A TTC-Net" in seen[name] for name in ("me/net", "me/other"))


def test_generation_after_training_with_checkpointing(tokens):
    model = causal(["attention", "mamba", "ttc"])
    options = dict(max_new_tokens=4, do_sample=False, pad_token_id=0)
    expected = model.generate(tokens, **options)
    model.gradient_checkpointing_enable()
    model.train()(tokens, labels=tokens).loss.backward()
    assert model(tokens, use_cache=True).past_key_values is None, "check-pointing and caches exclude each other"
    assert torch.equal(model.eval().generate(tokens, **options), expected)


def test_more_ways_to_generate(tokens):
    model = causal(["attention", "gdn", "ttc"])
    options = dict(max_new_tokens=4, do_sample=False, pad_token_id=0, attention_mask=torch.ones_like(tokens))
    expected = model.generate(tokens, **options)
    embedded = model.model.embed_tokens(tokens)
    assert torch.equal(model.generate(inputs_embeds=embedded, **options), expected[:, 9:])
    assert torch.equal(model.generate(tokens, prefill_chunk_size=4, **options), expected)
    torch.manual_seed(0)
    sampled = model.generate(tokens, max_new_tokens=4, do_sample=True, pad_token_id=0)
    assert sampled.shape == (2, 13)
    with torch.inference_mode():
        begun = model(tokens[:, :5], use_cache=True).past_key_values
    with torch.no_grad():
        rest = model(tokens[:, 5:], past_key_values=begun).logits
        assert torch.allclose(rest, model(tokens).logits[:, 5:], atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_loaded_in_another_dtype(tokens, tmp_path, dtype):
    model = causal(["attention", "mamba2", "ttc"])
    model.save_pretrained(tmp_path)
    loaded = TTCNetForCausalLM.from_pretrained(tmp_path, dtype=dtype).eval()
    assert loaded.dtype == dtype
    with torch.no_grad():
        assert torch.allclose(loaded(tokens).logits.float(), model(tokens).logits, atol=0.1)
    loaded.resize_token_embeddings(44)
    assert loaded(tokens).logits.shape[-1] == 44


def test_a_layer_in_the_place_of_ttc_has_as_many_parameters():
    for kind in KINDS:
        config = TTCNetConfig(hidden_size=128, num_attention_heads=4, pattern=["attention", f"+{kind}", "ttc"])
        with torch.device("meta"):
            inserted, ttc = TTCNetModel(config).layers[0].inserted
        mine, other = (sum(parameter.numel() for parameter in layer.parameters()) for layer in (inserted, ttc))
        assert mine == pytest.approx(other, rel=0.05), kind


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (dict(num_attention_heads=5), ("conflict", "num_attention_heads", "5")),
        (dict(mixer="lstm"), ("unknown-name", "mixer")),
        (dict(insert="lstm"), ("unknown-name", "insert")),
        (dict(pattern=["lstm"]), ("unknown-name", "pattern", "'lstm'")),
        (dict(pattern="attention"), ("type", "pattern")),
        (dict(pattern=["attention", 2]), ("type", "pattern")),
        (dict(interleave="²:1"), ("format", "interleave")),
        (dict(hidden_size="64"), ("type", "hidden_size", "'64'")),
        (dict(ttc_rank=-1), ("too-small", "ttc_rank")),
        (dict(grid=-4, causal=False), ("too-small", "grid")),
        (dict(grid=9, causal=False), ("too-large", "max_position_embeddings")),
        (dict(norm_eps=-1.0), ("out-of-range", "norm_eps")),
        (dict(pad_token_id=99, vocab_size=40), ("out-of-range", "pad_token_id")),
        (dict(mixer_options=["qk_norm"]), ("type", "mixer_options")),
        (dict(mixer_options={"attention": "qk_norm"}), ("type", "mixer_options")),
        (dict(mixer_options={"attn": {}}), ("unknown-field", "mixer_options", "'attn'")),
        (dict(mixer_options={"gdn": {}}), ("unknown-field", "mixer_options", "'gdn'")),
        (
            dict(mixer_options={"attention": {"qknorm": True}}),
            ("unknown-field", "mixer_options"),
        ),
        (dict(mixer_options={"attention": {"causal": False}}), ("unknown-field", "mixer_options")),
        (dict(pattern=["ttc", "attention"]), ("format", "pattern")),
        (dict(pattern=[]), ("format", "pattern")),
        (dict(interleave="eight"), ("format", "interleave")),
        (dict(interleave="32:1"), ("conflict", "interleave", "'32:1'")),
        (dict(interleave="8:0"), ("format", "interleave")),
        (dict(horizon=-1), ("too-small", "horizon")),
        (dict(dropout=1.0), ("out-of-range", "dropout")),
        (dict(grid=8, causal=False), ("out-of-range", "grid")),
        (dict(grid=9), ("conflict", "grid")),
    ],
)
def test_bad_configurations(options, error):
    with raises(*error):
        TTCNetConfig(**options)


def test_bad_calls(tokens):
    model = causal(["attention"])
    with raises("missing", "input_ids"):
        model()
    with raises("shape", "input_ids", r"\(9,\)"):
        model(tokens[0])
    for shape in ((2, 3), (1, 9)):
        with raises("shape", "attention_mask"):
            model(tokens, attention_mask=torch.ones(shape))
    with raises("unknown-field", "horizn", "3"):
        model(tokens, horizn=3)
    with raises("conflict", "causal"):
        TTCNetForCellClassification(TTCNetConfig.tiny())
    with raises("conflict", "causal"):
        TTCNetForCausalLM(TTCNetConfig.sudoku())
    board = TTCNetForCellClassification(TTCNetConfig.sudoku(num_hidden_layers=1, interleave=None))
    with raises("too-long", "input_ids", "82"):
        board(torch.zeros(1, 82, dtype=torch.long))
    with raises("shape", "labels", r"\(1, 80\)"):
        board(torch.zeros(1, 81, dtype=torch.long), labels=torch.zeros(1, 80, dtype=torch.long))
