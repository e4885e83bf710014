"""Good files of every kind, to be damaged, and a good command line for each."""

import json
import os
import re
from pathlib import Path

import torch
from typer.testing import CliRunner

import ttcnet.adapter as adapter
from tests.evaluate.scripted import Scripted, model_folder, write
from tests.train import tiny
from ttcnet.cli import app
from ttcnet.evaluate.runs.run import RunConfig, run
from ttcnet.evaluate.runs.summary import summarise
from ttcnet.models import TTCNetForCellClassification
from ttcnet.tasks import Example
from ttcnet.tasks.jsonl import JsonLines
from ttcnet.tasks.sudoku import generate
from ttcnet.tasks.sudoku.settings import SudokuTraining
from ttcnet.train.sudoku import train

PUZZLE = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
ROWS = [{"problem": f"{k} + 1 = ?", "answer": str(k + 1), "solution": f"the answer is {k + 1}"} for k in range(4)]
SMALL = dict(steps=2, batch=2, layers=2, width=8, heads=2)
TASK = """task: own
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: loglikelihood
doc_to_text: '{{{{problem}}}}'
doc_to_target: ' {{{{answer}}}}'
"""
SHORT = "--max-tokens 3 --limit 2 --device cpu"
TRAIN = "--steps 2 --batch 2 --layers 2 --width 8 --heads 2 --device cpu"
# commands; {x} is an input by its name, {new} the output
LINES = {
    "sudoku train": f"sudoku train --data {{boards.csv}} --out {{new}} {TRAIN}",
    "sudoku train again": f"sudoku train --data {{boards.csv}} --out {{trained}} {TRAIN}",
    "sudoku eval": "sudoku eval {sudoku} --data {boards.csv} --mode single --out {new} --device cpu",
    "sudoku solve": f"sudoku solve {PUZZLE} --model {{sudoku}} --device cpu",
    "sudoku train looped": "sudoku train --data {boards.csv} --out {new} --loops 2 --recall --loops-per-step 1 "
    f"--context system --interleave 2:1 --supervision loop {TRAIN}",
    "sudoku eval looped": "sudoku eval {looped} --data {boards.csv} --mode single --loops 3 --out {new} --device cpu",
    "sudoku solve looped": f"sudoku solve {PUZZLE} --model {{looped}} --loops 3 --device cpu",
    "sudoku play": "sudoku play --model {sudoku} --port 99999999",
    "sudoku demo": "sudoku demo --model {sudoku} --givens 80 --picture {new}.png --device cpu",
    "sudoku generate": "sudoku generate 2 --guesses 1-3 --out {new}.csv",
    "sudoku rate": "sudoku rate {boards.csv} --out {new}",
    "sudoku probe": "sudoku probe {sudoku} --train {boards.csv} --test {boards.csv} --limit 2 --device cpu",
    "countdown make": "countdown make --out {new} --count 3",
    "data": "data {data.toml} --out {new}",
    "data again": "data {data.toml} --out {made}",
    "sft": "sft {sft.toml} --model {base} --data {rows.jsonl} --out {new}",
    "sft again": "sft {sft.toml} --model {base} --data {rows.jsonl} --out {tuned}",
    "sft variant": "sft {variants.toml} --variant small --model {base} --data {rows.jsonl}",
    "sft of rows": "sft --model {base} --data {rows.jsonl} --out {new} --insert none --batch 1 --steps 1 --no-bf16",
    "eval math": f"eval math {{rows.jsonl}} --model {{base}} --out {{new}} --system= {SHORT}",
    "eval math of ttc": f"eval math {{rows.jsonl}} --model {{ttc}} --out {{new}} --horizon 1 --system= {SHORT}",
    "eval math by adapter": f"eval math {{rows.jsonl}} --model {{base}} --adapter {{adapter}} --out {{new}} {SHORT}",
    "eval math by peft": f"eval math {{rows.jsonl}} --model {{base}} --adapter {{peft}} --out {{new}} {SHORT}",
    "eval math again": "eval math {rows.jsonl} --model {base} --out {again} --max-tokens 3 --system= --device cpu",
    "eval scaling": f"eval scaling {{rows.jsonl}} --model {{ttc}} --out {{new}} --horizons 1 --method horizon {SHORT}",
    "eval likelihood": "eval likelihood {rows.jsonl} --model {base} --out {new} --device cpu",
    "eval lm": "eval lm --model {base} --tasks {task.yaml} --limit 2 --batch 2 --out {new} --device cpu",
    "eval lm again": "eval lm --model {base} --tasks {task.yaml} --limit 2 --batch 2 --out {asked} --device cpu",
    "eval show": "eval show {answers}",
    "analyse alignment": "analyse alignment --model {ttc} --data {rows.jsonl} --horizon 1 --out {new} --device cpu",
    "analyse alignment of answers": "analyse alignment --model {ttc} --data {answers} --horizon 1 --out {new}",
    "bench lqr": "bench lqr --problems 1 --horizon 1 --provider plan --seconds 0.01 --out {new}",
    "bench lqr again": "bench lqr --resume --problems 1 --horizon 1 --provider plan --seconds 0.01 --out {lqr.csv}",
    "bench forms": "bench forms --shape 2x1x2x2 --rounds 1 --out {new}",
    "grpo": "grpo {grpo.toml} --model {ttc} --task {rows.jsonl} --out {new}",
}  # fmt: skip


def build(folder: Path) -> None:
    """All that LINES reads; some of it is made by the commands themselves."""
    torch.manual_seed(0)
    boards = generate(4, seed=0)
    boards.write(folder / "boards.csv")
    write(folder / "rows.jsonl", *ROWS)
    write(folder / "test.jsonl", {"problem": "How many days has a week of seven days?"})
    config = SudokuTraining(**SMALL)
    TTCNetForCellClassification(config.model()).save_pretrained(folder / "sudoku")
    looped = SudokuTraining(**SMALL, loops=2, recall=True, context="system")
    TTCNetForCellClassification(looped.model()).save_pretrained(folder / "looped")
    train(config, boards, folder / "trained", every=1, save_every=1, minutes=0)  # stopped after its first step
    model_folder(folder / "base")
    model_folder(folder / "ttc", ttc=True)
    sizes = dict(every=2, heads=2, state_size=8, rank=4)
    adapter.save(adapter.insert(tiny.model(), adapter.TTCAdapterConfig(**sizes)), folder / "adapter")
    _peft(folder / "peft")
    (folder / "sft.toml").write_text(
        'train = "all"\nbatch = 1\nsteps = 1\nbf16 = false\nlr = 0.001\nhorizon = "fixed:1"\n'
        '[adapter]\nevery = 2\nheads = 2\nstate_size = 8\nrank = 4\ninsert = "ttc"\n'
    )
    (folder / "variants.toml").write_text(
        'train = "inserted"\nbatch = 1\nsteps = 1\nbf16 = false\nout = "{variant}"\n[adapter]\nevery = 2\n'
        'heads = 2\nstate_size = 4\nrank = 2\ncontext = "system"\n[variant.small]\nlr = 0.01\n'
        "[variant.small.adapter]\naction_gain = 2.0\n"
    )
    (folder / "grpo.toml").write_text(
        "bf16 = false\nbatch = 1\nsamples = 2\nmax_tokens = 2\nsteps = 1\nlr = 0.001\ndevice_batch = 2\n"
        'tokens_at_once = 64\nhorizon = "fixed:1"\nrewards = { right = 1.0 }\n'
    )
    (folder / "data.toml").write_text(
        '[[source]]\ndata = "rows.jsonl"\nname = "rows"\nproblem = "problem"\n[near]\nthreshold = 0.7\n'
        '[decontaminate]\nwords = 13\n[[decontaminate.test]]\ndata = "test.jsonl"\nname = "test"\n'
        "[sample]\nrows = 2\nseed = 0\n"
    )
    (folder / "task.yaml").write_text(TASK.format(data="rows.jsonl"))
    _answers(folder / "answers")
    (folder / "lqr.csv").write_text((Path(__file__).parents[2] / "benchmarks/results/lqr-gpu.csv").read_text())
    before = os.getcwd()
    os.chdir(folder)
    try:
        for name in ("data again", "eval math again", "eval lm again", "sft again"):
            done = CliRunner().invoke(app, placed(LINES[name].split()))
            assert done.exit_code == 0, done.output
    finally:
        os.chdir(before)


def placeholders(line: str) -> list[str]:
    return re.findall(r"\{([\w.]+)\}", line)


def placed(words: list[str]) -> list[str]:
    """A command line for the folder that one stands in."""
    return [re.sub(r"\{([\w.]+)\}", r"./\1", word) for word in words]


def _peft(folder: Path) -> None:
    from peft import LoraConfig, get_peft_model

    get_peft_model(tiny.model(), LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(folder)


def _answers(folder: Path) -> None:
    examples = [Example(number, row["problem"], row["answer"]) for number, row in enumerate(ROWS, 1)]
    engine = Scripted(lambda ask, horizon: r"the answer is \boxed{2}")
    task = JsonLines("rows.jsonl")
    run(engine, RunConfig("rows", task, examples, (1,), 1, 0.0, 6, ""), folder)
    summarise(folder, task)
    assert json.loads((folder / "settings.json").read_text())["problems"] == len(ROWS)
