"""Where a text states its answer."""

from __future__ import annotations

import re

BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
BARE = re.compile(r"\\boxed\s+(-?\w+(?:[.,/]\w+)*)")  # \boxed 9
JOINED = re.compile(r"(?:[\s$,;&]|\\[()\[\]]|and|or)*")  # between boxes that hold one answer together
HASHES = re.compile(r"^\s*####\s*(\S.*?)\s*$", re.MULTILINE)  # GSM8K's way
MIXED = re.compile(r"(?<![\d.,/])(\d{1,3}) (\d{1,3}) ?/ ?(\d{1,3})(?![\d/])")  # 2 1/2
SPACED = re.compile(r"\s*([-+=])\s*")  # math-verify takes the m of "5 + m" for metres, that of "5+m" not
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
        together = [boxes[-1]]
        for box in reversed(boxes[:-1]):
            if not JOINED.fullmatch(text, box[1], together[0][0]):
                break
            together.insert(0, box)
        contents = [text[text.index("{", start) + 1 : end - 1].rstrip(" .,\n") for start, end in together]
        content = SPACED.sub(r"\1", THOUSANDS.sub("", _plain(", ".join(contents))))
        return f"\\boxed{{{content}}}"
    hashes = HASHES.findall(text)
    return _plain(hashes[-1] if hashes else text, "$")


def _boxes(text: str) -> list[tuple[int, int]]:
    """Begin and end of all boxes with something in them, outermost only; what a cut text leaves open is none."""
    found: list[tuple[int, int]] = []
    for match in BOX.finditer(text):
        if found and match.start() < found[-1][1]:
            continue
        depth, place = 1, match.end()
        while depth and place < len(text):
            step = text[place]
            if step == "\\":
                place += 1  # what is escaped does not count
            depth += (step == "{") - (step == "}")
            place += 1
        if depth == 0 and text[match.end() : place - 1].strip():
            found.append((match.start(), place))
    return found


def _plain(text: str, mark: str = "") -> str:
    """Percent signs without backslash, and mixed numbers as LaTeX, with `mark` around them."""

    def fraction(match: re.Match[str]) -> str:
        whole, above, below = match.groups()
        return f"{mark}{whole}\\frac{{{above}}}{{{below}}}{mark}" if int(above) < int(below) else match[0]

    return MIXED.sub(fraction, text.replace("\\%", "%"))
