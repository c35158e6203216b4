"""`scdd.train(recipe, out)`: from a recipe to checkpoints, logged and resumed as `scdd train` does it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scdd.assemble import training as build
from scdd.assemble.network import OwnNetwork
from scdd.assemble.noise import NOISE
from scdd.core.errors import UserError
from scdd.core.files import TOKENIZER_LIMIT, read_text
from scdd.data.files import locked, make_folder, write_atomically
from scdd.lm.model import LM
from scdd.objectives.options import ElboOptions, PrismOptions
from scdd.recipe.load import dumps, from_dict, load, to_dict
from scdd.recipe.sections import Recipe
from scdd.training.exact import same_bits
from scdd.training.log import Lines, Log, Sink, TensorBoard, Terminal, Wandb
from scdd.training.optim import learning_rate
from scdd.training.options import CHANGEABLE, TrainingOptions
from scdd.training.parallel import World, world
from scdd.training.trainer import Outcome, Trainer

CHAT_TEMPLATE = "chat_template.jinja"  # of the run, beside its tokenizer
ENDING = 60.0  # seconds in which ranks whose peers are gone end, or torchrun ends them
RESUMED = frozenset({*(f"training.{name}" for name in CHANGEABLE), "data.cache", "data.cache_bytes"})
"""Keys of the recipe that may differ when a run goes on."""
SAMPLES = 2  # texts logged every training.sample_every steps


def train(
    recipe: str | Path | Recipe,
    out: str | Path,
    *,
    overrides: Iterable[str] = (),
    network: OwnNetwork | None = None,
    device: str | None = None,
    progress: bool = True,
) -> Outcome:
    """Train a model, or go on where the run in the folder `out` stopped; returns how and where it ended.

    `recipe` is a file, a shipped recipe's name or a recipe at hand, and `overrides` change it ("training.steps=100").
    `network` is a module of your own, or a function that makes it for a vocabulary, in place of the recipe's.
    The folder receives checkpoints, metrics.jsonl and whatever logs the recipe asks for, and one process at a time may
    train there; `progress` shows the numbers as they come. SIGTERM and SIGINT end the run after the current step, with a checkpoint. Under torchrun every process
    calls this. `scdd.load(out)` opens the result.
    """
    if isinstance(recipe, Recipe):
        spec = from_dict(to_dict(recipe), recipe.name, overrides)
    else:
        spec = load(recipe, overrides)
    try:
        return _run(spec, Path(out), network, device, progress)
    except UserError as error:
        if error.option in {field.name for field in fields(TrainingOptions)}:
            raise error.spelt(f"training.{error.option}") from error
        raise


def _require_same_recipe(spec: Recipe, out: Path) -> Recipe | None:
    """The recipe of the run that is in the folder; another one than ours is refused, naming what differs."""
    if not (out / "recipe.yaml").is_file():
        if any((out / "checkpoints").glob("step-*")):  # an empty folder is of a start that was killed
            raise UserError(f"{out} holds checkpoints but no recipe.yaml: restore it, or use another folder.")
        return None
    earlier = load(out / "recipe.yaml")
    before, now = _leaves(to_dict(earlier)), _leaves(to_dict(spec))
    differing = [
        f"{key} ({before.get(key, 'absent')} → {now.get(key, 'absent')})"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and key not in RESUMED
    ]
    if differing:
        raise UserError(
            f"{out} holds a run of another recipe, which differs in {', '.join(differing)}: "
            "use the same settings to resume it, or another folder."
        )
    return earlier


def _require_ahead(spec: Recipe, out: Path, step: int) -> None:
    """Refuse to end a run before the step that it has reached: its recipe would tell of a shorter one."""
    if spec.training.steps < step:
        raise UserError(
            f"training.steps is {spec.training.steps}, and the run in {out} is at step {step} already: ask for {step} or more, "
            "or use another folder."
        )


def _leaves(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {path: tree}
    return {k: v for key, node in tree.items() for k, v in _leaves(node, f"{path}.{key}" if path else key).items()}


def _run(spec: Recipe, out: Path, network: OwnNetwork | None, device: str | None, progress: bool) -> Outcome:
    """Train to the end, in this process or as one of torchrun's."""
    how = spec.training
    ranks = world(how.parallel, device, how.timeout, how.shard_ranks)
    with same_bits(how.deterministic), ranks as here, _alone(out, here):
        log, earlier = Log(), _require_same_recipe(spec, out)
        here.wait()  # until all have read it: rank 0 writes it anew
        try:
            data = _data(spec, out, here)
            trainer = build.trainer(spec, out, here, data, own_network=network)
            resumed = trainer.resume()
            _require_ahead(spec, out, trainer.step)
            if here.is_main:
                if spec.training.sample_every and not here.is_sharded:
                    trainer.sampler = _sampler(spec, data, trainer)
                trainer.log = log = _log(spec, out, trainer.step, progress)
                write_atomically(out / "recipe.yaml", dumps(spec).encode())  # nothing is refused from here on
                _greet(log, spec, resumed, trainer)
                for notice in (*trainer.notices, *_changes(spec, earlier, trainer), *data.notices):
                    log.text(trainer.step, "notice", notice)
            outcome = trainer.run()
            log.text(outcome.step, "notice", _farewell(outcome, spec))
            return outcome
        finally:
            log.close()


@contextmanager
def _alone(out: Path, here: World) -> Iterator[None]:
    """No other process trains in the folder meanwhile; a start that is refused leaves nothing behind."""
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    fresh = False
    with ExitStack() as held:

        def enter() -> None:
            nonlocal fresh
            make_folder(out)
            _lock(out, held)
            fresh = not (out / "tokenizer.json").exists()

        here.on_main(enter)
        try:
            yield
        except (UserError, OSError):
            if fresh:
                _forget(out, missing)
            raise


def _lock(out: Path, held: ExitStack) -> None:
    """Take the folder. Where torchrun restarts runs, a rank of the one before may need a moment to hear that it has ended."""
    deadline = time.monotonic() + (ENDING if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) else 0)
    while time.monotonic() < deadline:
        with suppress(UserError):
            held.enter_context(locked(out))
            return
        time.sleep(0.1)
    held.enter_context(locked(out))


def _data(spec: Recipe, out: Path, here: World) -> build.Corpus:
    """Rank 0 checks every shard and settles tokenizer and chat template; the others then read the same."""
    files = out / "tokenizer.json", out / CHAT_TEMPLATE
    known, template = map(_text, files)
    if here.is_main:
        data = build.corpus(spec, known, verify=True, chat_template=template)
        if template is None and data.chat_template is not None:
            write_atomically(files[1], data.chat_template.encode())
        if known is None:
            write_atomically(files[0], data.tokenizer.to_str().encode())
    here.wait()
    if not here.is_main:
        data = build.corpus(spec, _text(files[0]), chat_template=_text(files[1]))
    here.wait()  # patiently; the network's first exchange would not be
    return data


def _text(file: Path) -> str | None:
    return read_text(file, TOKENIZER_LIMIT) if file.is_file() else None


def _sampler(spec: Recipe, data: build.Corpus, trainer: Trainer) -> Callable[[], list[str]]:
    """A few texts from the network as it is, to be logged as training goes; the same seed every time."""
    process = trainer.objective.process
    network: Any = trainer.module.network
    quality: Any = trainer.objective.modules().get("quality")
    lm = LM(network, process, data.tokenizer, data.length, sampling=spec.sampling, quality=quality)
    return lambda: [sample.text for sample in lm.generate(SAMPLES, seed=spec.seed)]


def _forget(out: Path, made: list[Path]) -> None:
    """Take back the tokenizer of a run that was refused before it began (another text would be read with it), and the
    folders that were made for it."""
    if out.is_dir() and not (out / "recipe.yaml").is_file():
        (out / "tokenizer.json").unlink(missing_ok=True)
        (out / CHAT_TEMPLATE).unlink(missing_ok=True)
        (out / NOISE).unlink(missing_ok=True)
        for folder in (out / "checkpoints", out, *made):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def _log(spec: Recipe, out: Path, step: int, progress: bool) -> Log:
    training = spec.training
    sinks: list[Sink] = [Lines(out, step)]
    if training.tensorboard and find_spec("tensorboard") is not None:
        sinks.append(TensorBoard(out, step))
    if training.wandb is not None:
        sinks.append(Wandb(out, training.wandb, spec.name, to_dict(spec)))
    if progress:
        sinks.append(Terminal(training.steps, step))  # last: it shows what the files already hold
    return Log(*sinks)


def _changes(spec: Recipe, earlier: Recipe | None, trainer: Trainer) -> Iterator[str]:
    """What the user should know of a run that goes on otherwise than it began, and of its numbers."""
    aim = spec.objective
    if isinstance(aim, PrismOptions) or (isinstance(aim, ElboOptions) and (aim.weighting != "elbo" or aim.ar_share)):
        yield "train loss has the objective's weights, valid NELBO is the bound itself: the two cannot be compared"
    now = spec.training
    if isinstance(aim, ElboOptions) and aim.ar_share and not round(aim.ar_share * now.batch_size):
        yield (
            f"objective.ar_share {aim.ar_share:g} of training.batch_size {now.batch_size} is less than half a row: nothing is "
            "read left to right"
        )
    if earlier is None or earlier.training.steps == now.steps or not 0 < trainer.step < now.steps:
        return
    if now.final_fraction < 1:
        was, is_now = (f"{learning_rate(options, trainer.step):.2e}" for options in (earlier.training, now))
        if was != is_now:  # while it rises, the number of steps does not matter
            yield (
                f"training.steps was {earlier.training.steps} and is {now.steps}: the learning rate now reaches its lowest at "
                f"step {now.steps} (at step {trainer.step + 1} it is {is_now}, before it was {was})"
            )


def _greet(log: Log, spec: Recipe, resumed: Path | None, trainer: Trainer) -> None:
    size, trained = (
        sum(p.numel() for p in trainer.module.parameters() if p.requires_grad or not only) for only in (False, True)
    )
    here = trainer.world
    where = f"{here.size} × {here.device.type} ({here.kind})" if here.size > 1 else str(here.device)
    part = f", of which {trained / 1e6:.2f} M are trained," if trained < size else ""
    log.text(trainer.step, "notice", f"{spec.name}: {size / 1e6:.1f} M parameters{part} on {where}")
    if resumed is not None:
        log.text(trainer.step, "notice", f"resuming from {resumed}")


def _farewell(outcome: Outcome, spec: Recipe) -> str:
    if outcome.reason == "finished":
        return f"finished {outcome.step} steps: {outcome.checkpoint}"
    # The time is the whole run's: the same command again would stop at once.
    late = outcome.reason == "out of time"
    cure = "raise training.max_seconds to go on" if late else "the same command goes on from there"
    return f"stopped at step {outcome.step} of {spec.training.steps} ({outcome.reason}): {outcome.checkpoint}; {cure}"
