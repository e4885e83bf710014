"""Messages from prompts and from rows of data, and their tokens."""

from tests.raising import raises
from tests.train.tiny import WORDS, tokenizer
from ttcnet.tasks.chat import conversation, prompt, question

PAIR = {"problem": "1 + 2 = ?", "solution": "the answer is 3"}


def test_an_empty_system_prompt_is_none():
    assert question("1+1?") == [{"role": "user", "content": "1+1?"}]
    assert question("1+1?", "Think.")[0] == {"role": "system", "content": "Think."}


def test_a_question_is_the_beginning_of_a_conversation():
    for system, given in (("", None), ("the", "the")):
        assert question(PAIR["problem"], system) == conversation(PAIR, given)[:-1]


def test_conversations_as_many_sets_of_the_hub_have_them():
    turns = [{"from": "human", "value": "1 + 2 = ?"}, {"from": "gpt", "value": "the answer is 3"}]
    assert conversation({"conversations": turns, "question": "1 + 2 = ?"}) == conversation(PAIR)
    turns = [{"from": "user", "value": "1 + 2 = ?"}, {"from": "assistant", "value": "the answer is 3"}]
    assert conversation({"conversations": turns}) == conversation(PAIR)


def test_a_prompt_ends_where_the_assistant_writes():
    for chat, words in ((True, ["<user>", "1", "+", "2", "=", "?", "<bot>"]), (False, ["1", "+", "2", "=", "?"])):
        assert [WORDS[token] for token in prompt(question(PAIR["problem"]), tokenizer(chat))] == words


def test_a_template_that_refuses_a_question_is_an_error():
    made = tokenizer()
    made.chat_template = "{{ raise_exception('no system here') }}"
    with raises("chat-template", "the prompt", "no system here"):
        prompt(conversation(PAIR), made)
