"""Sudoku in text: prompts, reading of answers, cells and boards."""

import pytest

from tests.tasks.sudoku.boards import PUZZLE, SOLUTION
from ttcnet.tasks import Example, find
from ttcnet.tasks.sudoku import generate, score
from ttcnet.tasks.sudoku.task import Sudoku

GIVEN = PUZZLE.replace("0", ".")
EXAMPLE = Example(1, GIVEN, SOLUTION)
BLANK = GIVEN.count(".")


def test_the_prompt_shows_nine_rows():
    prompt = Sudoku().prompt(EXAMPLE)
    assert [line for line in prompt.splitlines() if len(line) == 9] == [GIVEN[k : k + 9] for k in range(0, 81, 9)]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (rf"So it is \boxed{{{SOLUTION}}}.", "right"),
        ("\n".join(" ".join(SOLUTION[k : k + 9]) for k in range(0, 81, 9)), "right"),
        (f"First 9 and 8. Then {SOLUTION}", "right"),  # the last 81 digits
        (rf"\boxed{{{SOLUTION[::-1]}}} no: \boxed{{{SOLUTION}}}", "right"),
        (rf"\boxed{{{SOLUTION[::-1]}}}", "wrong"),
        (rf"\boxed{{{SOLUTION[:-1]}}} {SOLUTION}", "unparsable"),  # the box counts
        (SOLUTION[:-1], "unparsable"),
        ("", "unparsable"),
    ],
)
def test_answers(text, kind):
    assert Sudoku().grade(EXAMPLE, text).kind == kind


def test_cells_are_those_that_were_blank():
    cell = GIVEN.index(".")
    wrong = SOLUTION[:cell] + ("1" if SOLUTION[cell] != "1" else "2") + SOLUTION[cell + 1 :]
    verdict = Sudoku().grade(EXAMPLE, wrong)
    assert verdict.scores == {"right": BLANK - 1, "blank": BLANK}
    assert verdict.note == f"{BLANK - 1} of {BLANK} blank cells are right"


def test_figures_are_those_of_score(tmp_path):
    """The formulas are those for models of cells. The second board of the file has a row reversed."""
    boards = generate(3, seed=0)
    boards.write(tmp_path / "boards.csv")
    task = find(str(tmp_path / "boards.csv"))
    assert task.name == "boards"
    examples = task.examples()
    assert [example.text.count(".") for example in examples] == [81 - givens for givens in boards.givens]
    answers = [example.answer for example in examples]
    answers[1] = answers[1][8::-1] + answers[1][9:]
    verdicts = [[task.grade(example, answer)] for example, answer in zip(examples, answers, strict=True)]
    found = task.metrics(verdicts, 1)
    expected = score([[int(digit) for digit in answer] for answer in answers], boards.puzzles, boards.solutions)
    assert found["accuracy"].mean == expected.boards.rate == pytest.approx(2 / 3)
    assert (found["cells"].mean, found["cells"].low) == (expected.cells.rate, expected.cells.low)
