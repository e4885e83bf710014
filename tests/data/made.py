"""Problems that are made up: as many as a test wants, and none like the other."""

import json
import random

WORDS = """
apples boats candles drums eggs flutes gloves hats jars kites lamps maps nuts oars pens rings sacks tents
Ada Ben Cleo Dan Eve Finn Gwen Hal Iris Jack Kim Leo Mia Ned Olga Pia Quin Rosa Sam Tess Uma Vera
buys sells finds loses paints counts packs carries hides trades borrows repairs collects
morning noon evening night Monday Tuesday Wednesday Thursday Friday Saturday Sunday spring summer
"""
THINGS, PEOPLE, DEEDS, TIMES = (line.split() for line in WORDS.strip().splitlines())


def problem(rng):
    """Four sentences of nine words."""
    said = [
        f"{rng.choice(PEOPLE)} {rng.choice(DEEDS)} {rng.randint(2, 99)} {rng.choice(THINGS)} and {rng.randint(2, 99)} "
        f"{rng.choice(THINGS)} every {rng.choice(TIMES)}."
        for _ in range(3)
    ]
    return " ".join(said) + f" How many {rng.choice(THINGS)} does {rng.choice(PEOPLE)} have by {rng.choice(TIMES)}?"


def problems(count, seed=0):
    rng = random.Random(seed)
    return [problem(rng) for _ in range(count)]


def rows(count, seed=0):
    texts = problems(count, seed)
    return [{"problem": text, "solution": f"It is {n}.\n#### {n}", "answer": str(n)} for n, text in enumerate(texts)]


def write(path, content):
    path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
