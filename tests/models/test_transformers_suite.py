"""transformers' own tests of models, of the version that is installed, on a Llama with TTC layers and on TTC-Net.

They are fetched when this runs: the whole tests/ folder from the tag of that version on GitHub, or, where that cannot
be reached, the source distribution of PyPI, which has the common tests of models and not those of generation. A folder
named by TRANSFORMERS_TESTS, the tests/ of a checkout, goes before both.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import xml.etree.ElementTree
from pathlib import Path

import pytest
import transformers

pytestmark = pytest.mark.slow

CASES = Path(__file__).with_name("transformers_cases.py")
ARCHIVE = f"https://github.com/huggingface/transformers/archive/refs/tags/v{transformers.__version__}.tar.gz"
MINUTES = 40
# tests that cannot apply, and why; whatever else fails is an error, and so is one of these that passes
EXCEPTIONS: dict[str, str] = {}
# missing from the source distribution, and imported by the common tests
LEFT_OUT = {
    "generation/test_utils.py": "class GenerationTesterMixin: ...\n",
    "exporters/test_export.py": "class ExportTesterMixin: ...\n",
    "utils/test_configuration_utils.py": "config_common_kwargs = {}\n",
}


def fetch(folder: Path) -> Path:
    """The tests/ folder of transformers, in `folder`."""
    if given := os.environ.get("TRANSFORMERS_TESTS"):
        shutil.copytree(given, folder / "tests")
        return folder / "tests"
    archive = folder / "transformers.tar.gz"
    try:
        with urllib.request.urlopen(ARCHIVE, timeout=60) as answer, archive.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except (urllib.error.URLError, TimeoutError) as error:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-binary", ":all:", "--no-deps"]
        command += ["--dest", str(folder), f"transformers=={transformers.__version__}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"transformers' tests cannot be fetched: {error}; pip: {done.stderr.strip()[-300:]}")
        archive = next(folder.glob("transformers-*.tar.gz"))
    with tarfile.open(archive) as content:
        members = [member for member in content.getmembers() if member.name.split("/")[1:2] == ["tests"]]
        content.extractall(folder, members, filter="data")
    return next(folder.glob("*/tests"))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """All tests by name, with what came out; and whether those of generation are among them."""
    pytest.importorskip("parameterized", reason="transformers' tests need the package parameterized")
    tests = fetch(tmp_path_factory.mktemp("transformers"))
    complete = (tests / "generation" / "test_utils.py").is_file()
    for name, text in LEFT_OUT.items():
        file = tests / name
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
            (file.parent / "__init__.py").touch()
    (tests / "__init__.py").touch()
    shutil.copy(CASES, tests / "test_ttcnet.py")
    (tests.parent / "pytest.ini").write_text("[pytest]\n")
    report = tests.parent / "report.xml"
    source = Path(__file__).parents[2] / "src"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(source)}
    command = [sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini", "-p", "no:cacheprovider", "--tb=short"]
    done = subprocess.run(
        [*command, f"--junit-xml={report}", "tests/test_ttcnet.py"], cwd=tests.parent, env=environment,
        capture_output=True, text=True, timeout=60 * MINUTES,
    )  # fmt: skip
    assert report.is_file(), done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, set[str]] = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        found.setdefault(name, set()).update(
            child.tag for child in case if child.tag in ("failure", "error", "skipped")
        )
    return found, complete, done.stdout


def test_common_tests_of_transformers(outcome):
    found, _, text = outcome
    failed = {name for name, tags in found.items() if tags & {"failure", "error"}}
    ran = {name for name, tags in found.items() if not tags}
    assert {name.partition("::")[0] for name in ran} == {"TTCLlamaTest", "TTCNetTest"}
    assert len(ran) >= 150, f"{len(ran)} tests ran of {len(found)}"
    assert failed == {name for name in EXCEPTIONS if name in found}, text[-20000:]


def test_generation_is_among_them(outcome):
    found, complete, _ = outcome
    if not complete:
        pytest.skip(f"{ARCHIVE} cannot be reached, and PyPI has no tests of generation; set TRANSFORMERS_TESTS")
    assert {f"{kind}::test_greedy_generate" for kind in ("TTCLlamaTest", "TTCNetTest")} <= found.keys()
