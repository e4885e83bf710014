"""Runs the CUDA kernels on the CPU, by the host compiler and fibers: slow, but the very source that a GPU runs."""

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import ttcnet.lqr.kernels

HERE = Path(__file__).parent
KERNELS = Path(ttcnet.lqr.kernels.__file__).parent
BUILD = Path(tempfile.gettempdir()) / "ttcnet-emulator"
COMPILER = shutil.which("g++")


@cache
def _library(name, defines):
    source = KERNELS / name
    kernels = re.findall(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(", source.read_text())
    macros = [*defines, ("KERNEL_SOURCE", f'"{source}"'), ("KERNELS", " ".join(f"TRY({kernel})" for kernel in kernels))]
    flags = [f"-D{macro}={value}" for macro, value in macros]
    sources = [*sorted(KERNELS.glob("*.cu*")), HERE / "emulator.cpp"]
    content = repr(flags) + "".join(path.read_text() for path in sources)
    target = BUILD / f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.so"
    if not target.exists():
        BUILD.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            built = Path(folder) / "emulator.so"
            command = [COMPILER, "-O1", "-shared", "-fPIC", "-std=c++17", "-ffp-contract=off", *flags]
            command += ["-Wall", "-Wno-unknown-pragmas", "-Wno-maybe-uninitialized", "-Wno-unused-function"]
            subprocess.run([*command, str(HERE / "emulator.cpp"), "-o", str(built)], check=True)
            built.replace(target)
    return ctypes.CDLL(str(target))


def run(launch, device, arguments):
    """Stands in for ttcnet.lqr.kernels.nvrtc.run."""
    library = _library(launch.source, launch.defines)
    shared = launch.shared_bytes // (8 if dict(launch.defines)["real"] == "double" else 4)
    assert shared <= 2**20, "more shared memory than the emulator has"
    values = [0 if x is None else x if isinstance(x, int) else x.data_ptr() for x in arguments]
    sizes = ctypes.c_uint(launch.blocks), ctypes.c_uint(shared)
    found = library.emulate(launch.kernel.encode(), *sizes, (ctypes.c_ulonglong * len(values))(*values))
    assert found, f"{launch.source} has no kernel {launch.kernel}"
