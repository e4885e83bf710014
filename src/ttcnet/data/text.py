"""Texts of problems in a form for comparison, without differences of notation."""

from __future__ import annotations

import re
import unicodedata
from hashlib import blake2b

_MARKS = re.compile(r"[^\w\s\x00-\x7f]{30}")  # 30 marks in a row, such as accents: no letter has so many
_BREAK = "\u034f"  # keeps accents apart. Putting many in order takes the square of their number
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\\,|\{,\}|,\\!|\{,\\!\})(?=\d{3}(?!\d))")
_LAYOUT = re.compile(
    r"\\[,;:!> ()\[\]]|~|\$"  # spaces of LaTeX, and where its mathematics starts and ends
    r"|\\(?:left|right|q?quad|displaystyle|textstyle|limits|bigg?[lrm]?"
    r"|text(?:bf|it|rm)?|math(?:rm|bf|it|sf)|operatorname|mbox)(?![a-z])\*?"
)
_POSSESSIVE = re.compile(r"(?<=[^\W\d_])'(?=[^\W\d_])")  # elsewhere it is a derivative, f'(x)
_SIZED = re.compile(r"\\[dtc](frac|binom)(?![a-z])")
_SIGN = r"\u3040-\u30ff\u3400-\u9fff"  # characters of Chinese and Japanese, where each is a word
_TOKEN = re.compile(rf"\d+|[{_SIGN}]|[^\W\d_{_SIGN}]+|[^\w\s]|_")
_SILENT = frozenset('\\.,;:?"`{}')  # tokens that say nothing about the problem
_QUOTES = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "−": "-", "–": "-"})


def tokens(text: str) -> list[str]:
    """Words, numbers and operators, in lower case, without LaTeX's layout and without punctuation."""
    text = unicodedata.normalize("NFKC", _MARKS.sub(rf"\g<0>{_BREAK}", text)).replace(_BREAK, "")
    text = text.translate(_QUOTES).lower()
    text = _POSSESSIVE.sub(" ", _LAYOUT.sub(" ", _THOUSANDS.sub("", text)))
    return [token for token in _TOKEN.findall(_SIZED.sub(r"\\\1", text)) if token not in _SILENT]


def words(parts: list[str]) -> list[str]:
    """The words and numbers among tokens. Names of LaTeX's commands, such as frac, are words."""
    return [part for part in parts if part.isalnum()]


def digest(parts: list[str]) -> int:
    """A number of 64 bits for a list of words, the same in every process."""
    return int.from_bytes(blake2b(" ".join(parts).encode(), digest_size=8).digest())
