"""The notebooks run from top to bottom, and contain their output."""

import json
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def code(notebook):
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def pyplot():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    yield pyplot
    pyplot.close("all")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(notebook, pyplot):
    threads, names = torch.get_num_threads(), {}
    try:
        for number, cell in enumerate(code(notebook)):
            exec(compile("".join(cell["source"]), f"{notebook.name}, code cell {number}", "exec"), names)
    finally:
        torch.set_num_threads(threads)
    assert len(pyplot.get_fignums()) >= 2


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_small_and_with_their_pictures(notebook):
    assert notebook.stat().st_size < 200_000
    outputs = [output for cell in code(notebook) for output in cell["outputs"]]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert not [output for output in outputs if output["output_type"] == "error"]
