"""From a recipe to its network: drawn, rebuilt from a checkpoint or handed over, and made ready for training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from scdd.assemble.parent import as_read
from scdd.bundle import folder as bundle
from scdd.bundle.folder import Bundle
from scdd.core.errors import UserError, at
from scdd.core.rng import derive_seed
from scdd.core.types import Vocab
from scdd.data.tokenizer import TextTokenizer
from scdd.models.foreign import GIVEN, given
from scdd.models.network import Network
from scdd.models.options import PretrainedOptions, make_network
from scdd.objectives.base import Objective
from scdd.objectives.options import PrismOptions
from scdd.processes.autoregressive import Autoregressive
from scdd.recipe.sections import Recipe
from scdd.training.verify import sound_meta

OwnNetwork = nn.Module | Callable[[Vocab], nn.Module]
"""A network of the caller's own, or what makes it for a vocabulary."""


def network(spec: Recipe, vocab: Vocab, **changes: Any) -> Network:
    """The denoiser with the recipe's seed's weights, drawn on the CPU: the same on every device.

    `changes` are what weights from elsewhere have and the recipe does not say.
    """
    assert not isinstance(spec.model, PretrainedOptions)
    generator = torch.Generator().manual_seed(derive_seed(spec.seed, "weights") >> 1)
    with at("model"):
        return make_network({**spec.model.description(spec.process.kind == "ar"), **changes}, vocab, generator)


def start_network(
    spec: Recipe, run: Path, tokenizer: TextTokenizer, own: OwnNetwork | None
) -> tuple[Network, Bundle | None]:
    """(The run's network, the checkpoint whose weights it is to start from)."""
    vocab, start, causal = tokenizer.vocab, spec.training.start_from, spec.process.kind == "ar"
    said = sound_meta(run) if own is None and start is not None else None
    if said is not None:
        # A run that goes on has its own weights, and needs only to know its network.
        return _rebuilt(run, said["network"], vocab), None
    checkpoint = None if start is None else bundle.read(start)
    if checkpoint is not None:
        checkpoint.check(vocab, tokenizer.to_str() if checkpoint.tokenizer is not None else None)
    if own is not None:
        return given(own, vocab), checkpoint
    if checkpoint is not None and isinstance(spec.model, PretrainedOptions):
        if checkpoint.network is None:
            raise UserError(f"{start} does not say its network's shape: name it in the model section.", "start_from")
        ours = checkpoint.network.get("kind") != "import"  # whose factory knows whether it is causal
        if not ours and checkpoint.hub:
            raise UserError(
                f"training.start_from {start}: its network would run the code of {checkpoint.network.get('target')} on this "
                "machine; name that in the model section, kind import, if you trust it."
            )
        changed, checkpoint = _kept(spec.model, checkpoint.network, checkpoint)
        with at("model"):
            return _rebuilt(checkpoint.folder, as_read(spec, changed, causal), vocab), checkpoint
    bias = checkpoint is not None and "output.input_bias" in checkpoint.weights
    return network(spec, vocab, **({"input_bias": True} if bias else {})), checkpoint


def _kept(
    model: PretrainedOptions, description: Mapping[str, Any], checkpoint: Bundle
) -> tuple[Mapping[str, Any], Bundle]:
    """The network's description and its weights, without the blocks that the recipe leaves out."""
    if model.depth is None and model.layers is None:
        return description, checkpoint
    from scdd.models.shrink import fewer_layers  # few runs need it

    with at("model"):
        kept = model.kept(description.get("depth") or 0)
    smaller, weights = fewer_layers(description, checkpoint.weights, kept)
    return smaller, replace(checkpoint, weights=weights)


def _rebuilt(place: Path, description: Mapping[str, Any], vocab: Vocab) -> Network:
    """The network that a checkpoint describes."""
    if description.get("kind") == GIVEN:
        raise UserError(
            f"{place}'s network, {description.get('class')}, was handed over in Python: hand it over again, "
            "scdd.train(…, network=…)."
        )
    return make_network(description, vocab)


def take_over(checkpoint: Bundle, net: Network, minimised: Objective, spec: Recipe) -> None:
    """Another checkpoint's weights for the network and the objective's own; the process it was trained with does not matter."""
    for name, module in minimised.modules().items():
        prefix = f"{name}."
        part = {k.removeprefix(prefix): v for k, v in checkpoint.weights.items() if k.startswith(prefix)}
        if part:
            module.load_state_dict(part)
    weights = checkpoint.network_weights
    if "output.input_bias" in net.state_dict():
        weights.setdefault("output.input_bias", torch.zeros(1))
    try:
        net.load_weights(weights)
    except RuntimeError as error:
        raise UserError(
            f"training.start_from {spec.training.start_from} does not fit the network of the model section: take that of its "
            f"own recipe, or kind pretrained ({str(error).splitlines()[1].strip()[:200]})."
        ) from error


def require_fit(spec: Recipe, net: Network, minimised: Objective) -> None:
    """Refuse a network that cannot do what the recipe asks for."""
    training = spec.training
    if isinstance(minimised.process, Autoregressive) and not net.causal:
        raise UserError(
            "process.kind ar learns the next token, and this network sees it: use a causal one (which says causal = True), "
            "or another process."
        )
    wanted = [
        name
        for name, value in (
            ("objective.ar_share", getattr(spec.objective, "ar_share", 0)),
            ("objective.ar_steps", getattr(spec.objective, "ar_steps", 0)),
            ("training.grow_attention", training.grow_attention),
        )
        if value
    ]
    if wanted and (net.causal or not hasattr(net, "lookahead")):
        raise UserError(
            f"{wanted[0]} needs a two-sided network that can be told how far to look: use one of kind llama, "
            f"or set {wanted[0]} to 0."
        )
    if training.batch_size == round(getattr(spec.objective, "ar_share", 0) * training.batch_size):
        raise UserError(
            f"objective.ar_share {getattr(spec.objective, 'ar_share', 0):g} of training.batch_size {training.batch_size} is "
            "every row, which leaves none to diffuse: choose a smaller share, or a larger batch."
        )
    if getattr(spec.objective, "ar_steps", 0) >= training.steps:
        raise UserError(
            f"objective.ar_steps {getattr(spec.objective, 'ar_steps', 0)} is all of training.steps {training.steps}, so that nothing is "
            "ever diffused: choose fewer."
        )
    if training.recompute and not hasattr(net, "recompute"):
        raise UserError(
            "training.recompute needs a network of kind dit or llama: switch it off, or use a smaller micro_batch_size."
        )
    if training.keep_products and not any(hasattr(layer, "keeps_product") for layer in net.layers()):
        raise UserError("training.keep_products is about the gated MLPs of a network of kind llama: switch it off.")
    if isinstance(spec.objective, PrismOptions):
        if training.lora is not None:
            raise UserError("training.lora adapts a denoiser, and objective.kind prism trains a head: choose one.")
        if spec.objective.freeze and not training.start_from:
            raise UserError(
                "objective.freeze keeps the denoiser as it is, and it is untrained: name a trained mdlm checkpoint in "
                "training.start_from, or set objective.freeze to false."
            )


def prepare(spec: Recipe, net: Network, device: torch.device) -> None:
    """What training changes of a network: what is frozen, adapted, computed again, and in which type on that device."""
    training = spec.training
    if isinstance(spec.objective, PrismOptions) and spec.objective.freeze:
        net.requires_grad_(False)
    if training.recompute:
        cast(Any, net).recompute = True
    elif training.keep_products:
        for layer in net.layers():
            cast(Any, layer).keeps_product = True
    if training.lora is not None:
        from scdd.training.lora import adapt

        with at("training"):
            adapt(net, training.lora, torch.Generator().manual_seed(derive_seed(spec.seed, "lora") >> 1))
    if training.precision == "fp8":
        from scdd.models.narrow import set_fp8

        with at("training"):
            set_fp8(net, device)
    net.compute_dtype = None if training.precision == "float32" else torch.bfloat16
