"""`scdd bench`: the repository's benchmarks, by name."""

from __future__ import annotations

import runpy
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from scdd.core.errors import UserError

SCRIPTS = {
    "train": "train_step",
    "denoise": "denoise_step",
    "sample": "sample",
    "elbo": "elbo_op",
    "times": "time_sampling",
    "loader": "loader",
    "prepare": "prepare",
}
What = Enum("What", {name: name for name in SCRIPTS}, type=str)  # type: ignore[misc]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("bench", no_args_is_help=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(
    ctx: typer.Context,
    what: Annotated[What, typer.Argument(help="Which benchmark; its own flags follow (-- --help lists them).")],
) -> None:
    """Measure speed and memory, the comparison in the same run: train, denoise, sample, elbo, times, loader, prepare."""
    folder = Path(__file__).resolve().parents[3] / "benchmarks"
    script = folder / f"{SCRIPTS[what.value]}.py"
    if not script.is_file():
        raise UserError(
            f"scdd bench {what.value} runs benchmarks/{script.name}, which comes with the repository and not with the "
            "installed package: clone the repository and install it with pip install -e ."
        )
    sys.argv = [str(script), *ctx.args]
    sys.path.insert(0, str(folder))  # the scripts share common.py
    runpy.run_path(str(script), run_name="__main__")
