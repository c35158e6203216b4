"""`scdd train`: a recipe in, checkpoints out; the same command again goes on where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scdd.recipe.load import load


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A file, or a shipped recipe's name.")],
    out: Annotated[Path, typer.Option(help="Run folder; the same command again resumes there.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be repeated.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; cuda where there is one.")] = None,
) -> None:
    """Train a model from a recipe, or resume it; several devices with `torchrun --nproc-per-node N -m scdd train …`.

    SIGTERM, SIGINT (Ctrl-C) and SIGHUP (a terminal that is closed) end the run after the current step, with a checkpoint and exit
    status 0; a mistake that you can mend ends it with status 2. If whoever reads its lines leaves (`| head`), it goes on.
    """
    spec = load(recipe, changes or ())  # before torch is imported: a mistake is told at once
    from scdd.lm.training import train as run

    run(spec, out, device=device)
