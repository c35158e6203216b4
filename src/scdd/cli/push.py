"""`scdd push`: a model to the Hugging Face Hub."""

from __future__ import annotations

from typing import Annotated

import typer


def push(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help='Checkpoint folder, run folder (its newest), Hub id or "bundled".')
    ],
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The repository; it is made if there is none.")],
    weights: Annotated[
        str, typer.Option(help="How to store them: bfloat16 or float32; int8 only with --bundle.")
    ] = "bfloat16",
    transformers: Annotated[
        bool, typer.Option("--hf/--bundle", help="With config and code for transformers, or for scdd alone.")
    ] = True,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch to put it on; it is made if there is none.")] = None,
    message: Annotated[str | None, typer.Option(help="Message of the commit.")] = None,
) -> None:
    """Upload a model to the Hugging Face Hub, with the token of `hf auth login` or of HF_TOKEN."""
    from scdd.lm.sharing import push as upload

    address = upload(
        model, repo, transformers=transformers, weights=weights, private=private, revision=revision, message=message
    )
    print(f"{model} → {address}" + (f", branch {revision}" if revision else ""))
    print(f"  scdd sample --model {repo}" + (f"@{revision}" if revision else ""))
