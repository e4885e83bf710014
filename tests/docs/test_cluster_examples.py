"""The files of examples/cluster start their runs: by two processes on the CPU, from one settings file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.train import jobs

ROOT = Path(__file__).parents[2]
FILES = ROOT / "examples" / "cluster"
SKY, ACCELERATE = (yaml.safe_load((FILES / name).read_text()) for name in ("skypilot.yaml", "accelerate.yaml"))
SBATCH = FILES / "slurm.sbatch"
SRUN = """#!/bin/bash
shift # --kill-on-bad-exit=1
[ -n "$SRUN_CODE" ] && exit "$SRUN_CODE"
for rank in 0 1; do SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" & found+=($!); done
for each in "${found[@]}"; do wait "$each" || code=$?; done
exit "${code:-0}"
"""
SCONTROL = """#!/bin/bash
[ "$1" = show ] && echo localhost || echo "$@" > "$REQUEUED"
"""


def bash(script, folder, *words, **environment):
    """Run a script with made-up srun and scontrol in place of Slurm's, and the commands of this environment."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    slurm = dict(SLURM_JOB_NODELIST="localhost", SLURM_NTASKS="2", SLURM_JOB_ID="7", REQUEUED=str(folder / "requeued"))
    own = os.environ | dict(PATH=path, PYTHONPATH=f"{ROOT / 'src'}:{ROOT}", OMP_NUM_THREADS="1") | slurm | environment
    return subprocess.run(["bash", *script, *words], env=own, cwd=folder, capture_output=True, text=True, timeout=300)


def test_scripts_are_written_in_shell():
    for text in (SBATCH.read_text(), SKY["run"], SKY["setup"]):
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    options = [line for line in SBATCH.read_text().splitlines() if line.startswith("#SBATCH")]
    assert all(line.startswith("#SBATCH --") for line in options)
    assert {"#SBATCH --requeue", "#SBATCH --open-mode=append"} <= set(options)


def test_files_have_the_fields_of_their_programs():
    assert set(SKY) <= {"name", "num_nodes", "resources", "workdir", "envs", "setup", "run"}
    assert not any(name.startswith(("fsdp", "deepspeed", "megatron")) for name in ACCELERATE)
    assert ACCELERATE["distributed_type"] == "MULTI_GPU"


def test_a_job_that_was_stopped_goes_into_the_queue_again(tmp_path):
    done = bash([str(SBATCH)], tmp_path, "settings.toml", SRUN_CODE="143")
    assert done.returncode == 143
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    (tmp_path / "requeued").unlink()
    assert bash([str(SBATCH)], tmp_path, "settings.toml", SRUN_CODE="1").returncode == 1
    assert not (tmp_path / "requeued").exists()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["slurm", "skypilot", "accelerate"])
def test_launchers_start_the_same_run(launcher, tmp_path):
    jobs.base(tmp_path)
    settings = 'model = "base"\ndata = "data.jsonl"\nout = "run"\nsharded = true\nbf16 = false\ntrain = "inserted"\n'
    settings += "steps = 2\nbatch = 4\n[adapter]\nevery = 2\nheads = 2\nstate_size = 8\nrank = 4\n"
    (tmp_path / "settings.toml").write_text(settings)
    nodes = dict(SKYPILOT_NUM_NODES="1", SKYPILOT_NODE_RANK="0", SKYPILOT_NODE_IPS="localhost")
    port = str(29600 + os.getpid() % 1000)
    if launcher == "slurm":
        done = bash([str(SBATCH)], tmp_path, "settings.toml", MASTER_PORT=port)
    elif launcher == "skypilot":
        run = SKY["run"].replace("29500", port)
        done = bash(["-c", run], tmp_path, SKYPILOT_NUM_GPUS_PER_NODE="2", SETTINGS="settings.toml", **nodes)
    else:
        options = f"--config_file {FILES / 'accelerate.yaml'} --num_processes 2 --main_process_port {port}"
        done = bash(["-c", f"accelerate launch {options} -m ttcnet.cli sft settings.toml"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])["step"] == 2
    assert (tmp_path / "run" / "checkpoint-2.part-1.safetensors").exists(), "each of two processes saved its pieces"
    assert (tmp_path / "run" / "adapter").is_dir()
