"""From a recipe to the things it names. The only file that knows every `kind`: one small table a family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from scdd import objectives, processes, recipe, schedules
from scdd.core import UserError, Vocab
from scdd.data.loader import Loader, validation_batches
from scdd.data.pack import Packing
from scdd.data.shards import MemoryTokens, Shards, TokenStream, read_manifest
from scdd.data.texts import read_texts, split_texts
from scdd.data.tokenizer import TextTokenizer
from scdd.models import SIZES, DiT, DiTConfig, QualityHead
from scdd.objectives import Objective, TimeSampler, stream
from scdd.processes import Process
from scdd.schedules import Schedule
from scdd.training import Checkpoints, Identity, Optim, Parallel, Settings, Step, Trainer, World, validate

BUNDLED = Path(__file__).parent / "assets" / "wiki"
FOREIGN = "process"  # where a checkpoint notes a process that is not its recipe's

# -- schedules and processes ------------------------------------------------------------------------------------

CURVES: dict[str, Callable[[Any], schedules.Curve]] = {
    "constant": lambda spec: schedules.Constant(),
    "polynomial": lambda spec: schedules.Polynomial(spec.power, spec.end),
    "cosine": lambda spec: schedules.Cosine(spec.end),
}

SCHEDULES: dict[str, Callable[[Any], Schedule]] = {
    "peaked": lambda spec: schedules.Peaked(spec.p_u, spec.exponent, spec.t_peak),
    "masked": lambda spec: schedules.Masked(spec.shape),
    "decoupled": lambda spec: schedules.Decoupled(
        gamma=CURVES[spec.gamma.kind](spec.gamma), rho=CURVES[spec.rho.kind](spec.rho)
    ),
}

PROCESSES: dict[str, Callable[[Vocab, Schedule], Process]] = {
    "scdd": processes.SCDD,
    "gidd": processes.GIDD,
    "mdlm": processes.MDLM,
}


def schedule(spec: recipe.Schedule) -> Schedule:
    """γ_t and ρ_t."""
    return SCHEDULES[spec.kind](spec)


def process(spec: recipe.Process, vocab: Vocab) -> Process:
    """The forward process; the autoregressive baseline has none."""
    if isinstance(spec, recipe.ArProcess):
        raise UserError("process.kind ar has no forward process: choose scdd, mdlm or gidd for diffusion.")
    return PROCESSES[spec.kind](vocab, schedule(spec.schedule))


# -- the network ------------------------------------------------------------------------------------------------


def network_config(spec: recipe.Recipe, input_bias: bool = False) -> DiTConfig:
    """The network's shape; `input_bias` if weights from elsewhere have one, whatever the recipe says."""
    model = spec.model
    if model.size == "custom":
        assert model.depth is not None  # the recipe has checked all three
        assert model.width is not None
        assert model.heads is not None
        shape = DiTConfig(model.depth, model.width, model.heads)
    else:
        shape = SIZES[model.size]
    return replace(
        shape,
        cond_width=model.cond_width,
        time_conditioning=model.time_conditioning,
        time_input=model.time_input,
        causal=spec.process.kind == "ar",
        input_bias=model.input_bias or input_bias,
    )


def network(spec: recipe.Recipe, vocab: Vocab, input_bias: bool = False) -> DiT:
    """The denoiser with the recipe's seed's weights, drawn on the CPU: the same on every device."""
    generator = torch.Generator().manual_seed(stream(spec.seed, "weights") >> 1)
    return DiT(network_config(spec, input_bias), vocab, generator)


# -- objectives -------------------------------------------------------------------------------------------------

TIMES: dict[str, Callable[[Any, int | None], TimeSampler]] = {
    "uniform": lambda spec, steps: TimeSampler(steps=steps, stratified=False),
    "low-discrepancy": lambda spec, steps: TimeSampler(steps=steps),
    "importance": lambda spec, steps: TimeSampler(objectives.Power(spec.power), steps),
    "adaptive": lambda spec, steps: TimeSampler(
        objectives.Adaptive(spec.power, spec.bins, spec.decay, spec.floor), steps
    ),
}


def objective(spec: recipe.Recipe, vocab: Vocab) -> Objective:
    """What is minimised."""
    aim = spec.objective
    if isinstance(aim, recipe.ArObjective):
        return objectives.ArObjective()
    forward = process(spec.process, vocab)
    if isinstance(aim, recipe.PrismObjective):
        generator = torch.Generator().manual_seed(stream(spec.seed, "quality") >> 1)
        head = QualityHead(network_config(spec).width, generator=generator)
        return objectives.PrismObjective(forward, head, aim.freeze, aim.share)
    times = TIMES[aim.times.kind](aim.times, aim.steps)
    return objectives.DiffusionObjective(forward, times, aim.weighting, compile=spec.training.compile)


# -- data -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Corpus:
    """Tokens to train on and to validate on, and what their ids mean."""

    tokenizer: TextTokenizer
    train: TokenStream
    valid: TokenStream | None
    length: int
    packing: Packing


def corpus(spec: recipe.Recipe, tokenizer: str | None = None, verify: bool = False) -> Corpus:
    """The recipe's data. `tokenizer` is the text of the one that the run already uses; `verify` reads every checksum."""
    return DATA[spec.data.kind](
        spec.data, TextTokenizer(tokenizer) if tokenizer is not None else None, verify
    )


def _shards(spec: recipe.ShardsData, known: TextTokenizer | None, verify: bool) -> Corpus:
    train = Shards(spec.path, "train")
    if known is not None:
        train.require(known)
    held = Shards(spec.path, "valid") if "valid" in read_manifest(Path(spec.path))["splits"] else None
    for split in (train, held) if verify else ():
        if split is not None:
            split.verify()
    return Corpus(train.tokenizer(), train, held, spec.length, _packing(spec))


def _text(spec: recipe.TextData, known: TextTokenizer | None, verify: bool) -> Corpus:
    texts = read_texts(BUNDLED if spec.path == "bundled" else Path(spec.path))
    held, kept = split_texts(texts, spec.valid_fraction)
    if known is None and spec.tokenizer is not None:
        known = TextTokenizer.load(spec.tokenizer)
    elif known is None:
        known = TextTokenizer.train(kept, spec.vocab_size)
    train, valid = (
        MemoryTokens(known.encode_batch(part), known.bos_id, known.eos_id) for part in (kept, held)
    )
    return Corpus(known, train, valid, spec.length, _packing(spec))


def _packing(spec: recipe.ShardsData | recipe.TextData) -> Packing:
    return "documents" if spec.documents else "wrap"


DATA: dict[str, Callable[[Any, TextTokenizer | None, bool], Corpus]] = {"shards": _shards, "text": _text}

# -- training ---------------------------------------------------------------------------------------------------


def optim(spec: recipe.Training) -> Optim:
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


def settings(spec: recipe.Recipe) -> Settings:
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


def trainer(
    spec: recipe.Recipe, run: Path, world: World, data: Corpus, aim: Objective | None = None
) -> Trainer:
    """All of a run, on this rank, before anything is resumed.

    `aim` is an objective of your own in place of the recipe's, with a schedule or a process that no recipe can name.
    """
    vocab, training = data.tokenizer.vocab, spec.training
    extra = {} if aim is None else _foreign(spec, vocab, aim)
    aim = aim or objective(spec, vocab)
    net = _started(spec, data.tokenizer, aim) if training.start_from else network(spec, vocab)
    if isinstance(spec.objective, recipe.PrismObjective) and spec.objective.freeze:
        if not training.start_from:
            raise UserError(
                "objective.freeze keeps the denoiser as it is, and it is untrained: name a trained mdlm checkpoint in "
                "training.start_from, or set objective.freeze to false."
            )
        net.requires_grad_(False)
    step = Step(net, aim, bf16=training.precision == "bf16", ranks=world.size).to(world.device)
    parallel = Parallel(step, world, compile=training.compile and world.device.type == "cuda")
    loader = Loader(
        data.train,
        data.length,
        training.batch_size,
        seed=spec.seed,
        rank=world.rank,
        world=world.size,
        packing=data.packing,
        device=world.device,
    )
    identity = Identity(recipe.dumps(spec), data.tokenizer.to_str(), vocab, asdict(net.config), extra)
    checkpoints = Checkpoints(run, identity, world, training.keep_last)
    return Trainer(
        parallel, optim(training), loader, checkpoints, settings(spec), _validation(spec, data, parallel)
    )


def _foreign(spec: recipe.Recipe, vocab: Vocab, aim: Objective) -> dict[str, Any]:
    """The process of an objective, if it is not the recipe's: checkpoints say so, and are not loaded without it."""
    trained = getattr(aim, "process", None)
    own = None if isinstance(spec.process, recipe.ArProcess) else process(spec.process, vocab)
    return {} if repr(trained) == repr(own) else {FOREIGN: repr(trained)}


def _validation(
    spec: recipe.Recipe, data: Corpus, parallel: Parallel
) -> Callable[[], objectives.Estimate] | None:
    valid, world, training = data.valid, parallel.world, spec.training
    if valid is None:
        return None

    rows = training.batch_size

    def measured() -> objectives.Estimate:
        limit = training.validate_batches * rows
        batches = validation_batches(
            valid, data.length, rows, world.rank, world.size, data.packing, limit, world.device
        )
        return validate(parallel, batches, spec.seed, rows, training.micro_batch_size)

    return measured


def _started(spec: recipe.Recipe, tokenizer: TextTokenizer, aim: Objective) -> DiT:
    """The recipe's network with another checkpoint's weights; the process it was trained with does not matter."""
    from scdd import bundle

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
