"""From rows to tokens: answers alone are learned, nothing is cut, faults are named."""

import gzip
import json

import pytest
from tokenizers import normalizers

from tests.raising import raises
from tests.train.tiny import CHAT, WORDS, model, sums, tokenizer
from ttcnet.storage.reading import Row, count, rows
from ttcnet.tasks.chat import conversation, prompt
from ttcnet.train.examples import IGNORED, check_examples, prepare, tokenize

PAIR = {"problem": "1 + 2 = ?", "solution": "the answer is 3"}


def words(ids):
    return [WORDS[place] for place in ids if place != IGNORED]


def test_answers_alone_are_learned():
    example = tokenize(conversation(PAIR), tokenizer())
    assert words(example.input_ids) == ["<user>", "1", "+", "2", "=", "?", "<bot>", "the", "answer", "is", "3", "<eos>"]
    assert words(example.labels) == ["the", "answer", "is", "3", "<eos>"]
    assert [label for label in example.labels if label != IGNORED] == example.input_ids[-5:]


def test_every_answer_of_a_conversation_is_learned():
    turns = [("user", "1 + 1 = ?"), ("assistant", "2"), ("user", "2 + 1 = ?"), ("assistant", "3")]
    messages = conversation({"messages": [{"role": role, "content": text} for role, text in turns]}, system="the")
    example = tokenize(messages, tokenizer())
    assert words(example.input_ids[:2]) == ["<system>", "the"]
    assert words(example.labels) == ["2", "<eos>", "3", "<eos>"]


def test_a_row_that_the_template_refuses_is_named():
    made = tokenizer()
    refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    made.chat_template = refusal + CHAT
    with raises("bad-data", "data", "row 7: no system here"):
        prepare([Row("row 7", PAIR)], made, system="the")


def test_without_a_chat_template():
    example = tokenize(conversation(PAIR), tokenizer(chat=False))
    assert words(example.input_ids) == ["1", "+", "2", "=", "?", "the", "answer", "is", "3", "<eos>"]
    assert words(example.labels) == ["the", "answer", "is", "3", "<eos>"]


@pytest.mark.parametrize("chat", [True, False])
def test_a_question_has_the_tokens_of_training(chat):
    """This holds for tokenizers, too, that begin every text in a way of their own."""
    made = tokenizer(chat)
    made.backend_tokenizer.normalizer = normalizers.Prepend("the ")
    messages = conversation(PAIR, system="answer")
    example = tokenize(messages, made)
    asked = prompt(messages[:-1], made)
    assert asked == example.input_ids[: len(asked)]
    assert set(example.labels[: len(asked)]) == {IGNORED}
    assert IGNORED not in example.labels[len(asked) :]


def test_a_template_that_rewrites_earlier_turns_is_refused():
    made = tokenizer()
    made.chat_template = "{% for message in messages[-1:] %}{{ message.content }} {% endfor %}"
    messages = conversation({"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}] * 2})
    with pytest.raises(ValueError, match="rewrites earlier turns"):
        tokenize(messages, made)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"problem": "1"}, "no answer: it needs a text called solution or completion or response"),
        ({"problem": "1", "solution": "  "}, "no answer"),
        ({"solution": "1"}, "no prompt"),
        ({"messages": "hello"}, "messages is no list"),
        ({"messages": [{"role": "robot", "content": "1"}]}, "a role is 'robot'"),
        ({"messages": [{"role": "user", "content": None}]}, "the content of a user message is no text"),
        ({"messages": [{"role": "user", "content": "1"}]}, "no assistant message holds an answer"),
        ({"messages": []}, "no assistant message holds an answer"),
        ({"conversations": [{"from": ["gpt"], "value": "1"}]}, r"a role is \['gpt'\], not one of"),
        ({"prompt": [{"role": "user", "content": "1"}]}, "no prompt: it needs messages, or a text called prompt"),
        ({"problem": "1 \ud83d", "solution": "1"}, "half a letter in the user message"),
        ({"messages": [{"role": "assistant", "content": "\udc00"}]}, "half a letter in the assistant message"),
    ],
)
def test_rows_with_faults_are_named(row, fault, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(PAIR) + "\n\n" + json.dumps(row) + "\n")
    with raises("bad-data", "data", rf"data.jsonl line 3: .*{fault}"):
        prepare(rows(str(path)), tokenizer())


def test_many_faults_are_counted():
    with raises("bad-data", "data", "row 4: no prompt.*; and 3 more"):
        prepare([Row(f"row {number}", {}) for number in range(8)], tokenizer())


def test_long_rows_are_left_out_and_counted(tmp_path):
    long = {"problem": "1 + " * 20, "solution": "2"}
    path = tmp_path / "data.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write(json.dumps(PAIR) + "\n" + json.dumps(long) + "\n")
    examples = prepare(rows(str(path)), tokenizer(), max_length=20)
    assert len(examples.rows) == 1
    assert examples.too_long == 1
    assert examples.longest == examples.tokens == len(examples.rows[0].input_ids)
    check_examples(examples, model(max_position_embeddings=examples.longest), 20)  # the longest row that was kept
    assert "1 of 2 rows (50 %) left out as too long (the longest has 44 tokens)" in examples.report
    with raises("too-long", "max_length", "5"):
        prepare(rows(str(path)), tokenizer(), max_length=5)


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    (tmp_path / "data.jsonl").write_text(json.dumps(PAIR) + "\n", "utf-8-sig")
    assert [row.content for row in rows(str(tmp_path / "data.jsonl"))] == [PAIR]


def test_a_dataset_that_cannot_be_read(tmp_path, monkeypatch):
    """What `datasets` says of its name, subset or split."""
    (tmp_path / "owner" / "name").mkdir(parents=True)
    sums(tmp_path / "owner" / "name" / "train.jsonl")
    monkeypatch.chdir(tmp_path)
    datasets = pytest.importorskip("datasets", reason="needs the extra sft")
    for constants in (datasets.config, pytest.importorskip("huggingface_hub").constants):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # the environment was read long ago
    assert len(list(rows("owner/name"))) == 40
    with raises("bad-data", "data", 'owner/name: Unknown split "test"'):
        list(rows("owner/name", "test"))
    with raises("bad-data", "data", "owner/other:"):
        list(rows("owner/other"))


def test_files_that_are_none(tmp_path):
    with raises("not-found", "data", "nothing.jsonl"):
        list(rows(str(tmp_path / "nothing.jsonl")))
    (tmp_path / "bad.jsonl").write_text('{"problem": \n')
    with raises("bad-data", "data", "bad.jsonl line 1: Expecting value"):
        list(rows(str(tmp_path / "bad.jsonl")))
    with raises("not-found", "data", "which is a folder"):
        list(rows(str(tmp_path)))
    (tmp_path / "other.jsonl").write_bytes(b'{"problem": "1"}\n\xff\n')
    with raises("bad-data", "data", "other.jsonl line 2: 'utf-8' codec"):
        list(rows(str(tmp_path / "other.jsonl")))
    whole = gzip.compress(json.dumps(PAIR).encode())
    for content in (b"no gzip", whole[:30], whole[:20] + b"xx" + whole[22:]):
        (tmp_path / "cut.jsonl.gz").write_bytes(content)
        with raises("bad-data", "data", "cut.jsonl.gz, after line 0:"):
            list(rows(str(tmp_path / "cut.jsonl.gz")))
        count(str(tmp_path / "cut.jsonl.gz"))  # does not complain
    (tmp_path / "empty.jsonl").write_text("\n")
    with raises("no-data", "data"):
        prepare(rows(str(tmp_path / "empty.jsonl")), tokenizer())


def test_the_tiny_model_and_its_data_fit(tmp_path):
    examples = prepare(rows(str(sums(tmp_path / "data.jsonl"))), tokenizer())
    assert model().config.vocab_size > max(token for example in examples.rows for token in example.input_ids)
