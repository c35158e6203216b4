"""From a recipe to a training run: data, objective, network, trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from scdd.assemble.network import OwnNetwork, prepare, require_fit, start_network, take_over
from scdd.assemble.noise import run_noise
from scdd.assemble.reading import settled
from scdd.bundle.convert import Reading
from scdd.bundle.folder import CHAT_TEMPLATE, FOREIGN, NOISE, TEACHER, Identity
from scdd.core.errors import UserError, at
from scdd.core.rng import derive_seed
from scdd.core.types import Vocab
from scdd.data import corpus as documents
from scdd.data.address import Address, place
from scdd.data.cache import ShardCache
from scdd.data.loader import Loader, Rank, validation_batches
from scdd.data.options import ShardsOptions, TextOptions
from scdd.data.pack import Blocks, Packing, cut
from scdd.data.shards import MemoryTokens, Shards, TokenStream, read_manifest
from scdd.data.texts import split_texts
from scdd.data.tokenizer import TextTokenizer
from scdd.models.heads import QualityHead
from scdd.objectives.ar import ArObjective
from scdd.objectives.base import Estimate, Objective
from scdd.objectives.diffusion import DiffusionObjective
from scdd.objectives.options import ElboOptions, PrismOptions
from scdd.objectives.prism import PrismObjective
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.base import make_process
from scdd.processes.noise import Noise
from scdd.recipe.load import dumps
from scdd.recipe.sections import Recipe
from scdd.training.parallel import LossModule, Parallel, World
from scdd.training.resume import Checkpoints
from scdd.training.trainer import Trainer
from scdd.training.validate import validate

if TYPE_CHECKING:
    from scdd.data.pairs import PairBlocks
    from scdd.objectives.teacher import Distillation

BUNDLED = Path(__file__).parent.parent / "assets" / "wiki"

# -- the objective ----------------------------------------------------------------------------------------------


def objective(
    spec: Recipe, vocab: Vocab, width: int = 0, noise: Noise | None = None, teacher: Distillation | None = None
) -> Objective:
    """What is minimised; `width` is the network's, for objectives with a head of their own."""
    forward, options = make_process(spec.process, vocab, noise), spec.objective
    if isinstance(forward, Autoregressive):
        return ArObjective(forward)
    if isinstance(options, PrismOptions):
        generator = torch.Generator().manual_seed(derive_seed(spec.seed, "quality") >> 1)
        head = QualityHead(width, generator=generator)
        return PrismObjective(forward, head, options)
    assert isinstance(options, ElboOptions)  # the recipe has checked that ar goes with ar
    diffusion = DiffusionObjective(forward, options, compile=spec.training.compile, teacher=teacher)
    if not options.ar_share and not options.ar_steps:
        return diffusion
    from scdd.objectives.mixed import MixedObjective

    return MixedObjective(diffusion, options.ar_share, options.ar_steps)


# -- data -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Corpus:
    """Tokens to train on and to validate on, and what their ids mean."""

    tokenizer: TextTokenizer
    train: TokenStream | PairBlocks
    valid: TokenStream | PairBlocks | None
    length: int
    packing: Packing
    chat_template: str | None = None  # with which chats were rendered
    window: int | None = None  # shards that are mixed at a time in training
    notices: tuple[str, ...] = ()  # what the user should know of the data

    def blocks(self, part: TokenStream | PairBlocks) -> Blocks:
        """Rows of `train` or `valid`."""
        if isinstance(part, Blocks):
            return part
        return cut(part, self.length, self.packing, self.window if part is self.train else None)


def corpus(
    spec: Recipe, tokenizer: str | None = None, verify: bool = False, chat_template: str | None = None
) -> Corpus:
    """The recipe's data. `tokenizer` and `chat_template` are the texts of those that the run already uses; `verify` reads
    every checksum."""
    options, known = spec.data, TextTokenizer(tokenizer) if tokenizer is not None else None
    if isinstance(options, ShardsOptions):
        with at("data"):
            return _shards(options, known, verify)
    own, template = settled(spec, options, Reading(known, chat_template))
    with at("data"):
        if isinstance(options, TextOptions):
            return _text(options, own)
        from scdd.assemble.pairs import pairs

        assert own is not None  # or `settled` had refused
        train, valid, notices = pairs(options, own, template, one_end=spec.process.kind == "ar")
        return Corpus(own, train, valid, options.length, "pairs", template, notices=notices)


def _shards(spec: ShardsOptions, known: TextTokenizer | None, verify: bool) -> Corpus:
    cache = None
    if isinstance(place(spec.path), Address):
        cache = ShardCache(Path(spec.cache).expanduser(), spec.cache_bytes)
    try:
        train = Shards(spec.path, "train", cache)
    except UserError as error:
        raise error if error.option else error.spelt("path") from error
    if known is not None:
        train.require(known)
    held = Shards(spec.path, "valid", cache) if "valid" in read_manifest(spec.path)["splits"] else None
    for split in (train, held) if verify else ():
        if split is not None:
            split.verify()
    unheld = f"{spec.path} holds no validation split, so nothing is validated: prepare it with a larger share for it."
    notices = (() if held is not None else (unheld,)) + _tight(spec, train)
    packing, own = _packing(spec), train.tokenizer()
    return Corpus(own, train, held, spec.length, packing, notices=notices, window=spec.window)


def _tight(spec: ShardsOptions, train: Shards) -> tuple[str, ...]:
    """A notice where the order asks for more shards at a time than the cache holds."""
    if train.cache is None:
        return ()
    sizes = sorted((shard.size for shard in train.info.shards), reverse=True)
    needed = sum(sizes[: spec.window])
    if needed <= spec.cache_bytes:
        return ()
    mixed = "the whole corpus" if spec.window is None else f"data.window, {spec.window} shards"
    return (
        f"{mixed} takes {needed:,} bytes and data.cache_bytes holds {spec.cache_bytes:,}, so shards are fetched again and again: "
        "choose more of the one or less of the other (data.window mixes fewer shards at a time).",
    )


def _text(spec: TextOptions, known: TextTokenizer | None) -> Corpus:
    with at("path"):
        texts = documents.read([BUNDLED if spec.path == "bundled" else spec.path], separator=spec.separator)
    held, kept = split_texts(texts, spec.valid_fraction)
    known = known or TextTokenizer.train(kept, spec.vocab_size)
    train, valid = (MemoryTokens.encoded(part, known) for part in (kept, held))
    return Corpus(known, train, valid, spec.length, _packing(spec))


def _packing(spec: ShardsOptions | TextOptions) -> Packing:
    return "documents" if spec.documents else "wrap"


# -- training ---------------------------------------------------------------------------------------------------


def trainer(
    spec: Recipe,
    run: Path,
    world: World,
    data: Corpus,
    own: Objective | None = None,
    own_network: OwnNetwork | None = None,
) -> Trainer:
    """All of a run, on this rank, before anything is resumed.

    `own` is an objective of yours in place of the recipe's, with a schedule or a process that no recipe can name;
    `own_network` likewise a network in place of the recipe's.
    """
    vocab, training = data.tokenizer.vocab, spec.training
    net, checkpoint = start_network(spec, run, data.tokenizer, own_network)
    noise = run_noise(spec.process, vocab, data.train, run, world)
    teacher = None if own is not None else _teacher(spec, data, world)
    minimised = own or objective(spec, vocab, net.width, noise, teacher)
    if checkpoint is not None:
        take_over(checkpoint, net, minimised, spec)
    require_fit(spec, net, minimised)
    prepare(spec, net, world.device)
    module = LossModule(net, minimised, world.size, training.grow_attention).to(world.device)
    compile = training.compile and world.device.type == "cuda"
    parallel = Parallel(module, world, compile, training.cuda_graphs)
    with at("data"):
        blocks = data.blocks(data.train)
    with at("training"):
        rank = Rank(world.rank, world.size)
        loader = Loader(blocks, training.batch_size, spec.seed, rank, world.device)
    # A process that is not the recipe's: checkpoints say so, and are not loaded without it.
    named = repr(minimised.process) == repr(make_process(spec.process, vocab, noise))
    kept: dict[str, Any] = {} if noise is None else {NOISE: noise.saved()}
    if teacher is not None:
        kept[TEACHER] = teacher.digest
    template = {} if data.chat_template is None else {CHAT_TEMPLATE: data.chat_template}
    identity = Identity(
        recipe=dumps(spec),
        vocab=vocab,
        tokenizer=data.tokenizer.to_str(),
        network=net.description(),
        extra={**template, **kept, **({} if named else {FOREIGN: repr(minimised.process)})},
    )
    checkpoints = Checkpoints(run, identity, world, training.keep_last, training.background_save)
    validation = _validation(spec, data, parallel)
    return Trainer(parallel, loader, checkpoints, training, spec.seed, validation)


def _teacher(spec: Recipe, data: Corpus, world: World) -> Distillation | None:
    options, training = spec.objective, spec.training
    if not isinstance(options, ElboOptions) or options.teacher is None:
        return None
    from scdd.assemble.teacher import distillation  # few runs have one

    dtype = torch.float32 if training.precision == "float32" else torch.bfloat16
    return distillation(options.teacher, data.tokenizer, world.device, dtype, training.compile)


def _validation(spec: Recipe, data: Corpus, parallel: Parallel) -> Callable[[], Estimate] | None:
    valid, world, training = data.valid, parallel.world, spec.training
    if valid is None:
        return None
    rows = training.batch_size

    def bound() -> Estimate:
        limit = training.validate_batches * rows
        blocks, rank = data.blocks(valid), Rank(world.rank, world.size)
        batches = validation_batches(blocks, rows, limit, rank, world.device)
        return validate(parallel, batches, spec.seed, rows, training.micro_batch_size)

    return bound
