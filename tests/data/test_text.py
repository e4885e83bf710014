"""What counts as the same text."""

import subprocess
import sys

import pytest

from ttcnet.data.text import digest, tokens, words

SAME = [
    ("What is $x$?", "what is x"),
    (r"Find \(x\).", "Find $x$."),
    (r"\[x + 1 = 2\]", "$$x+1=2$$"),
    (r"$\left( 3, \frac{\pi}{2} \right)$", r"$(3,\dfrac{\pi}{2})$"),
    (r"$5\,\text{cm}$", "5 cm"),
    (r"$1,\!000$ and 2{,}500 and 3\,000", "1000 and 2,500 and 3000"),
    ("Janet’s “ducks”", "janet's \"ducks\""),
    ("ｆｉｎｄ　x", "find x"),
    ("5 − 3 – 1", "5-3-1"),
    (r"$\mathrm{lcm}(4, 6)$", "lcm(4,6)"),
    ("Find  the\n\tvalue.", "find the value"),
]  # fmt: skip
OTHER = [
    ("2 + 3", "2 - 3"),
    ("5!", "5"),
    ("12", "1 2"),
    ("2(3 + 4)", "2 3 + 4"),
    ("f'(x)", "f(x)"),
    ("x^2", "x_2"),
    (r"\leftarrow", r"\left arrow x"),
    ("1,000", "1,00"),
    ("求x的值", "求y的值"),
]


@pytest.mark.parametrize(("one", "two"), SAME)
def test_looks_do_not_count(one, two):
    assert tokens(one) == tokens(two)


@pytest.mark.parametrize(("one", "two"), OTHER)
def test_differences_in_content_count(one, two):
    assert tokens(one) != tokens(two)


def test_words_are_tokens_without_operators():
    assert " ".join(words(tokens(r"If $3x^2 - \frac{1}{2} > 0$, find $x$."))) == "if 3 x 2 frac 1 2 0 find x"
    assert len(words(tokens("求x的值"))) == 4


def test_a_digest_is_the_same_in_every_process():
    code = "from ttcnet.data.text import digest; print(digest(['a', 'b']))"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert int(said) == digest(["a", "b"]) < 2**64
    assert digest(["a", "b"]) != digest(["ab"])
