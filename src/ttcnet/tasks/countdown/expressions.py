"""Arithmetic with whole numbers as text: written, and read by a parser of our own."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

OPERATIONS = "+-*/"
Value = int | Fraction
LONGEST = 400  # characters of an expression that is read
DEEPEST = 50  # brackets within brackets
_TOKEN = re.compile(r"[0-9]+|[-+*/()]")
_STRENGTH = {"+": 1, "-": 1, "*": 2, "/": 2}


class Term(NamedTuple):
    """A value, its text, and the precedence of that text: 1 a sum, 2 a product, 3 a number."""

    value: Value
    text: str
    strength: int = 3


class Step(NamedTuple):
    """One operation on two values, which may be results of earlier steps."""

    left: Value
    operation: str
    right: Value
    result: Value

    def __str__(self) -> str:
        return f"{self.left} {self.operation} {self.right} = {self.result}"


class Reading(NamedTuple):
    """The value of an expression, and the numbers in it."""

    value: Value
    numbers: tuple[int, ...]


def number(value: int) -> Term:
    return Term(value, str(value))


def join(left: Term, operation: str, right: Term) -> tuple[Term, Step]:
    """An operation on two terms, with no more brackets than it needs.

    Examples:
        >>> seven, _ = join(number(3), "+", number(4))
        >>> term, step = join(number(9), "-", seven)
        >>> term.text, str(step)
        ('9 - (3 + 4)', '9 - 7 = 2')
    """
    strength = _STRENGTH[operation]
    alike = right.strength > strength or (right.strength == strength and operation in "+*")
    one = left.text if left.strength >= strength else f"({left.text})"
    two = right.text if alike else f"({right.text})"
    value = compute(left.value, operation, right.value)
    return Term(value, f"{one} {operation} {two}", strength), Step(left.value, operation, right.value, value)


def compute(left: Value, operation: str, right: Value) -> Value:
    """Compute exactly; raise a ZeroDivisionError if there is no result."""
    if operation == "+":
        return left + right
    if operation == "-":
        return left - right
    if operation == "*":
        return left * right
    return Fraction(left) / right if left % right else left // right


def read(text: str) -> Reading:
    """Value and numbers of an expression of whole numbers, + - * / and brackets. A ValueError says where it is none,
    a ZeroDivisionError that it divides by zero.

    Examples:
        >>> read("(25 - 7) * 3")
        Reading(value=54, numbers=(25, 7, 3))
    """
    return _Parser(text).read()


class _Parser:
    """sum = product (+|- product)*    product = factor (*|/ factor)*    factor = number | ( sum )"""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise ValueError(f"it has {len(text)} characters, more than {LONGEST}")
        self.tokens = _TOKEN.findall(text)
        if "".join(self.tokens) != "".join(text.split()):
            odd = next(iter(_TOKEN.sub("", "".join(text.split()))))
            raise ValueError(f"it holds {odd!r}")
        if re.search(r"[0-9]\s+[0-9]", text):
            raise ValueError("two numbers stand side by side")
        self.place, self.depth = 0, 0
        self.numbers: list[int] = []

    def read(self) -> Reading:
        value = self._sum()
        if self.place < len(self.tokens):
            raise ValueError(f"{self.tokens[self.place]!r} stands where an operation belongs")
        return Reading(value, tuple(self.numbers))

    def _next(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else "the end"

    def _sum(self) -> Value:
        return self._chain("+-", self._product)

    def _product(self) -> Value:
        return self._chain("*/", self._factor)

    def _chain(self, operations: str, part: Callable[[], Value]) -> Value:
        value = part()
        while (operation := self._next()) in operations:
            self.place += 1
            value = compute(value, operation, part())
        return value

    def _factor(self) -> Value:
        token = self._next()
        self.place += 1
        if token == "(":
            self.depth += 1
            if self.depth > DEEPEST:
                raise ValueError(f"brackets are more than {DEEPEST} deep")
            value = self._sum()
            if self._next() != ")":
                raise ValueError("a bracket is not closed")
            self.place += 1
            self.depth -= 1
            return value
        if not token.isdecimal():
            raise ValueError(f"{token!r} stands where a number belongs")
        self.numbers.append(int(token))
        return self.numbers[-1]
