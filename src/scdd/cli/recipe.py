"""`scdd recipe`: look at recipes without running them."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from scdd.recipe.load import dumps, load, schema, shipped

app = typer.Typer(
    help="Show, check and list recipes.", add_completion=False, rich_markup_mode=None, no_args_is_help=True
)

File = Annotated[str, typer.Argument(metavar="RECIPE", help="A file, a run folder, or a shipped recipe's name.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be repeated.")
]


@app.command()
def show(recipe: File, changes: Set = None) -> None:
    """Print the recipe with every default written out."""
    typer.echo(dumps(load(recipe, changes or ())), nl=False)


@app.command()
def check(recipe: File, changes: Set = None) -> None:
    """Say whether the recipe is right; exit with 2 if it is not."""
    typer.echo(f"{recipe}: ok ({load(recipe, changes or ()).name})")


@app.command("schema")
def print_schema() -> None:
    """Print the JSON schema of a recipe."""
    typer.echo(json.dumps(schema(), indent=2, ensure_ascii=False))


@app.command("list")
def print_list() -> None:
    """List the recipes inside the package."""
    for name in shipped():
        typer.echo(name)
