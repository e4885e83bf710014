"""The package as a whole: light to import, imports pointing one way, a command line that answers."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ttcnet
from tests.conftest import LONG, TESTS
from tests.raising import raises
from ttcnet.cli import app
from ttcnet.extras import require

SOURCE = Path(ttcnet.__file__).parent
ROOT = SOURCE.parents[1]
LOCK = ROOT / "uv.lock"
# imports may point to the same row or to an earlier one
ROWS = [
    {
        "machine",
        "storage",
        "terminal",
        "command_options",
        "bounds",
        "chat_client",
        "errors",
        "extras",
        "settings",
        "model_names",
    },
    {"lqr"},
    {"testing"},
    {"environment", "run_folder"},
    {"nn"},
    {"models", "adapter"},
    {"tasks"},
    {"bench", "train", "evaluate", "data"},
    {"cli"},
]
RANK = {part: rank for rank, row in enumerate(ROWS) for part in row}
# tests of what several modules of a folder do together, or with another library
TOGETHER = {
    "adapter/test_errors.py", "adapter/test_peft.py", "adapter/test_trainers.py", "bench/test_dense.py",
    "evaluate/test_not_finite.py", "lqr/test_digits.py", "lqr/test_properties.py", "models/test_transformers_suite.py",
}  # fmt: skip
LQR_MAY_IMPORT = {"numpy", "torch"}  # numpy: the arrays of compiled loops


def modules():
    return sorted(
        path
        for path in SOURCE.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py") or path.parent != SOURCE
    )


def imported(path: Path) -> list[str]:
    """Absolute names of all that a file imports, inside functions too."""
    return names_in(path.read_text(), ("ttcnet", *path.relative_to(SOURCE).parent.parts))


def names_in(code: str, package: tuple[str, ...]) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            stem = base + (node.module or "")
            names += (
                [stem] if node.module and stem != "ttcnet" else [f"{stem.rstrip('.')}.{a.name}" for a in node.names]
            )
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert own in RANK, f"{own} has no place in the order of imports; add it to ROWS"
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "ttcnet" and len(parts) > 1 and parts[1] in RANK:
            assert RANK[parts[1]] <= RANK[own], f"{path.relative_to(SOURCE)} must not import {name}"


def test_late_and_relative_imports_are_seen():
    code = "def f():\n    from ..evaluate.runs import run\n    from .. import train\n    import ttcnet.cli.sudoku"
    found = names_in(code, ("ttcnet", "tasks"))
    assert found == ["ttcnet.evaluate.runs", "ttcnet.train", "ttcnet.cli.sudoku"]
    assert all(RANK[name.split(".")[1]] > RANK["tasks"] for name in found)


def test_evaluation_knows_the_protocol_and_no_task():
    known = {f"ttcnet.tasks{part}" for part in ("", ".chat", ".statistics", ".task")}
    for path in (SOURCE / "evaluate").rglob("*.py"):
        names = {name for name in imported(path) if name.startswith("ttcnet.tasks")}
        assert names <= known, f"{path.relative_to(SOURCE)} must not import {names - known}"
        taken = re.findall(r"from ttcnet\.tasks import (.*)", path.read_text())
        found = {name for line in taken for name in line.split(", ")}
        assert found <= {"Example", "NAMES", "Task", "Verdict", "find"}


def test_packages_do_not_import_each_other_in_a_circle():
    """Nor do packages of one row: train, evaluate and data may use each other, but not in both directions."""
    found = {}
    for path in modules():
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        names = (name.split(".") for name in imported(path))
        found.setdefault(own, set()).update(
            parts[1] for parts in names if parts[0] == "ttcnet" and len(parts) > 1 and parts[1] in RANK
        )
    order = {own: others - {own} for own, others in found.items()}
    assert set(TopologicalSorter(order).static_order()) >= set(order)  # raises CycleError if there is one
    assert "tasks" in order["evaluate"]  # the imports were found


@pytest.mark.parametrize("path", sorted((SOURCE / "lqr").glob("*.py")), ids=lambda path: path.name)
def test_the_mathematics_needs_torch_and_numpy_alone(path):
    others = {name.split(".")[0] for name in imported(path)} - set(sys.stdlib_module_names) - {"ttcnet"}
    assert others <= LQR_MAY_IMPORT


@pytest.mark.parametrize(
    "module",
    [
        "ttcnet",
        "ttcnet.lqr",
        "ttcnet.nn",
        "ttcnet.cli",
        "ttcnet.tasks.sudoku",
        "ttcnet.evaluate",
        "ttcnet.tasks",
        "ttcnet.tasks.math",
    ],
)
def test_importing_is_light(module):
    heavy = {"numba", "numpy", "torch", "transformers", "triton"}
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    assert loaded == ("['numpy', 'torch']" if module == "ttcnet.lqr" else "[]")


def test_files_are_short():
    """A file tells one story."""
    for path in modules():
        assert len(path.read_text().splitlines()) <= 500, path


def test_files_of_tests_mirror_the_package():
    """tests/lqr/test_plan.py, or test_plan_gpu.py, tests src/ttcnet/lqr/plan.py; a package has a file like a module."""
    wholes, together = ("docs", "experiments", "fuzz", "trust"), set()
    for path in TESTS.rglob("test_*.py"):
        place = path.relative_to(TESTS)
        folder, name = SOURCE / place.parent, path.stem.removeprefix("test_")
        if place.parts[0] not in wholes:
            known = {each.stem.strip("_") for each in folder.iterdir()}
            if not any(name == each or name.startswith(f"{each}_") for each in known):
                together.add(str(place))
    assert together == TOGETHER | {"test_package.py"}


def test_help_and_version():
    runner = CliRunner()
    assert "env" in runner.invoke(app, ["--help"]).output
    assert runner.invoke(app, ["--version"]).output == f"ttcnet {ttcnet.__version__}\n"


def test_env_tells_versions_machine_and_backends():
    result = CliRunner().invoke(app, ["env"])
    assert result.exit_code == 0
    for word in ("torch", "python", "cpu", "gpu", "reference", "can run"):
        assert word in result.output
    lines = [line[2:] for line in result.output.splitlines() if line.startswith("  ")]
    assert len({len(line) - len(line.split("  ", 1)[1].lstrip()) for line in lines}) == 1, "values stand in one column"
    report = json.loads(CliRunner().invoke(app, ["env", "--json"]).output)
    assert report["versions"]["ttcnet"] == ttcnet.__version__
    assert report["plan backends"]["reference"] == "can run"


def test_nothing_installed_names_a_file_that_is_not():
    folders = ("benchmarks", "docs", "examples", "experiments", "notebooks", "tests")
    assert all((ROOT / folder).is_dir() for folder in folders)
    name = re.compile(rf"(?<![\w./-])({'|'.join(folders)})/[\w.]|\b(CONTRIBUTING|CHANGELOG)\.md")
    files = [path for path in SOURCE.rglob("*") if path.suffix in (".py", ".md", ".cu", ".cuh", ".html", ".yaml")]
    lines = [(path, line) for path in files for line in path.read_text().splitlines() if name.search(line)]
    assert [f"{path.relative_to(SOURCE)}: {line.strip()}" for path, line in lines] == []


def test_a_missing_package_is_answered_with_its_extra():
    with raises("package", "Drawing") as missing:
        require("nosuchthing.sub", "plot", "Drawing")
    assert "nosuchthing" in missing.value.rule
    assert "'ttcnet[plot]'" in missing.value.remedy
    assert require("json", "plot", "Drawing") is json


def test_the_tests_that_the_fast_ones_leave_out_exist():
    assert [name for name in LONG if not (TESTS / name).exists()] == []


def test_the_constraints_are_those_of_the_lock():
    """pip installs what uv has locked."""
    packages = [package for package in tomllib.loads(LOCK.read_text())["package"] if package["name"] != "ttcnet"]
    locked = {(package["name"], package["version"]) for package in packages}
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert {tuple(line.split(" ;")[0].split("==")) for line in lines} <= locked
    assert {name for name, _ in locked} == {line.split("==")[0] for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [each for extra in (project["dependencies"], *project["optional-dependencies"].values()) for each in extra]
    names = {re.match(r"[\w-]+", each)[0] for each in wanted} - {"ttcnet"}
    assert names <= {name for name, _ in locked}, "run make lock"


def test_the_lock_names_public_places_alone():
    hosts = set(re.findall(r"(?:https?|file)://[^/\"]*", LOCK.read_text()))
    assert hosts == {"https://pypi.org", "https://files.pythonhosted.org"}


def test_no_test_patches_torch():
    patches = re.compile(r"(setattr|setitem|delattr|patch|patch\.object)\(\s*[\"']?torch\b")
    files = [path for path in TESTS.rglob("*.py") if path.name != "test_package.py"]
    assert [path.name for path in files if patches.search(path.read_text())] == []
