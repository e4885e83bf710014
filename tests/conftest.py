"""Settings for all tests, and which of them `make test-fast` leaves out."""

import os
from pathlib import Path

import hypothesis
import torch

# as many threads as fit when pytest-xdist runs several tests side by side, unless OMP_NUM_THREADS says how many; for
# the programs that tests start too, which crawl where there are more threads than cores
if "OMP_NUM_THREADS" not in os.environ and "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    threads = max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)

hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("default")

TESTS = Path(__file__).parent
# what trains, compiles, starts programs or builds pages; CONTRIBUTING.md says so too
LONG = (
    "adapter/test_memory.py", "adapter/test_insert_remove.py", "adapter/test_trainers.py", "bench", "cli",
    "data/test_run.py", "docs", "evaluate", "experiments", "fuzz", "lqr/test_digits.py", "lqr/test_adjoint.py",
    "lqr/kernels", "lqr/test_ilqr.py", "nn/test_mixers.py", "nn/test_ttc_onnx.py",
    "tasks/math/test_grade.py", "tasks/sudoku/test_demo.py", "tasks/sudoku/test_page_server.py",
    "machine/test_compile_cache.py", "storage/test_locking.py", "test_model_names.py", "train", "trust",
)  # fmt: skip


def pytest_addoption(parser):
    parser.addoption("--fast", action="store_true", help="leave out tests that take long, as make test-fast does")


def pytest_ignore_collect(collection_path, config):
    if config.getoption("--fast") and collection_path.is_relative_to(TESTS):
        return str(collection_path.relative_to(TESTS)) in LONG or None
    return None
