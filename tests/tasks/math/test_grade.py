"""Grading: pairs that are easily got wrong, and answers that never end."""

import resource
import subprocess
import sys
import threading

import pytest

from tests.raising import raises
from ttcnet.tasks.math import Graders, Verdict, grade, verdict

SAME = [
    # percent
    ("3/4", "75%"),
    ("3/4", r"75\%"),
    (r"\frac{3}{4}", r"\boxed{75\%}"),
    (r"75\%", r"\boxed{\frac{3}{4}}"),
    ("75", r"\boxed{75\%}"),
    ("12.5", r"\boxed{12.5\%}"),
    ("12.5", r"#### 12.50 %"),
    (r"62.5\%", r"\boxed{62.5}"),
    (r"62.5\%", r"\boxed{\frac{5}{8}}"),
    ("0.1", "#### 10%"),
    # fractions, decimals, mixed numbers
    (r"\frac{1}{2}", r"\boxed{\frac12}"),
    (r"\frac{1}{2}", r"\boxed{\dfrac{1}{2}}"),
    (r"\frac12", r"\boxed{0.5}"),
    (r"\frac{1}{3}", r"\boxed{0.3333333}"),
    ("5/2", r"\boxed{2\frac{1}{2}}"),
    ("5/2", r"\boxed{2 1/2}"),
    ("5/2", "It takes 2 1/2 hours."),
    ("5.4", r"\boxed{5.40}"),
    (r"1.5 \times 10^3", r"\boxed{1500}"),
    # thousands
    ("1234", "#### 1,234"),
    ("1,234", "#### 1234"),
    ("1234", r"\boxed{1{,}234}"),
    ("10080", r"\boxed{10,\!080}"),
    ("10080", r"\boxed{10\,080}"),
    ("1000000", "#### 1,000,000"),
    # units and money
    ("18", r"\boxed{\$18}"),
    ("18", "She makes $18 every day."),
    ("18", r"\boxed{\$18.00}"),
    ("18", "#### 18 dollars"),
    ("3", r"\boxed{3 \text{ cm}}"),
    ("3", r"\boxed{3\,\mathrm{cm}^2}"),
    ("90", r"\boxed{90^\circ}"),
    (r"90^\circ", r"\boxed{90}"),
    ("30", r"\boxed{30^\circ.}"),
    # where the answer stands
    ("42", "5 + 5 = 10, 12 apples\n#### 42"),
    ("12", "So $5$ and 6.\n#### 12\nQuestion: what is 5 + 5?"),
    ("4", r"Answer: \boxed{4}. Check: 4 + 1 = 5."),
    ("42", r"It is $\boxed{41}$ ... no wait: $\boxed{42}$."),
    ("42", r"\boxed{\boxed{42}}"),
    ("42", r"\fbox{42}"),
    ("9", r"$x = \boxed 9$."),
    ("8", "\\[\n\\boxed{8}\n\\]"),
    ("8", "The answer is: **8**"),
    ("3", "Final Answer: The final answer is $3$. I hope it is correct."),
    (r"\frac{\sqrt{3}}{2}", r"so $\boxed{\frac{\sqrt{3}}{2}}$, and cut off \boxed{\frac{1"),
    ("5", r"\boxed{x=5}"),
    ("x=5", r"\boxed{5}"),
    (r"\boxed{5}", "5"),
    # several values, sets, tuples, intervals, matrices
    ("1,2", r"\boxed{2,1}"),
    ("1,2", r"$\boxed{2}$ and $\boxed{1}$"),
    (r"\{1,2\}", r"\boxed{\{2,1\}}"),
    (r"1 \pm \sqrt{2}", r"\boxed{1+\sqrt{2}, 1-\sqrt2}"),
    (r"(3,\frac{\pi}{2})", r"\boxed{\left(3, \frac{\pi}{2}\right)}"),
    ("[0,1)", r"\boxed{[0,1)}"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{\begin{bmatrix}1&2\\3&4\end{bmatrix}}"),
    # algebra
    ("x^2+2x+1", r"\boxed{(x+1)^2}"),
    (r"2\sqrt{3}", r"\boxed{\sqrt{12}}"),
    ("2+3i", r"\boxed{3i+2}"),
    ("a+b+c", r"\boxed{a + b + c}"),
    ("m+5", r"\boxed{5 + m}"),
    ("052", r"\boxed{52}"),
    # words
    (r"\text{Evelyn}", r"\boxed{\text{Evelyn}}"),
    (r"\text{Evelyn}", r"\boxed{Evelyn}"),
    (r"\text{(C)}", r"\boxed{C}"),
    ("6:30", r"\boxed{6:30}"),
    ("5:00", r"\boxed{5:00}"),
]
DIFFERENT = [
    ("3/4", r"\boxed{75}"),
    ("12.5", r"\boxed{13.5\%}"),
    (r"62.5\%", r"\boxed{6.25}"),
    ("75", r"\boxed{0.75}"),
    (r"\frac{1}{3}", r"\boxed{0.333}"),
    (r"\pi", r"\boxed{3.14}"),
    ("5/2", r"\boxed{\frac{1}{2}}"),
    ("41", r"It is $\boxed{41}$ ... no wait: $\boxed{42}$."),
    ("12", r"\boxed{12 \text{ or } 13}"),
    ("1", r"$\boxed{2}$ and $\boxed{1}$"),
    ("10", "10 apples\n#### 42"),
    ("-2", r"\boxed{2}"),
    ("18", "#### -18"),
    ("123", r"\boxed{1, 2, 3}"),
    ("(1,2)", r"\boxed{(2,1)}"),
    ("[0,1)", r"\boxed{(0,1)}"),
    (r"[0,\infty)", r"\boxed{x \ge 0}"),  # math-verify's rule: a set is asked for
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{\begin{pmatrix}1&2\\3&5\end{pmatrix}}"),
    ("i", r"\boxed{-i}"),
    ("5", r"\boxed{5 + m}"),
    ("x^2+2x+1", r"\boxed{(x-1)^2}"),
    (r"\text{even}", r"\boxed{\text{odd}}"),
    (r"\text{June 20}", r"\boxed{\text{July 20}}"),
]
UNPARSABLE = [
    "",
    " \n",
    "I do not know.",
    r"garbage $$$ \boxed{",
    r"\boxed{}",
    r"\boxed{\frac{}{}}",
    "The answer is Evelyn.",
]


@pytest.fixture(scope="module")
def graders():
    with Graders(1, seconds=2) as made:
        yield made


@pytest.mark.parametrize(("gold", "text"), SAME)
def test_the_same(graders, gold, text):
    (found,) = graders.verdicts([(gold, text)])
    assert found.right
    assert found.answer


@pytest.mark.parametrize(("gold", "text"), DIFFERENT)
def test_different(graders, gold, text):
    (found,) = graders.verdicts([(gold, text)])
    assert found.kind == "wrong"


@pytest.mark.parametrize("text", UNPARSABLE)
def test_unparsable(graders, text):
    assert graders.verdicts([("42", text)]) == [Verdict(False, None)]


def test_a_comparison_that_never_ends_is_stopped_and_the_next_answer_graded():
    """10^(10^10) is computed by code in C, which no signal handler of Python's interrupts."""
    with Graders(1, seconds=0.5) as graders:
        found = graders.verdicts([("3", r"\boxed{10^{10^{10}}}"), ("3", r"\boxed{3}")])
    assert found == [Verdict(False, None, "took more than 0.5 s"), Verdict(True, "3")]


def test_a_grader_that_ends_is_no_verdict(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with Graders(1) as graders, raises("failed", "grader", "1"):
        graders.verdicts([("42", "42")])


def test_a_grader_that_is_killed_grades_again():
    with Graders(1) as graders:
        assert graders.verdicts([("42", "42.0")])[0].right
        graders._started[0]._running.kill()
        assert graders.verdicts([("42", "42.0")])[0].right


def test_order_is_kept_by_several_processes():
    pairs = [(str(number), rf"\boxed{{{number + number % 2}.0}}") for number in range(40)]
    with Graders(2) as graders:
        assert [each.right for each in graders.verdicts(pairs)] == [number % 2 == 0 for number in range(40)]


def test_from_any_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(verdict("1/2", r"\boxed{0.50}")))
    thread.start()
    thread.join()
    assert found == [Verdict(True, "0.50")]
    assert not grade("1/2", "2")


def test_a_script_needs_no_guard_and_ends(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from ttcnet.tasks.math import grade\nprint(grade('3/4', '75%'))\n")
    done = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.slow
def test_ten_thousand_answers_in_a_minute_on_two_cores():
    """The time is the processor's, which does not depend on what else the machine is doing."""
    pairs = [
        (rf"\frac{{{number}}}{{{number % 97 + 2}}}", rf"we get $x = \boxed{{\dfrac{{{number}}}{{{number % 89 + 2}}}}}$")
        for number in range(10_000)
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with Graders(2) as graders:
        found = graders.verdicts(pairs)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 2 < 60
    assert all(each.kind != "unparsable" for each in found)
