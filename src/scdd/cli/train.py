"""`scdd train`: a recipe in, checkpoints out; the same command again goes on where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scdd.core.errors import UserError
from scdd.recipe.load import dumps, load, to_dict
from scdd.recipe.sections import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from scdd.assemble.training import Corpus
    from scdd.training.log import Log
    from scdd.training.parallel import World

SAMPLES = 2  # texts logged every training.sample_every steps

# What may differ from the recipe a run was started with: how long, how often, and on what, but never what is learnt.
CHANGEABLE = frozenset(
    f"training.{key}"
    for key in (
        *(
            "steps",
            "max_seconds",
            "save_every",
            "keep_last",
            "validate_every",
            "validate_batches",
            "log_every",
        ),
        *("sample_every", "tensorboard", "wandb", "compile", "parallel", "micro_batch_size"),
    )
)


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A file, or a shipped recipe's name.")],
    out: Annotated[Path, typer.Option(help="Run folder; the same command again resumes there.")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be repeated."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; cuda where there is one.")] = None,
) -> None:
    """Train a model from a recipe, or resume it; several devices with `torchrun --nproc-per-node N -m scdd train …`.

    SIGTERM and SIGINT (Ctrl-C) end the run after the current step, with a checkpoint and exit status 0; a mistake
    that you can mend ends it with status 2.
    """
    spec = load(recipe, changes or ())
    check_same(spec, out)
    run(spec, out, device)


def run(spec: Recipe, out: Path, device: str | None = None) -> None:
    """Train to the end, in this process or as one of torchrun's."""
    from scdd.assemble import training as build
    from scdd.training.exact import same_bits
    from scdd.training.parallel import world

    with same_bits(spec.training.deterministic), world(spec.training.parallel, device) as here:
        log, fresh = None, not (out / "tokenizer.json").exists()
        try:
            data = _data(spec, out, here)
            trainer = build.trainer(spec, out, here, data)
            resumed = trainer.resume()
            if spec.training.sample_every and here.kind != "fsdp":
                trainer.sampler = _sampler(spec, data, trainer) if here.is_main else None
            if here.is_main:
                _write(out / "recipe.yaml", dumps(spec))
                trainer.log = log = _log(spec, out, trainer.step)
                _greet(log, spec, resumed, trainer, here)
            outcome = trainer.run()
            if log is not None:
                log.text(outcome.step, "notice", _farewell(outcome, spec))
        except (UserError, OSError):
            if here.is_main and fresh:
                _forget(out)
            raise
        finally:
            if log is not None:
                log.close()


def _sampler(spec: Recipe, data: Corpus, trainer: Any) -> Callable[[int], list[str]]:
    """A few texts from the network as it is, to be logged as training goes; the same seed every time."""
    import torch

    from scdd.assemble.model import process as process_of
    from scdd.lm.model import LM

    step = trainer.module
    process = process_of(spec.process, data.tokenizer.vocab)
    lm = LM(
        step.network,
        process,
        data.tokenizer,
        data.length,
        sampling=spec.sampling,
        quality=getattr(step, "quality", None),
    )

    def texts(_: int) -> list[str]:
        with torch.autocast(lm.device.type, torch.bfloat16, enabled=step.bf16):
            return [sample.text for sample in lm.generate(SAMPLES, seed=spec.seed)]

    return texts


def check_same(spec: Recipe, out: Path) -> None:
    """Refuse to go on in the folder of another recipe, and name what differs."""
    if not (out / "recipe.yaml").is_file():
        if (out / "checkpoints").is_dir():
            raise UserError(
                f"{out} holds checkpoints but no recipe.yaml: restore it, or choose another --out."
            )
        return
    before, now = _leaves(to_dict(load(out / "recipe.yaml"))), _leaves(to_dict(spec))
    differing = [
        f"{key} ({before.get(key, 'absent')} → {now.get(key, 'absent')})"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and key not in CHANGEABLE
    ]
    if differing:
        raise UserError(
            f"{out} holds a run of another recipe, which differs in {', '.join(differing)}: "
            "use the same settings to resume it, or another --out."
        )


def _leaves(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {path: tree}
    return {
        k: v for key, node in tree.items() for k, v in _leaves(node, f"{path}.{key}" if path else key).items()
    }


def _data(spec: Recipe, out: Path, here: World) -> Corpus:
    """Rank 0 checks every shard and settles the tokenizer; the others then read the same."""
    from scdd.assemble import training as build
    from scdd.data.files import make_folder

    file = out / "tokenizer.json"
    known = file.read_text(encoding="utf-8") if file.is_file() else None
    if here.is_main:
        data = build.corpus(spec, known, verify=True)
        make_folder(out)
        if known is None:
            _write(file, data.tokenizer.to_str())
    here.wait()
    if not here.is_main:
        data = build.corpus(spec, file.read_text(encoding="utf-8"))
    return data


def _forget(out: Path) -> None:
    """Take back the tokenizer of a run that was refused before it began: another text would be read with it."""
    if out.is_dir() and not (out / "recipe.yaml").is_file():
        (out / "tokenizer.json").unlink(missing_ok=True)
        for folder in (out / "checkpoints", out):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def _write(path: Path, text: str) -> None:
    from scdd.data.files import write_atomically

    write_atomically(path, text.encode())


def _log(spec: Recipe, out: Path, step: int) -> Log:
    from importlib.util import find_spec

    from scdd.training.log import Lines, Log, Sink, TensorBoard, Terminal, Wandb

    training = spec.training
    sinks: list[Sink] = [Lines(out, step)]
    if training.tensorboard and find_spec("tensorboard") is not None:
        sinks.append(TensorBoard(out, step))
    if training.wandb is not None:
        sinks.append(Wandb(out, training.wandb, spec.name, to_dict(spec)))
    return Log(*sinks, Terminal(training.steps, step))  # last: the terminal shows what the files already hold


def _greet(log: Log, spec: Recipe, resumed: Path | None, trainer: Any, here: World) -> None:
    size = sum(p.numel() for p in trainer.module.parameters())
    where = f"{here.size} × {here.device.type} ({here.kind})" if here.size > 1 else str(here.device)
    log.text(trainer.step, "notice", f"{spec.name}: {size / 1e6:.1f} M parameters on {where}")
    if resumed is not None:
        log.text(trainer.step, "notice", f"resuming from {resumed}")


def _farewell(outcome: Any, spec: Recipe) -> str:
    if outcome.reason == "finished":
        return f"finished {outcome.step} steps: {outcome.checkpoint}"
    return (
        f"stopped at step {outcome.step} of {spec.training.steps} ({outcome.reason}): {outcome.checkpoint}; "
        "the same command goes on from there"
    )
