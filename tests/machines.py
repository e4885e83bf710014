"""The tests as other machines would run them: `python -m tests.machines [--machine NAME] [arguments of pytest]`.

Libraries choose their code by the CPU that they find; variables in the environment make them choose as elsewhere.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

THREADS = {count: {"OMP_NUM_THREADS": str(count), "MKL_DYNAMIC": "FALSE"} for count in (1, 4)}  # also on fewer cores
GENERIC = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
PLAIN = {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", **GENERIC}
MACHINES: dict[str, dict[str, str]] = {
    "1-thread": THREADS[1],
    "4-threads": THREADS[4],
    "mkl-compatible": {"MKL_CBWR": "COMPATIBLE"},  # a CPU that MKL knows nothing about
    "aten-default": {"ATEN_CPU_CAPABILITY": "default"},  # no vectors in torch's own loops
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},  # no AVX-512 anywhere
    "numba-generic": GENERIC,
    "plain-1-thread": PLAIN | THREADS[1],
    "plain-4-threads": PLAIN | THREADS[4],
}
# what multiplies matrices; the rest reads, writes and counts
SUITES = [f"tests/{name}" for name in ("lqr", "nn", "models", "adapter", "tasks/sudoku", "train", "evaluate")]


def run(name: str, arguments: list[str]) -> tuple[str, int, int, float]:
    """One machine: its name, tests passed, tests failed (or not run at all), seconds."""
    print(f"\n{name}: {' '.join(f'{key}={value}' for key, value in MACHINES[name].items())}", flush=True)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        call = [sys.executable, "-m", "pytest", f"--junitxml={report}", *arguments]
        code = subprocess.run(call, env=os.environ | MACHINES[name]).returncode
        counts = ElementTree.parse(report).getroot()[0].attrib if report.exists() else {}
    total, failed, skipped = (int(counts.get(key, 0)) for key in ("tests", "failures", "skipped"))
    failed += int(counts.get("errors", 0))
    return name, total - failed - skipped, failed or int(code != 0), time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", action="append", choices=MACHINES, help="this one; may be repeated (default: all)")
    options, arguments = parser.parse_known_args()
    results = [run(name, arguments or ["-n", "2", *SUITES]) for name in options.machine or MACHINES]
    print(f"\n{'machine':16}{'passed':>8}{'failed':>8}{'seconds':>9}")
    for name, passed, failed, seconds in results:
        print(f"{name:16}{passed:8}{failed:8}{seconds:9.0f}")
    return int(any(failed for _, _, failed, _ in results))


if __name__ == "__main__":
    sys.exit(main())
