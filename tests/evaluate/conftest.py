"""One grader for all tests of evaluation: it takes longer to start than to grade."""

from contextlib import nullcontext

import pytest

import ttcnet.tasks.math
from ttcnet.tasks.math import Graders


@pytest.fixture(scope="session")
def graders():
    with Graders(1) as made:
        yield made


@pytest.fixture(autouse=True)
def _shared(request, monkeypatch):
    """The command line takes it too."""
    if "graders" in request.fixturenames or request.module.__name__.endswith(("test_scaling", "cli.test_evaluate")):
        shared = request.getfixturevalue("graders")
        monkeypatch.setattr(ttcnet.tasks.math, "Graders", lambda: nullcontext(shared))
