"""Machine, versions, commit and command: for bug reports, results and benchmarks. Imports nothing heavy."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from . import __version__

PACKAGES = ("torch", "triton", "numba", "transformers", "numpy")


def versions(*others: str) -> dict[str, str]:
    """Versions of ttcnet, Python, the packages that matter and `others`; "not installed" for missing ones."""
    found = {"ttcnet": __version__, "python": platform.python_version()}
    for package in (*PACKAGES, *others):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def machine() -> dict[str, str]:
    """Processor, GPU and operating system, as far as they are known without privileges."""
    import torch

    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": f"{_cpu_name()}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else f"none ({_why_no_gpu()})",
    }


def commit() -> str:
    """The commit of the checkout that this package runs from, "+changes" if it is dirty, "" outside a checkout."""
    here = Path(__file__).resolve().parent
    try:
        revision = _git("rev-parse", "--short=12", "HEAD", cwd=here)
        changed = _git("status", "--porcelain", "--untracked-files=no", cwd=here)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return revision + ("+changes" if changed else "")


def command(program: str = "ttcnet") -> str:
    """The command of this process, without the folders of this machine."""
    words = (Path(word).name if os.path.isabs(word) else word for word in sys.argv[1:])
    return f"{program} {shlex.join(words)}"


def provenance(*packages: str, program: str = "ttcnet") -> dict[str, Any]:
    """The provenance of a result: machine, versions (also of `packages`), commit and command."""
    return {
        "machine": machine(),
        "versions": versions(*packages),
        "commit": commit(),
        "command": command(program),
    }


def report() -> dict[str, dict[str, str]]:
    """Everything above, by section, for `ttcnet env`."""
    from .lqr import backends

    planning = {name: "can run" if reason is None else f"cannot run: {reason}" for name, reason in backends().items()}
    return {
        "versions": versions() | {"commit": commit() or "not a checkout"},
        "machine": machine(),
        "plan backends": planning,
    }


def _git(*arguments: str, cwd: Path) -> str:
    return subprocess.run(["git", *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _why_no_gpu() -> str:
    import torch

    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    return "torch sees no CUDA device"
