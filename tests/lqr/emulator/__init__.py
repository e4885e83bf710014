"""Runs the CUDA kernels on the CPU, by the host compiler and fibers: slow, but the very source that a GPU runs."""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import ttcnet.lqr.kernels

HERE = Path(__file__).parent
SOURCE = Path(ttcnet.lqr.kernels.__file__).parent / "recursion.cu"
BUILD = Path(tempfile.gettempdir()) / "ttcnet-emulator"
COMPILER = shutil.which("g++")


@cache
def _library(defines):
    text = "".join(f"-D{name}={value} " for name, value in defines) + f'-DKERNEL_SOURCE="{SOURCE}"'
    content = text + SOURCE.read_text() + (HERE / "emulator.cpp").read_text()
    target = BUILD / f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.so"
    if not target.exists():
        BUILD.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            built = Path(folder) / "emulator.so"
            flags = [f"-D{name}={value}" for name, value in defines] + [f'-DKERNEL_SOURCE="{SOURCE}"']
            command = [COMPILER, "-O1", "-shared", "-fPIC", "-std=c++17", "-ffp-contract=off", *flags]
            command += ["-Wall", "-Wno-unknown-pragmas", "-Wno-maybe-uninitialized"]
            subprocess.run([*command, str(HERE / "emulator.cpp"), "-o", str(built)], check=True)
            built.replace(target)
    return ctypes.CDLL(str(target))


def run(launch, device, arguments):
    """Stands in for ttcnet.lqr.kernels.nvrtc.run."""
    library = _library(launch.defines)
    shared = launch.shared_bytes // (8 if dict(launch.defines)["real"] == "double" else 4)
    assert shared <= 2**20, "more shared memory than the emulator has"
    values = [0 if x is None else x if isinstance(x, int) else x.data_ptr() for x in arguments]
    library.emulate(launch.kernel.encode(), ctypes.c_uint(launch.blocks), (ctypes.c_ulonglong * len(values))(*values))
