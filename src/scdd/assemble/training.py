"""From a recipe to a training run: data, objective, network, trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from scdd.assemble.model import FOREIGN, network, network_config, process
from scdd.bundle.folder import Identity
from scdd.core.errors import UserError, at
from scdd.core.rng import derive_seed
from scdd.core.types import Vocab
from scdd.data import corpus as documents
from scdd.data.loader import Loader, Rank, validation_batches
from scdd.data.options import ShardsOptions, TextOptions
from scdd.data.pack import Packing, cut
from scdd.data.shards import MemoryTokens, Shards, TokenStream, read_manifest
from scdd.data.texts import split_texts
from scdd.data.tokenizer import TextTokenizer
from scdd.models.dit import DiT
from scdd.models.heads import QualityHead
from scdd.objectives.ar import ArObjective
from scdd.objectives.base import Objective
from scdd.objectives.diffusion import DiffusionObjective
from scdd.objectives.meter import Estimate
from scdd.objectives.options import ArOptions, PrismOptions
from scdd.objectives.prism import PrismObjective
from scdd.objectives.times import Adaptive, Power, TimeSampler
from scdd.processes.base import Process
from scdd.processes.options import AutoregressiveOptions
from scdd.recipe.load import dumps
from scdd.recipe.sections import Recipe
from scdd.training.optim import Optim
from scdd.training.options import TrainingOptions
from scdd.training.parallel import Parallel, Step, World
from scdd.training.resume import Checkpoints
from scdd.training.trainer import Settings, Trainer
from scdd.training.validate import validate

BUNDLED = Path(__file__).parent.parent / "assets" / "wiki"

# -- objectives -------------------------------------------------------------------------------------------------

TIMES: dict[str, Callable[[Any, int | None], TimeSampler]] = {
    "uniform": lambda spec, steps: TimeSampler(steps=steps, stratified=False),
    "low-discrepancy": lambda spec, steps: TimeSampler(steps=steps),
    "importance": lambda spec, steps: TimeSampler(Power(spec.power), steps),
    "adaptive": lambda spec, steps: TimeSampler(
        Adaptive(spec.power, spec.bins, spec.decay, spec.floor), steps
    ),
}


def objective(spec: Recipe, vocab: Vocab) -> Objective:
    """What is minimised."""
    aim = spec.objective
    if isinstance(aim, ArOptions):
        return ArObjective()
    forward = process(spec.process, vocab)
    assert isinstance(forward, Process)  # a recipe has checked that objective and process agree
    if isinstance(aim, PrismOptions):
        generator = torch.Generator().manual_seed(derive_seed(spec.seed, "quality") >> 1)
        head = QualityHead(network_config(spec).width, generator=generator)
        return PrismObjective(forward, head, aim.freeze, aim.share)
    times = TIMES[aim.times.kind](aim.times, aim.steps)
    return DiffusionObjective(forward, times, aim.weighting, compile=spec.training.compile)


# -- data -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Corpus:
    """Tokens to train on and to validate on, and what their ids mean."""

    tokenizer: TextTokenizer
    train: TokenStream
    valid: TokenStream | None
    length: int
    packing: Packing


def corpus(spec: Recipe, tokenizer: str | None = None, verify: bool = False) -> Corpus:
    """The recipe's data. `tokenizer` is the text of the one that the run already uses; `verify` reads every checksum."""
    known = TextTokenizer(tokenizer) if tokenizer is not None else None
    with at("data"):
        return DATA[spec.data.kind](spec.data, known, verify)


def _shards(spec: ShardsOptions, known: TextTokenizer | None, verify: bool) -> Corpus:
    with at("path"):
        train = Shards(spec.path, "train")
    if known is not None:
        train.require(known)
    held = Shards(spec.path, "valid") if "valid" in read_manifest(Path(spec.path))["splits"] else None
    for split in (train, held) if verify else ():
        if split is not None:
            split.verify()
    return Corpus(train.tokenizer(), train, held, spec.length, _packing(spec))


def _text(spec: TextOptions, known: TextTokenizer | None, verify: bool) -> Corpus:
    with at("path"):
        texts = documents.read([BUNDLED if spec.path == "bundled" else spec.path], separator=spec.separator)
    held, kept = split_texts(texts, spec.valid_fraction)
    if known is None and spec.tokenizer is not None:
        known = TextTokenizer.load(spec.tokenizer)
    elif known is None:
        known = TextTokenizer.train(kept, spec.vocab_size)
    train, valid = (MemoryTokens.encoded(part, known) for part in (kept, held))
    return Corpus(known, train, valid, spec.length, _packing(spec))


def _packing(spec: ShardsOptions | TextOptions) -> Packing:
    return "documents" if spec.documents else "wrap"


DATA: dict[str, Callable[[Any, TextTokenizer | None, bool], Corpus]] = {"shards": _shards, "text": _text}

# -- training ---------------------------------------------------------------------------------------------------


def optim(spec: TrainingOptions) -> Optim:
    """The optimiser and its learning rates."""
    return Optim(
        steps=spec.steps,
        peak=spec.learning_rate,
        initial=spec.initial_learning_rate,
        final_fraction=spec.final_fraction,
        warmup=spec.warmup_steps,
        betas=spec.betas,
        epsilon=spec.epsilon,
        weight_decay=spec.weight_decay,
        clip=spec.clip,
        muon=spec.muon,
        momentum=spec.momentum,
    )


def settings(spec: Recipe) -> Settings:
    """The run's lengths and intervals."""
    training = spec.training
    return Settings(
        steps=training.steps,
        batch_size=training.batch_size,
        micro_batch_size=training.micro_batch_size,
        ema=training.ema,
        save_every=training.save_every,
        validate_every=training.validate_every,
        log_every=training.log_every,
        sample_every=training.sample_every,
        max_seconds=training.max_seconds,
        seed=spec.seed,
    )


def trainer(spec: Recipe, run: Path, world: World, data: Corpus, aim: Objective | None = None) -> Trainer:
    """All of a run, on this rank, before anything is resumed.

    `aim` is an objective of your own in place of the recipe's, with a schedule or a process that no recipe can name.
    """
    vocab, training = data.tokenizer.vocab, spec.training
    extra = {} if aim is None else _foreign(spec, vocab, aim)
    aim = aim or objective(spec, vocab)
    net = _started(spec, data.tokenizer, aim) if training.start_from else network(spec, vocab)
    if isinstance(spec.objective, PrismOptions) and spec.objective.freeze:
        if not training.start_from:
            raise UserError(
                "objective.freeze keeps the denoiser as it is, and it is untrained: name a trained mdlm checkpoint in "
                "training.start_from, or set objective.freeze to false."
            )
        net.requires_grad_(False)
    step = Step(net, aim, bf16=training.precision == "bf16", ranks=world.size).to(world.device)
    parallel = Parallel(step, world, compile=training.compile and world.device.type == "cuda")
    with at("data"):
        blocks = cut(data.train, data.length, data.packing)
    with at("training"):
        rank = Rank(world.rank, world.size)
        loader = Loader(blocks, training.batch_size, spec.seed, rank, world.device)
    identity = Identity(
        recipe=dumps(spec),
        vocab=vocab,
        tokenizer=data.tokenizer.to_str(),
        network=asdict(net.config),
        extra=extra,
    )
    checkpoints = Checkpoints(run, identity, world, training.keep_last)
    return Trainer(
        parallel, optim(training), loader, checkpoints, settings(spec), _validation(spec, data, parallel)
    )


def _foreign(spec: Recipe, vocab: Vocab, aim: Objective) -> dict[str, Any]:
    """The process of an objective, if it is not the recipe's: checkpoints say so, and are not loaded without it."""
    trained = getattr(aim, "process", None)
    own = None if isinstance(spec.process, AutoregressiveOptions) else process(spec.process, vocab)
    return {} if repr(trained) == repr(own) else {FOREIGN: repr(trained)}


def _validation(spec: Recipe, data: Corpus, parallel: Parallel) -> Callable[[], Estimate] | None:
    valid, world, training = data.valid, parallel.world, spec.training
    if valid is None:
        return None

    rows = training.batch_size

    def measured() -> Estimate:
        limit = training.validate_batches * rows
        blocks, rank = cut(valid, data.length, data.packing), Rank(world.rank, world.size)
        batches = validation_batches(blocks, rows, limit, rank, world.device)
        return validate(parallel, batches, spec.seed, rows, training.micro_batch_size)

    return measured


def _started(spec: Recipe, tokenizer: TextTokenizer, aim: Objective) -> DiT:
    """The recipe's network with another checkpoint's weights; the process it was trained with does not matter."""
    from scdd.bundle import folder as bundle

    assert spec.training.start_from is not None
    found = bundle.read(spec.training.start_from)
    found.check(tokenizer.vocab, tokenizer.to_str() if found.tokenizer is not None else None)
    net = network(spec, tokenizer.vocab, input_bias="output.input_bias" in found.weights)
    heads = {f"{name}.": module for name, module in aim.modules().items()}
    for prefix, module in heads.items():
        part = {k.removeprefix(prefix): v for k, v in found.weights.items() if k.startswith(prefix)}
        if part:
            module.load_state_dict(part)
    weights = {k: v for k, v in found.weights.items() if not k.startswith("quality.")}
    if net.output.input_bias is not None:
        weights.setdefault("output.input_bias", torch.zeros(1))
    try:
        net.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(
            f"training.start_from {spec.training.start_from} does not fit model.size {spec.model.size}: "
            f"use the model section of its own recipe ({str(error).splitlines()[1].strip()})."
        ) from error
    return net
