"""From a recipe to a training run: data, objective, network, trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from scdd.assemble.reading import settled
from scdd.bundle import folder as bundle
from scdd.bundle.convert import Reading
from scdd.bundle.folder import CHAT_TEMPLATE, FOREIGN, Bundle, Identity
from scdd.core.errors import UserError, at
from scdd.core.rng import derive_seed
from scdd.core.types import Vocab
from scdd.data import corpus as documents
from scdd.data.loader import Loader, Rank, validation_batches
from scdd.data.options import ShardsOptions, TextOptions
from scdd.data.pack import Blocks, Packing, cut
from scdd.data.shards import MemoryTokens, Shards, TokenStream, read_manifest
from scdd.data.texts import split_texts
from scdd.data.tokenizer import TextTokenizer
from scdd.models.foreign import given
from scdd.models.heads import QualityHead
from scdd.models.network import Network
from scdd.models.options import PretrainedOptions, make_network
from scdd.objectives.ar import ArObjective
from scdd.objectives.base import Estimate, Objective
from scdd.objectives.diffusion import DiffusionObjective
from scdd.objectives.options import ElboOptions, PrismOptions
from scdd.objectives.prism import PrismObjective
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.base import make_process
from scdd.recipe.load import dumps
from scdd.recipe.sections import Recipe
from scdd.training.parallel import LossModule, Parallel, World
from scdd.training.resume import Checkpoints
from scdd.training.trainer import Trainer
from scdd.training.validate import validate
from scdd.training.verify import sound_meta

if TYPE_CHECKING:
    from scdd.data.pairs import PairBlocks

BUNDLED = Path(__file__).parent.parent / "assets" / "wiki"

# -- the network and its objective ------------------------------------------------------------------------------


def network(spec: Recipe, vocab: Vocab, **changes: Any) -> Network:
    """The denoiser with the recipe's seed's weights, drawn on the CPU: the same on every device.

    `changes` are what weights from elsewhere have and the recipe does not say.
    """
    assert not isinstance(spec.model, PretrainedOptions)
    generator = torch.Generator().manual_seed(derive_seed(spec.seed, "weights") >> 1)
    with at("model"):
        return make_network({**spec.model.description(spec.process.kind == "ar"), **changes}, vocab, generator)


def objective(spec: Recipe, vocab: Vocab, width: int = 0) -> Objective:
    """What is minimised; `width` is the network's, for objectives with a head of their own."""
    forward, options = make_process(spec.process, vocab), spec.objective
    if isinstance(forward, Autoregressive):
        return ArObjective(forward)
    if isinstance(options, PrismOptions):
        generator = torch.Generator().manual_seed(derive_seed(spec.seed, "quality") >> 1)
        head = QualityHead(width, generator=generator)
        return PrismObjective(forward, head, options)
    assert isinstance(options, ElboOptions)  # the recipe has checked that ar goes with ar
    diffusion = DiffusionObjective(forward, options, compile=spec.training.compile)
    if not options.ar_share:
        return diffusion
    from scdd.objectives.mixed import MixedObjective

    return MixedObjective(diffusion, options.ar_share)


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
    notices: tuple[str, ...] = ()  # what the user should know of the data

    def blocks(self, part: TokenStream | PairBlocks) -> Blocks:
        """Rows of `train` or `valid`."""
        return part if isinstance(part, Blocks) else cut(part, self.length, self.packing)


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
        return Corpus(own, train, valid, options.length, "pairs", template, notices)


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


OwnNetwork = nn.Module | Callable[[Vocab], nn.Module]
"""A network of the caller's own, or what makes it for a vocabulary."""


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
    net, checkpoint = _network(spec, run, data.tokenizer, own_network)
    minimised = own or objective(spec, vocab, net.width)
    if checkpoint is not None:
        _take_over(checkpoint, net, minimised, spec)
    _make_ready(net, spec)
    module = LossModule(net, minimised, world.size, training.grow_attention).to(world.device)
    compile = training.compile and world.device.type == "cuda"
    parallel = Parallel(module, world, compile, training.cuda_graphs)
    with at("data"):
        blocks = data.blocks(data.train)
    with at("training"):
        rank = Rank(world.rank, world.size)
        loader = Loader(blocks, training.batch_size, spec.seed, rank, world.device)
    checkpoints = Checkpoints(run, _identity(spec, data, net, minimised), world, training.keep_last)
    validation = _validation(spec, data, parallel)
    return Trainer(parallel, loader, checkpoints, training, spec.seed, validation)


def _make_ready(net: Network, spec: Recipe) -> None:
    """What training asks of the network besides its weights: what is frozen, seen, kept and added."""
    training, prism = spec.training, isinstance(spec.objective, PrismOptions)
    if isinstance(spec.objective, PrismOptions) and spec.objective.freeze:
        if not training.start_from:
            raise UserError(
                "objective.freeze keeps the denoiser as it is, and it is untrained: name a trained mdlm checkpoint in "
                "training.start_from, or set objective.freeze to false."
            )
        net.requires_grad_(False)
    for name, value in (("objective.ar_share", spec.objective), ("training.grow_attention", training)):
        if getattr(value, name.partition(".")[2], 0) and (net.causal or not hasattr(net, "lookahead")):
            raise UserError(
                f"{name} needs a two-sided network that can be told how far to look: use one of kind llama, or set "
                f"{name} to 0."
            )
    if training.recompute:
        if not hasattr(net, "recompute"):
            raise UserError(
                "training.recompute needs a network of kind llama: switch it off, or use a smaller micro_batch_size."
            )
        cast(Any, net).recompute = True
    if training.lora is not None:
        from scdd.training.lora import adapt

        if prism:
            raise UserError("training.lora adapts a denoiser, and objective.kind prism trains a head: choose one.")
        with at("training"):
            adapt(net, training.lora, torch.Generator().manual_seed(derive_seed(spec.seed, "lora") >> 1))
    net.compute_dtype = torch.bfloat16 if training.precision == "bf16" else None


def _identity(spec: Recipe, data: Corpus, net: Network, minimised: Objective) -> Identity:
    """What the run's checkpoints say of themselves."""
    vocab = data.tokenizer.vocab
    # A process that is not the recipe's: checkpoints say so, and are not loaded without it.
    named = repr(minimised.process) == repr(make_process(spec.process, vocab))
    template = {} if data.chat_template is None else {CHAT_TEMPLATE: data.chat_template}
    return Identity(
        recipe=dumps(spec),
        vocab=vocab,
        tokenizer=data.tokenizer.to_str(),
        network=net.description(),
        extra={**template, **({} if named else {FOREIGN: repr(minimised.process)})},
    )


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


def _network(
    spec: Recipe, run: Path, tokenizer: TextTokenizer, own: OwnNetwork | None
) -> tuple[Network, Bundle | None]:
    """(The run's network, the checkpoint whose weights it is to start from)."""
    vocab, start, causal = tokenizer.vocab, spec.training.start_from, spec.process.kind == "ar"
    said = sound_meta(run) if own is None and start is not None else None
    if said is not None:
        # A run that goes on has its own weights, and needs only to know its network.
        return make_network(said["network"], vocab), None
    checkpoint = None if start is None else bundle.read(start)
    if checkpoint is not None:
        checkpoint.check(vocab, tokenizer.to_str() if checkpoint.tokenizer is not None else None)
    if own is not None:
        return given(own, vocab), checkpoint
    if checkpoint is not None and isinstance(spec.model, PretrainedOptions):
        if checkpoint.network is None:
            raise UserError(f"{start} does not say its network's shape: name it in the model section.", "start_from")
        ours = checkpoint.network.get("kind") != "import"  # whose factory knows whether it is causal
        return make_network({**checkpoint.network, **({"causal": causal} if ours else {})}, vocab), checkpoint
    bias = checkpoint is not None and "output.input_bias" in checkpoint.weights
    return network(spec, vocab, **({"input_bias": True} if bias else {})), checkpoint


def _take_over(checkpoint: Bundle, net: Network, minimised: Objective, spec: Recipe) -> None:
    """Another checkpoint's weights for the network and the objective's own; the process it was trained with does not matter."""
    for name, module in minimised.modules().items():
        prefix = f"{name}."
        part = {k.removeprefix(prefix): v for k, v in checkpoint.weights.items() if k.startswith(prefix)}
        if part:
            module.load_state_dict(part)
    weights = {k: v for k, v in checkpoint.weights.items() if not k.startswith("quality.")}
    if "output.input_bias" in net.state_dict():
        weights.setdefault("output.input_bias", torch.zeros(1))
    try:
        net.load_weights(weights)
    except RuntimeError as error:
        raise UserError(
            f"training.start_from {spec.training.start_from} does not fit the network of the model section: take that of its "
            f"own recipe, or kind pretrained ({str(error).splitlines()[1].strip()[:200]})."
        ) from error
