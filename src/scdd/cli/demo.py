"""`scdd demo`: a model in a minute, its samples, and the corrections that it makes on the way."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scdd.cli import options as o
from scdd.cli.view import follow, on_terminal, save_trace, show_correction, show_samples

if TYPE_CHECKING:
    from scdd.lm import LM, Sample


def demo(
    trace: Annotated[Path, typer.Option(help="Where the page goes that plays the samples.")] = Path(
        "demo.html"
    ),
    run: Annotated[
        Path | None, typer.Option(help="Keep the trained model in this run folder, and go on with it.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Training time, where a model has to be trained.")] = 60.0,
    num: o.Num = 3,
    steps: o.Steps = None,
    seed: o.Seed = 0,
    train: Annotated[bool, typer.Option("--train", help="Train, even if the package has a model.")] = False,
    device: o.Device = None,
    plain: o.Plain = False,
) -> None:
    """Train a nano model on a small text for a minute, sample from it, and show the corrections.

    Where the package comes with a trained model, that one is used and nothing is trained.
    """
    from scdd.lm.loading import BUNDLED
    from scdd.trace import check_path

    check_path(trace)
    if (BUNDLED / "model.safetensors").is_file() and not train and run is None:
        _show(o.open_model(None, device=device), trace, num, steps, seed, plain)
        return
    if run is not None:
        _show(_trained(run, seconds, device), trace, num, steps, seed, plain)
        return
    with tempfile.TemporaryDirectory(prefix="scdd-demo-") as folder:
        _show(_trained(Path(folder), seconds, device), trace, num, steps, seed, plain)


def _trained(folder: Path, seconds: float, device: str | None) -> LM:
    """The nano recipe, run by the trainer that `scdd train` uses."""
    from scdd.cli.train import check_same, run
    from scdd.recipe import load

    spec = load("nano", [f"training.max_seconds={seconds}"])
    check_same(spec, folder)
    typer.echo(f"Training a nano model on the bundled text for about {seconds:.0f} seconds.")
    run(spec, folder, device)
    return o.open_model(str(folder), device=device)


def _show(lm: LM, trace: Path, num: int, steps: int | None, seed: int, plain: bool) -> None:
    live = on_terminal(False, plain)
    typer.echo(f"\n{num} texts from masks, drawn by the reverse process:\n")
    samples = follow(lm.start(num, steps=steps, seed=seed, record=True), lm, live)
    show_samples(samples, False, live)
    typer.echo("\n" + _rates(lm, samples))
    _repair(lm, seed, live)
    save_trace(trace, samples, lm, "scdd demo")
    typer.echo(f"Open {trace} in a browser to watch the texts come into being.")


def _rates(lm: LM, samples: tuple[Sample, ...]) -> str:
    """Measured corrections beside those that the process alone asks for."""
    from scdd.samplers import grid, intrinsic

    drawn = sum(sample.unmasked for sample in samples)
    measured = sum(sample.corrections for sample in samples) / max(1, drawn)
    line = f"{measured:.2f} corrections a token, {sum(sample.remasked for sample in samples)} tokens remasked"
    if lm.process is None:
        return line + "."
    own = intrinsic(lm.process, grid(lm.sampling.grid.kind, samples[0].steps)).corrections
    return line + f"; a perfect model would make {own:.2f} (the process draws noise and takes it back)."


def _repair(lm: LM, seed: int, live: bool) -> None:
    """A drawn text with a few random tokens in it, repaired."""
    import torch

    from scdd.core.rng import Keyed, integers, uniforms

    source = Keyed(seed, [0])
    text = lm.generate(1, seed=seed, length=min(lm.engine.room, 48), stop=False)[0]
    tokens = torch.tensor([text.tokens])
    hit = uniforms(tokens.shape, source) < 0.1
    noise = lm.tokenizer.vocab.token(integers(lm.tokenizer.vocab.K, tokens.shape, source))
    broken = lm.engine.text(torch.where(hit, noise, tokens)[0].tolist())
    if lm.process is None or not broken.strip():
        return
    typer.echo(f"\nA text with {int(hit.sum())} random tokens in it:\n\n{broken}\n\nand repaired:\n")
    show_correction(lm.correct(broken, mode="pass", blocks=True), False, live)
