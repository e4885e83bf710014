"""Training examples for fine-tuning: from rows of a file or of the Hub to tokens, with the loss on answers alone.

A row is a conversation, {"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}, or as
many sets of the Hub have it, {"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]}; or a
pair: a prompt (also called problem or question) and a solution (also called completion or response). Nothing is cut:
rows that are too long are left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import TemplateError

from ttcnet.errors import fail
from ttcnet.reading import Row, is_unicode

if TYPE_CHECKING:
    from torch import Tensor

PROMPTS, ANSWERS = ("prompt", "problem", "question"), ("solution", "completion", "response")
ROLES = ("system", "user", "assistant", "tool")
OTHER_ROLES = {"human": "user", "gpt": "assistant"}
IGNORED = -100  # the label of a token that is not learned
SHOWN = 5  # faults that a message names
AT_ONCE = 512  # rows that are made tokens together


class Example(NamedTuple):
    """Tokens, and labels: the tokens of answers, IGNORED elsewhere."""

    input_ids: list[int]
    labels: list[int]


@dataclass(frozen=True)
class Examples:
    """What was made of a file.

    Args:
        rows: an Example for each row that was kept.
        tokens: how many there are, and how many of them are `learned`: those of answers.
        longest: tokens of the longest row that was kept.
        too_long: how many rows were left out for their length; the longest of those has `overlong` tokens.
        largest: the largest token.
    """

    rows: Any
    tokens: int
    learned: int
    longest: int
    too_long: int
    overlong: int
    largest: int

    @property
    def report(self) -> str:
        text = f"{len(self.rows):,} examples, {self.tokens:,} tokens, {self.learned:,} of them in answers"
        if self.too_long:
            rows = len(self.rows) + self.too_long
            share = f"{self.too_long:,} of {rows:,} rows ({100 * self.too_long / rows:.3g} %)"
            text += f"; {share} left out as too long (the longest has {self.overlong:,} tokens)"
        return text

    @property
    def counts(self) -> dict[str, int]:
        """All counts, for JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "rows"}


def conversation(row: dict[str, Any], system: str | None = None) -> list[dict[str, str]]:
    """The messages of a row, with a system prompt first if one is given. A ValueError says what is wrong with the
    row."""
    if "messages" in row or "conversations" in row:
        turns = row["messages"] if "messages" in row else row["conversations"]
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            raise ValueError("messages is no list of objects")
        messages = []
        for turn in turns:
            role, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
            role = OTHER_ROLES.get(str(role), role)
            if role not in ROLES:
                raise ValueError(f"a role is {role!r}, not one of {', '.join(ROLES)}")
            if not isinstance(content, str):
                raise ValueError(f"the content of a {role} message is no text")
            messages.append({"role": role, "content": content})
        if not any(message["role"] == "assistant" and message["content"].strip() for message in messages):
            raise ValueError("no assistant message holds an answer")
    else:
        prompt = next((row[key] for key in PROMPTS if isinstance(row.get(key), str)), None)
        answer = next((row[key] for key in ANSWERS if isinstance(row.get(key), str)), None)
        if prompt is None or not prompt.strip():
            raise ValueError(f"no prompt: it needs messages, or a text called {' or '.join(PROMPTS)}")
        if answer is None or not answer.strip():
            raise ValueError(f"no answer: it needs a text called {' or '.join(ANSWERS)}")
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    for message in messages:
        if not is_unicode(message["content"]):
            raise ValueError(f"half a letter in the {message['role']} message, which is no Unicode")
    if system is not None and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    return messages


def tokenize(messages: list[dict[str, str]], tokenizer: Any) -> Example:
    """A conversation as tokens. Labels are the tokens that an assistant writes, including the end of its turn."""
    [found] = _tokenized([messages], tokenizer)
    if isinstance(found, ValueError):
        raise found
    return found


def prompt(messages: list[dict[str, str]], tokenizer: Any) -> list[int]:
    """A conversation up to the point where an assistant writes: what `tokenize` puts before its answer."""
    if tokenizer.chat_template is None:
        return _plain([*messages, {"role": "assistant", "content": ""}], tokenizer, end=False).input_ids
    try:
        [ids] = _template(tokenizer, [messages], add_generation_prompt=True)
    except TemplateError as error:
        remedy = "Use other roles; --system '' asks without a system prompt."
        fail("the prompt", "must be such as the model's chat template takes", error, remedy, "chat-template")
    return ids


def _tokenized(many: list[list[dict[str, str]]], tokenizer: Any) -> list[Example | ValueError]:
    """`tokenize` for many conversations, which is faster. Errors are returned."""
    if tokenizer.chat_template is None:
        return [_plain(messages, tokenizer) for messages in many]
    turns = [
        (row, turn)
        for row, messages in enumerate(many)
        for turn, message in enumerate(messages)
        if message["role"] == "assistant"
    ]
    wholes = _template(tokenizer, many)
    befores = _template(tokenizer, [many[row][:turn] for row, turn in turns], add_generation_prompt=True)
    inner = [(row, turn) for row, turn in turns if turn + 1 < len(many[row])]
    afters = dict(zip(inner, _template(tokenizer, [many[row][: turn + 1] for row, turn in inner]), strict=True))
    found: list[Example | ValueError] = [Example(ids, [IGNORED] * len(ids)) for ids in wholes]
    for (row, turn), before in zip(turns, befores, strict=True):
        ids, after = wholes[row], afters.get((row, turn), wholes[row])
        if ids[: len(after)] != after or after[: len(before)] != before:
            found[row] = ValueError(
                "the chat template rewrites earlier turns, so that it is not clear which tokens an assistant wrote; "
                "make a row of every turn"
            )
        elif isinstance(example := found[row], Example):
            example.labels[len(before) : len(after)] = after[len(before) :]
    return found


def _template(tokenizer: Any, many: list[list[dict[str, str]]], **options: Any) -> list[list[int]]:
    if not many:
        return []
    try:
        found = tokenizer.apply_chat_template(many, tokenize=True, return_dict=False, **options)
    except TemplateError:
        raise  # it refuses a row
    except Exception as error:  # a program of the model's, which may raise anything
        raise TemplateError(f"{type(error).__name__}: {error}") from error
    if not isinstance(found, list) or not all(isinstance(ids, list) and ids for ids in found):
        raise TemplateError("it makes nothing of a conversation")
    return found


def _plain(messages: list[dict[str, str]], tokenizer: Any, end: bool = True) -> Example:
    """Without a chat template: the texts one below the other, and the end-of-text token after the last if `end` is
    true."""
    ids: list[int] = list(tokenizer("").input_ids)  # what the tokenizer starts every text with
    labels = [IGNORED] * len(ids)
    for place, message in enumerate(messages):
        last = place == len(messages) - 1
        text = message["content"] + ("" if last else "\n")
        part = tokenizer(text, add_special_tokens=False).input_ids if text else []
        if last and end and tokenizer.eos_token_id is not None:
            part = [*part, tokenizer.eos_token_id]
        ids += part
        labels += part if message["role"] == "assistant" else [IGNORED] * len(part)
    return Example(ids, labels)


def _examples(
    source: Iterable[Row], tokenizer: Any, system: str | None
) -> Iterator[tuple[Row, Example | ValueError | TemplateError]]:
    """Every row with its example, or with what is wrong with it."""
    left = iter(source)
    while rows := list(islice(left, AT_ONCE)):
        good, conversations = list[Row](), list[list[dict[str, str]]]()
        for row in rows:
            try:
                conversations.append(conversation(row.content, system))
                good.append(row)
            except ValueError as error:
                yield row, error
        try:
            yield from zip(good, _tokenized(conversations, tokenizer), strict=True)
        except TemplateError:  # a template may refuse roles: one by one, to see whose
            for row, messages in zip(good, conversations, strict=True):
                try:
                    yield row, tokenize(messages, tokenizer)
                except (ValueError, TemplateError) as error:
                    yield row, error


def prepare(
    source: Iterable[Row],
    tokenizer: Any,
    *,
    max_length: int | None = None,
    system: str | None = None,
    store: Any = None,
) -> Examples:
    """All rows as examples, in a list, or in a `store` that can append and has a length. Rows without an answer are an
    error that names them; rows of more than `max_length` tokens are left out and counted; an error if none is left."""
    kept: Any = [] if store is None else store
    faults = list[str]()
    tokens = learned = longest = too_long = overlong = largest = 0
    for row, example in _examples(source, tokenizer, system):
        if isinstance(example, Exception):
            faults.append(f"{row.place}: {example}")
            continue
        length = len(example.input_ids)
        if max_length is not None and length > max_length:
            too_long, overlong = too_long + 1, max(overlong, length)
            continue
        kept.append(example)
        longest = max(longest, length)
        tokens += length
        learned += length - example.labels.count(IGNORED)
        largest = max(largest, *example.input_ids)
    if faults:
        more = f"; and {len(faults) - SHOWN:,} more" if len(faults) > SHOWN else ""
        remedy = "Correct these rows or take them out of the data."
        rule = "must have a prompt and an answer in every row"
        fail("data", rule, "; ".join(faults[:SHOWN]) + more, remedy, "bad-data")
    if not len(kept):
        if too_long:
            remedy = f"Raise max_length; the longest row has {overlong:,} tokens."
            rule = "must leave at least one example"
            fail("max_length", rule, f"{max_length} ({too_long:,} rows too long)", remedy, "too-long")
        fail("data", "must have at least one row", "none", "Check the file.", "no-data")
    return Examples(kept, tokens, learned, longest, too_long, overlong, largest)


def check_examples(examples: Examples, model: Any, max_length: int | None) -> None:
    """Fail if the model cannot take the examples."""
    limit, words = getattr(model.config, "max_position_embeddings", None), model.get_input_embeddings().num_embeddings
    if limit is not None and examples.longest > limit:
        remedy = f"Pass max_length={limit}: longer rows are then left out, and counted."
        value = f"{max_length}, and a row of {examples.longest}"
        fail("max_length", f"must be {limit} or less, the tokens that the model takes", value, remedy, "too-long")
    if examples.largest >= words:
        remedy = "Use the tokenizer of the model, or add rows for its new tokens with resize_token_embeddings."
        fail("tokenizer", f"must have no tokens beyond the {words} of the model", examples.largest, remedy, "too-long")


def padded(examples: Sequence[Example], filler: int, multiple: int = 1) -> tuple[Tensor, Tensor]:
    """Tokens and labels (examples, length), padded at the end."""
    import torch  # late: rows are read without it

    length = -(-max(len(example.input_ids) for example in examples) // multiple) * multiple
    ids = torch.full((len(examples), length), filler)
    labels = torch.full((len(examples), length), IGNORED)
    for place, example in enumerate(examples):
        ids[place, : len(example.input_ids)] = torch.tensor(example.input_ids)
        labels[place, : len(example.labels)] = torch.tensor(example.labels)
    return ids, labels
