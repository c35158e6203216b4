"""`--ray [ADDRESS]`, for the verbs that can run on many machines. Imports no Ray."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from scdd.cluster.connect import ADDRESS, LOCAL

FLAG = "--ray"
Ray = Annotated[
    str | None,
    typer.Option(
        FLAG,
        metavar="[ADDRESS]",
        help="Work on Ray: on the cluster at HOST:PORT, on the one that this machine is in (auto), or, without an address, on one "
        "that lives as long as this command.",
    ),
]


class RayCommand(TyperCommand):
    """A verb whose `--ray` may stand alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`--ray` takes the next word only where that is an address: it may be a text, or another flag."""
        return super().parse_args(ctx, with_address(args))


def with_address(words: list[str]) -> list[str]:
    """The words with each lone `--ray` spelt out."""
    followers = [*words[1:], ""]
    return [
        f"{FLAG}={LOCAL}" if word == FLAG and not ADDRESS.fullmatch(followers[i]) else word
        for i, word in enumerate(words)
    ]
