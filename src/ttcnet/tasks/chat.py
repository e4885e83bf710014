"""Prompts as a model of conversations reads them: messages, from a prompt or from a row of data, and their tokens.

A row is a conversation, {"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}, or as
many sets of the Hub have it, {"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]}; or a
pair: a prompt (also called problem or question) and a solution (also called completion or response).
"""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateError

from ttcnet.errors import fail
from ttcnet.storage.reading import is_unicode

PROMPTS, ANSWERS = ("prompt", "problem", "question"), ("solution", "completion", "response")  # fields of a row
ROLES = ("system", "user", "assistant", "tool")
OTHER_ROLES = {"human": "user", "gpt": "assistant"}

Messages = list[dict[str, str]]


def question(prompt: str, system: str = "") -> Messages:
    """The messages that put a prompt. There is no system message if `system` is empty."""
    opening = [{"role": "system", "content": system}] if system else []
    return [*opening, {"role": "user", "content": prompt}]


def conversation(row: dict[str, Any], system: str | None = None) -> Messages:
    """The messages of a row, with a system prompt first if one is given. A ValueError names the fault of the
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


def prompt(messages: Messages, tokenizer: Any) -> list[int]:
    """The tokens of a conversation up to the point where an assistant writes."""
    if tokenizer.chat_template is None:
        asked = [*messages, {"role": "assistant", "content": ""}]
        return [token for ids, _ in without_template(asked, tokenizer, end=False) for token in ids]
    try:
        [ids] = by_template(tokenizer, [messages], add_generation_prompt=True)
    except TemplateError as error:
        remedy = "Use other roles; --system '' asks without a system prompt."
        fail("the prompt", "must be such as the model's chat template takes", error, remedy, "chat-template")
    return ids


def by_template(tokenizer: Any, many: list[Messages], **options: Any) -> list[list[int]]:
    """The tokens of conversations by the model's chat template. A TemplateError names the part that the template does
    not take."""
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


def without_template(messages: Messages, tokenizer: Any, end: bool = True) -> list[tuple[list[int], str]]:
    """The tokens of a conversation part by part, each with the role that wrote it: the texts one below the other, and
    the end-of-text token after the last if `end` is true."""
    parts = [(list[int](tokenizer("").input_ids), "system")]  # the tokens that start every text
    for place, message in enumerate(messages):
        last = place == len(messages) - 1
        text = message["content"] + ("" if last else "\n")
        ids = tokenizer(text, add_special_tokens=False).input_ids if text else []
        if last and end and tokenizer.eos_token_id is not None:
            ids = [*ids, tokenizer.eos_token_id]
        parts.append((ids, message["role"]))
    return parts
