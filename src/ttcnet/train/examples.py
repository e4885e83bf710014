"""Training examples for fine-tuning: from rows of a file or of the Hub to tokens, with the loss on answers alone.

`ttcnet.tasks.chat` describes the rows. Nothing is cut: rows that are too long are left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import TemplateError

from ttcnet.errors import fail
from ttcnet.storage.reading import Row
from ttcnet.tasks.chat import Messages, by_template, conversation, without_template

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100  # the label of a token that is not learned
SHOWN = 5  # faults that a message names
AT_ONCE = 512  # rows that are made tokens together


class Example(NamedTuple):
    """Tokens, and labels: the tokens of answers, IGNORED elsewhere."""

    input_ids: list[int]
    labels: list[int]


@dataclass(frozen=True)
class Examples:
    """The examples made from a file, and counts.

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


def tokenize(messages: Messages, tokenizer: Any) -> Example:
    """A conversation as tokens. Labels are the tokens that an assistant writes, including the end of its turn."""
    [found] = _tokenized([messages], tokenizer)
    if isinstance(found, ValueError):
        raise found
    return found


def _tokenized(many: list[Messages], tokenizer: Any) -> list[Example | ValueError]:
    """Tokenize many conversations at once, which is faster than `tokenize`. Errors are returned."""
    if tokenizer.chat_template is None:
        return [_plain(messages, tokenizer) for messages in many]
    turns = [
        (row, turn)
        for row, messages in enumerate(many)
        for turn, message in enumerate(messages)
        if message["role"] == "assistant"
    ]
    wholes = by_template(tokenizer, many)
    befores = by_template(tokenizer, [many[row][:turn] for row, turn in turns], add_generation_prompt=True)
    inner = [(row, turn) for row, turn in turns if turn + 1 < len(many[row])]
    afters = dict(zip(inner, by_template(tokenizer, [many[row][: turn + 1] for row, turn in inner]), strict=True))
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


def _plain(messages: Messages, tokenizer: Any) -> Example:
    """Make an example with a tokenizer that has no chat template."""
    parts = without_template(messages, tokenizer)
    labels = [ids if role == "assistant" else [IGNORED] * len(ids) for ids, role in parts]
    return Example([token for ids, _ in parts for token in ids], [label for part in labels for label in part])


def _examples(
    source: Iterable[Row], tokenizer: Any, system: str | None
) -> Iterator[tuple[Row, Example | ValueError | TemplateError]]:
    """Every row with its example, or with its fault."""
    left = iter(source)
    while rows := list(islice(left, AT_ONCE)):
        good, conversations = list[Row](), list[Messages]()
        for row in rows:
            try:
                conversations.append(conversation(row.content, system))
                good.append(row)
            except ValueError as error:
                yield row, error
        try:
            yield from zip(good, _tokenized(conversations, tokenizer), strict=True)
        except TemplateError:  # a template may refuse roles: one by one, to find the rows
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
    examples: Any = [] if store is None else store
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
        examples.append(example)
        longest = max(longest, length)
        tokens += length
        learned += length - example.labels.count(IGNORED)
        largest = max(largest, *example.input_ids)
    if faults:
        more = f"; and {len(faults) - SHOWN:,} more" if len(faults) > SHOWN else ""
        remedy = "Correct these rows or take them out of the data."
        rule = "must have a prompt and an answer in every row"
        fail("data", rule, "; ".join(faults[:SHOWN]) + more, remedy, "bad-data")
    if not len(examples):
        if too_long:
            remedy = f"Raise max_length; the longest row has {overlong:,} tokens."
            rule = "must leave at least one example"
            fail("max_length", rule, f"{max_length} ({too_long:,} rows too long)", remedy, "too-long")
        fail("data", "must have at least one row", "none", "Check the file.", "no-data")
    return Examples(examples, tokens, learned, longest, too_long, overlong, largest)


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
    import torch  # imported late: rows are read without it

    length = -(-max(len(example.input_ids) for example in examples) // multiple) * multiple
    ids = torch.full((len(examples), length), filler)
    labels = torch.full((len(examples), length), IGNORED)
    for place, example in enumerate(examples):
        ids[place, : len(example.input_ids)] = torch.tensor(example.input_ids)
        labels[place, : len(example.labels)] = torch.tensor(example.labels)
    return ids, labels
