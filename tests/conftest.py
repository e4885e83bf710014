"""Settings for all tests."""

import os

import hypothesis
import torch

# as many threads as fit when pytest-xdist runs several tests side by side, unless OMP_NUM_THREADS says how many
if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))))

hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("default")
