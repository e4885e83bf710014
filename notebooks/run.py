"""Run the notebooks and store their output: `make notebooks`. Names as arguments run those alone.

Output that differs from run to run (times, versions) is removed, so that a change in git is a change of the content.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ttcnet.extras import require

HERE = Path(__file__).parent


def main() -> None:
    nbformat = require("nbformat", "notebooks", "Running notebooks")
    nbclient = require("nbclient", "notebooks", "Running notebooks")
    for path in [HERE / name for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")):
        notebook = nbformat.read(path, 4)
        nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=str(HERE))
        notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        for cell in notebook.cells:
            cell.metadata = {}
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        nbformat.write(notebook, path)
        print(path.relative_to(HERE.parent))


if __name__ == "__main__":
    main()
