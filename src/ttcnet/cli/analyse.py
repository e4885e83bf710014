"""ttcnet analyse ...: imports happen inside the commands, to keep --help instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ttcnet.command_options import Device, Trust, check_knobs

app = typer.Typer(help="Look inside models.", no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def alignment(
    model: Annotated[str, typer.Option(help="Folder or name of the Hub.")],
    data: Annotated[
        str,
        typer.Option(
            help="Problems and solutions: a JSON Lines file, owner/name of the Hub, or a folder of `ttcnet eval math`."
        ),
    ],
    out: Annotated[Path, typer.Option(help="JSON file for the results.")],
    adapter: Annotated[str | None, typer.Option(help="Folder of an adapter for the model.")] = None,
    horizon: Annotated[int | None, typer.Option(help="Horizon of TTC layers. Default: the model's.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use the first N questions only.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw a figure: PNG, PDF or SVG.")] = None,
    device: Device = "auto",
    trust_remote_code: Trust = False,
) -> None:
    """Compare the plans of TTC layers with the chain of thought that follows, of the same question and of others."""
    from ttcnet.errors import errors_as_sentences
    from ttcnet.extras import require
    from ttcnet.model_names import check_model
    from ttcnet.storage.writing import check_output, check_picture, write_json
    from ttcnet.terminal.console import say, tell

    with errors_as_sentences():
        check_knobs(horizon)
        check_model(model, adapter)
        check_output("out", out)
        if plot is not None:
            require("matplotlib", "plot", "Drawing the alignment")
            check_picture("plot", plot)
        tell("Starting transformers ...")
        require("transformers", "models", "ttcnet analyse")
        from ttcnet.evaluate.analysis.alignment import draw, report, table

        found = report(
            model, data, adapter=adapter, horizon=horizon, limit=limit, device=device,
            trust_remote_code=trust_remote_code,
        )  # fmt: skip
        write_json(out, found)
        if plot is not None:
            draw(found, plot)
    for line in table(found):
        say(line)
    say(f"Written to {out}{'' if plot is None else f' and {plot}'}.")
