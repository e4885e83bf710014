"""Where a text states its answer. Texts are a model's, or of the web: every pattern takes time in proportion to
their length, for any content. Hence the possessive quantifiers, *+, which never try less than they found."""

from __future__ import annotations

import re

BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
BARE = re.compile(r"\\boxed\s+(-?\w+(?:[.,/]\w+)*)")  # \boxed 9
BRACKET = re.compile(r"\\.|[{}]", re.DOTALL)  # escaped brackets do not count
JOINED = re.compile(r"(?:[\s$,;&]|\\[()\[\]]|and|or)*")  # between boxes that hold one answer together
HASHES = re.compile(r"^[^\S\n]*+####\s*+(\S.*)$", re.MULTILINE)  # GSM8K's way; white space may follow
MIXED = re.compile(r"(?<![\d.,/])(\d{1,3}) (\d{1,3}) ?/ ?(\d{1,3})(?![\d/])")  # 2 1/2
SPACED = re.compile(r"(?:(?<!\s)\s++)?([-+=])\s*+")  # math-verify takes the m of "5 + m" for metres, that of "5+m" not
THOUSANDS = re.compile(r"(?<=\d)(?:\\[,! ]|~| |\{,\})(?=\d{3}(?:\D|$))")  # 1\,000


def stated(text: str) -> str:
    r"""The part of a text to read the answer from: the last \boxed{...} (with those beside it, as in "\boxed{1} and
    \boxed{2}"), else the last line after "####", else the whole.

    Examples:
        >>> stated(r"It is $\boxed{41}$, no, it is $\boxed{\frac{1}{2}}$. Check: 1/2 = 0.5.")
        '\\boxed{\\frac{1}{2}}'
        >>> stated("5 + 6 = 11 apples. #### 11 is the answer.\n#### 12")
        '12'
    """
    text = BARE.sub(r"\\boxed{\1}", text)
    boxes = _boxes(text)
    if boxes:
        together = [boxes[-1]]  # from the last one back
        for box in reversed(boxes[:-1]):
            if not JOINED.fullmatch(text, box[1], together[-1][0]):
                break
            together.append(box)
        inner = (text[text.index("{", start) + 1 : end - 1] for start, end in reversed(together))
        contents = [content.rstrip(" .,\n") for content in inner]
        content = SPACED.sub(r"\1", THOUSANDS.sub("", _plain(", ".join(contents))))
        return f"\\boxed{{{content}}}"
    hashes = HASHES.findall(text)
    return _plain(hashes[-1].rstrip() if hashes else text, "$")


def _boxes(text: str) -> list[tuple[int, int]]:
    """Begin and end of all boxes with something in them, outermost only; boxes that are not closed do not count."""
    found: list[tuple[int, int]] = []
    for start, inside, end in sorted(_closed(text)):
        if (not found or start >= found[-1][1]) and text[inside : end - 1].strip():
            found.append((start, end))
    return found


def _closed(text: str) -> list[tuple[int, int, int]]:
    """Begin, begin of the content, and end of all boxes that are closed, in one pass."""
    boxes = {match.end() - 1: match.start() for match in BOX.finditer(text)}  # by the place of their bracket
    found, open_ = list[tuple[int, int, int]](), list[int]()
    for match in BRACKET.finditer(text):
        place = match.start()
        if match[0] == "{":
            open_.append(place)
        elif match[0] == "}" and open_ and (bracket := open_.pop()) in boxes:
            found.append((boxes[bracket], bracket + 1, place + 1))
    return found


def _plain(text: str, mark: str = "") -> str:
    """Percent signs without backslash, and mixed numbers as LaTeX, with `mark` around them."""

    def fraction(match: re.Match[str]) -> str:
        whole, above, below = match.groups()
        return f"{mark}{whole}\\frac{{{above}}}{{{below}}}{mark}" if int(above) < int(below) else match[0]

    return MIXED.sub(fraction, text.replace("\\%", "%"))
