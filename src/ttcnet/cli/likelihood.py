"""ttcnet eval likelihood: imports happen inside, to keep --help instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ttcnet.command_options import Device, Trust, horizons, usable


def likelihood(
    data: Annotated[str, typer.Argument(help="JSON Lines file with problems and solutions, or owner/name of the Hub.")],
    model: Annotated[str, typer.Option(help="Folder or name of the Hub.")],
    adapter: Annotated[Path | None, typer.Option(help="Folder of an adapter for the model.")] = None,
    horizon: Annotated[
        list[str] | None, typer.Option(help="Horizon of TTC layers, or several: 0,1,2,4,8. Default: the model's.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split of a dataset of the Hub.")] = "test",
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use the first N rows only.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Leave out rows with more tokens, and count them.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for the results.")] = None,
    device: Device = "auto",
    trust_remote_code: Trust = False,
) -> None:
    """Log-likelihood of given solutions under a model, per token and per solution, with intervals."""
    from ttcnet.errors import errors_as_sentences

    with errors_as_sentences():
        from itertools import islice

        from rich.console import Console

        from ttcnet.extras import require
        from ttcnet.model_names import check_model
        from ttcnet.storage.reading import rows
        from ttcnet.storage.writing import check_output
        from ttcnet.terminal.console import say, tell
        from ttcnet.terminal.progress_bars import Bar
        from ttcnet.train.examples import check_examples, prepare

        steps = horizons("horizon", horizon) or (None,)
        check_model(model, adapter)
        check_output("out", out)
        if device != "auto":
            usable(device)
        source = list(islice(rows(data, split), limit))
        tell(f"Loading {model} ...")
        require("transformers", "eval", "ttcnet eval")
        from ttcnet.evaluate.analysis.likelihood import likelihoods
        from ttcnet.evaluate.engines.local import load

        console = Console(stderr=True)
        engine = load(model, adapter, device=device, trust_remote_code=trust_remote_code)
        found = prepare(source, engine.tokenizer, max_length=max_length, system=system)
        check_examples(found, engine.model, max_length)
        tell(found.report)
        with Bar(console=console, transient=True) as progress:
            bar = progress.add_task("solutions", total=len(found.rows) * len(steps))
            results = list(likelihoods(engine.model, found.rows, steps, watch=lambda done: progress.advance(bar, done)))
        for each in results:
            label = "" if each.horizon is None else f"horizon {each.horizon}: "
            say(f"{label}log-likelihood of a token {each.per_token}, of a solution {each.per_solution}")
        if out is not None:
            from ttcnet.environment import provenance
            from ttcnet.storage.writing import write_json

            figures = {"data": data, "results": [each.to_dict() for each in results]}
            write_json(out, engine.facts() | figures | provenance())
