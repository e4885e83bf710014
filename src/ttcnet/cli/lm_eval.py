"""ttcnet eval lm: imports happen inside, to keep --help instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ttcnet.command_options import Device, Trust, check_knobs

PAPER = "hellaswag,winogrande,arc_challenge,mmlu"
CODE = "humaneval"


def lm(
    model: Annotated[str, typer.Option(help="Folder or name of the Hub.")],
    out: Annotated[Path, typer.Option(help="Folder of the results. An existing evaluation is resumed.")],
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Tasks of lm_eval, YAML files, or tasks of ttcnet, such as amc, with commas between; default, the "
            f"paper's: {PAPER}, and {CODE} with --run-code."
        ),
    ] = None,
    adapter: Annotated[str | None, typer.Option(help="Folder of an adapter for the model.")] = None,
    horizon: Annotated[
        int | None, typer.Option(help="Horizon of TTC layers. Default: the model's. 0 for no planning.")
    ] = None,
    shots: Annotated[int | None, typer.Option(help="Examples in the prompt. Default: the task's.")] = None,
    limit: Annotated[int | None, typer.Option(help="Ask the first N questions of every task only.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of an answer. Default: the task's.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Ask through the model's chat template.")] = False,
    data: Annotated[
        str | None, typer.Option(help="Folder with the files of ttcnet's benchmarks. Default: the Hub.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Requests per batch.")] = 8,
    device: Device = "auto",
    trust_remote_code: Trust = False,
    run_code: Annotated[
        bool, typer.Option("--run-code", help="Run programs that the model writes on this machine, as HumanEval needs.")
    ] = False,
) -> None:
    """Evaluate a language model with lm-evaluation-harness. On several GPUs: accelerate launch -m ttcnet.cli eval lm
    ..."""
    from ttcnet.errors import errors_as_sentences
    from ttcnet.extras import require
    from ttcnet.model_names import check_model
    from ttcnet.storage.writing import check_folder
    from ttcnet.terminal.console import say, tell

    with errors_as_sentences():
        check_knobs(horizon)
        check_model(model, adapter)
        check_folder("out", out)
        tell("Starting lm_eval ...")
        require("lm_eval", "lm", "ttcnet eval lm")
        from ttcnet.evaluate.lm_eval.run import LMEvalConfig, evaluate

        names = tasks or (f"{PAPER},{CODE}" if run_code else PAPER)
        chosen = tuple(name.strip() for name in names.split(",") if name.strip())
        settings = LMEvalConfig(model, chosen, adapter, horizon, shots, limit, max_tokens, chat, data)
        table = evaluate(
            settings, out, batch=batch, device=device, run_code=run_code, trust_remote_code=trust_remote_code
        )
        if table:
            say(f"{table}\nDone. The results are in {out / 'results.json'}.")
