"""Tree of thoughts: the thoughts that it keeps, its end, its cost."""

from tests.evaluate.scripted import Scripted
from ttcnet.evaluate.engines.base import Answer, Ask, Sampling
from ttcnet.evaluate.engines.tree import Tree


def test_the_tree_follows_the_highest_ratings():
    """Lines are numbers; the model rates a solution by its last one, and ends a solution after the line 9."""

    def say(ask, horizon):
        assert horizon == 16
        question = ask.messages[-1]["content"]
        if question.startswith("Problem:"):
            last = question.split("far as it goes:\n")[1].split("\n\nHow")[0].split()[-1]
            return Answer(f"I say {last}.", 50, 2, "stop")
        thought = 9 if ask.prefix.count("\n") == 2 else 1 + ask.seed % 8
        return Answer(f"{thought}" if thought == 9 else f"{thought}\n", 20, 3, "stop")

    engine = Scripted(say, size=4)
    tree = Tree(engine, breadth=1, depth=4, together=2)
    asks = [Ask([{"role": "user", "content": "count"}], seed) for seed in (0, 5, 11)]
    groups = list(tree.answers(asks, Sampling(50, 0.6, 16)))
    assert [[number for number, _ in group] for group in groups] == [[0, 1], [2]]
    for number, found in (pair for group in groups for pair in group):
        asked = [ask for ask in engine.asked if not ask.messages[-1]["content"].startswith("Problem:")]
        first = {1 + ask.seed % 8 for ask in asked if ask.prefix == "" and _of(ask, asks[number])}
        lines = found.text.split()
        assert int(lines[0]) == max(first)
        assert lines[-1] == "9"
        assert found.finish == "stop"
        # three levels of three thoughts, and a rating for every different one; the last level has one kind, "9"
        assert 9 * 3 + 2 * 3 <= found.new_tokens <= 9 * 3 + 2 * 9
    assert {options["temperature"] for options in engine.options} == {0.0, 0.6}
    assert {options["max_tokens"] for options in engine.options} == {8, 10}


def _of(ask, root):
    return any((ask.seed - root.seed - 1_000_003 * step) % (1 << 31) == 0 for step in range(1, 1000))


def test_a_line_may_end_within_a_token():
    """Tokens such as "\\n  " exist: the text after them is the next thought, not the end."""
    engine = Scripted(lambda ask, _: "7" if "Problem:" in ask.messages[0]["content"] else "2\n  " * (not ask.prefix))
    next(Tree(engine, 1, 1).answers([Ask([{"content": "p"}], 0)], Sampling(10, 0.6)))
    assert any(ask.prefix == "2\n  " for ask in engine.asked)


def test_a_tree_without_end_is_written_out_and_may_be_cut():
    engine = Scripted(lambda ask, _: Answer("2\n" if not ask.prefix else "3", 5, 2, "length"))
    ((_, found),) = next(Tree(engine, 2, 1).answers([Ask([{"content": "p"}], 0)], Sampling(10, 0.6)))
    assert (found.text, found.finish) == ("2\n3", "length")


def test_a_tree_with_a_failed_call_has_failed():
    engine = Scripted(lambda ask, _: Answer("", None, None, "failed", note="status 500"))
    ((_, found),) = next(Tree(engine).answers([Ask([{"content": "p"}], 0)], Sampling(50, 0.6)))
    assert (found.finish, found.note) == ("failed", "status 500")
