"""A model from a checkpoint folder, a run folder, the Hub, somebody else's files, or the package itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from scdd.bundle import folder as bundle
from scdd.core import machine
from scdd.core.errors import UserError
from scdd.data.tokenizer import TextTokenizer
from scdd.lm.model import LM
from scdd.lm.options import Dtype, RepairOptions
from scdd.lm.rows import check_whole
from scdd.models.heads import QualityHead
from scdd.models.network import Network, unfilled
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.base import Process, make_process, process_of_kind
from scdd.processes.options import PROCESSES, MdlmOptions, NoisyOptions
from scdd.recipe.load import ModelRecipe, model_recipe, row_length
from scdd.samplers.options import SamplingOptions
from scdd.schedules.options import PeakedOptions

if TYPE_CHECKING:
    from torch import nn

    from scdd.core.types import Vocab
    from scdd.processes.noise import Noise

CONTEXT = 512  # for converted checkpoints, which do not say how long their rows were
SHORTEST = 4
REPAIR = "repair"  # where a checkpoint notes repair options of its own
EDITS = "edits"  # ... and parameters of repair by edits


def load(
    source: str | Path | None = None,
    *,
    process: str | Process | None = None,
    network: nn.Module | Callable[[Vocab], nn.Module] | None = None,
    device: str | torch.device | None = None,
    dtype: Dtype | None = None,
    context: int | None = None,
    overrides: Iterable[str] = (),
    graphs: bool = True,
) -> LM:
    """A model ready to write.

    `source` is a checkpoint folder, a run folder (its newest checkpoint) or a Hub id, of ours or of a model that `scdd
    convert` reads (a Hugging Face folder, a .gguf file, the authors' checkpoints); None, or "bundled", is the model that
    comes with the package. `process` samples with another reverse process of the same marginals ("scdd" on GIDD's
    weights), and says what a converted checkpoint was trained with, if it does not say so itself ("scdd:0.1" with p_u). `network` is a module of your own, or its factory,
    that takes the checkpoint's weights where the checkpoint cannot rebuild it. `overrides` change the recipe's sampling
    section ("sampling.steps=64"). `dtype` is what is computed in: "bfloat16" by default on a GPU; on a CPU "int8" (the large
    products alone) for a model that is stored so, where the CPU has instructions for it, and else "float32". A seed keeps
    its text within a dtype. `graphs=False`: on a GPU, steps are launched kernel by kernel (`LM.graphs`).
    """
    changes = (overrides,) if isinstance(overrides, str) else tuple(overrides)
    if context is not None:
        check_whole("context", context, SHORTEST)
    for change in changes:
        if "=" in change and not change.strip().startswith("sampling."):
            raise UserError(
                f"{change}: only sampling.… can be changed in a trained model; another process is an option of its own."
            )
    if source is not None and not str(source):
        raise UserError("The model's name is empty: give a folder or a Hub id, or leave it out for the bundled one.")
    place = device or usual_device()
    narrow = str(place) == "cpu" and dtype in (None, "int8") and network is None
    checkpoint = bundle.read(bundle.BUNDLED if source is None else source, narrow=narrow)
    if checkpoint.tokenizer is None:
        raise UserError(
            f"{checkpoint.folder} has no tokenizer.json, so it cannot write text: convert it with its tokenizer."
        )
    spec = model_recipe(checkpoint.recipe, str(checkpoint.folder / "recipe.yaml"), changes)
    denoiser = _network(checkpoint, network, eight=narrow and (dtype == "int8" or machine.multiplies_eight_bits()))
    model = LM(
        denoiser,
        _process(checkpoint, spec, process),
        _tokenizer(checkpoint),
        context or longest_row(denoiser.context, spec, checkpoint.recipe),
        sampling=spec.sampling if spec is not None else SamplingOptions(),
        repair=_repair(checkpoint),
        quality=_quality(checkpoint, denoiser),
        name="the bundled model" if source in (None, bundle.BUNDLED) else str(source),
    )
    if EDITS in checkpoint.extra:
        from scdd.lm.edits.channel import Channel

        model.channel = Channel.of(checkpoint.extra[EDITS], f"{checkpoint.folder}'s {bundle.META}")
    template = checkpoint.extra.get(bundle.CHAT_TEMPLATE)
    model.chat_template = template if isinstance(template, str) else None
    model.graphs = graphs
    return model.to(place, dtype or _usual_dtype(checkpoint, denoiser, str(place)))


def usual_device() -> str:
    """Where a model goes if nobody says where."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def longest_row(own: int | None, spec: ModelRecipe | None, recipe: str) -> int:
    """Tokens of a model's rows: what its network says, or else as long as they were in training."""
    return own or (spec.length if spec is not None else row_length(recipe) or CONTEXT)


def _usual_dtype(checkpoint: bundle.Bundle, network: Network, device: str) -> Dtype | None:
    """8 bits for weights that have no more, if this CPU is made for them: known by the machine, not by a clock."""
    if device != "cpu" or checkpoint.kind != "int8" or not network.takes_eight_bits:
        return None
    from scdd.ops.int8 import supported

    return "int8" if machine.multiplies_eight_bits() and supported() else None


def _tokenizer(checkpoint: bundle.Bundle) -> TextTokenizer:
    """The tokenizer, whose ids must be those that the network has rows for."""
    tokenizer = TextTokenizer(checkpoint.tokenizer or "", str(checkpoint.folder / bundle.TOKENIZER))
    if tokenizer.vocab != checkpoint.vocab:
        raise UserError(
            f"{checkpoint.folder} has {checkpoint.vocab.size} ids with the mask {checkpoint.vocab.mask_id}, and its "
            f"{bundle.TOKENIZER} {tokenizer.size} with {tokenizer.mask_id}: {bundle.CURE}."
        )
    return tokenizer


def _network(
    checkpoint: bundle.Bundle, own: nn.Module | Callable[[Vocab], nn.Module] | None, eight: bool = False
) -> Network:
    """The network with the checkpoint's weights: one that the caller has, or the one that the checkpoint describes.

    `eight`: in 8 bits, if the checkpoint has it so and network and torch can.
    """
    description = checkpoint.network
    try:
        if own is not None:
            from scdd.models.foreign import given

            network = given(own, checkpoint.vocab)
        elif description is None:
            raise UserError("it does not say its network's shape")
        elif description.get("kind") == "given":
            raise UserError(f"its network, {description.get('class')}, was handed over in Python")
        elif description.get("kind") == "import" and checkpoint.hub:
            raise UserError(f"its network would run the code of {description.get('target')} on this machine")
        else:
            count = len(checkpoint.network_weights) + len(checkpoint.matrices)
            network = unfilled(description, checkpoint.vocab, count)
    except UserError as error:
        raise UserError(
            f"{checkpoint.folder}: {str(error).rstrip('.')}; hand the network over, scdd.load(…, network=module)."
        ) from error
    try:
        _fill(network, checkpoint, eight, floats=own is None and (description or {}).get("kind") != "import")
    except RuntimeError as error:
        detail = str(error).splitlines()[-1].strip()[:300]
        whose, cure = (
            ("its", "take the folder again") if own is None else ("this", "hand over the one that was trained")
        )
        raise UserError(f"{checkpoint.folder}'s weights do not fit {whose} network ({detail}): {cure}.") from error
    return network.eval().requires_grad_(False)


def _fill(network: Network, checkpoint: bundle.Bundle, eight: bool, floats: bool) -> None:
    """Give it the weights; `floats`: whatever they are stored as, it is float32 that is computed with."""
    if eight and checkpoint.matrices and network.takes_eight_bits:
        from scdd.models.eight_bit import load_eight_bits
        from scdd.ops.int8 import Matrix, supported

        if supported():
            weights = {name: each.float() for name, each in checkpoint.network_weights.items()}
            load_eight_bits(network, weights, {name: Matrix(*each) for name, each in checkpoint.matrices.items()})
            return
    weights = checkpoint.widened().network_weights
    network.load_weights({name: each.float() for name, each in weights.items()} if floats else weights)


def _process(
    checkpoint: bundle.Bundle, spec: ModelRecipe | None, wanted: str | Process | None
) -> Process | Autoregressive:
    """The recipe's process; under another name, that kernel with the same schedule, hence the same marginals."""
    if isinstance(wanted, Process):
        return wanted
    if bundle.FOREIGN in checkpoint.extra:
        raise UserError(
            f"{checkpoint.folder} was trained with {checkpoint.extra[bundle.FOREIGN]!s:.200}, which its recipe cannot name: "
            "load it from Python with that process, scdd.load(folder, process=…)."
        )
    names = ", ".join(PROCESSES)
    kind, colon, share = (wanted or "").partition(":")
    if wanted is not None and kind not in PROCESSES:
        raise UserError(f"There is no process {kind!r}: choose one of {names}.", "process")
    if spec is None:
        if wanted is None:
            raise UserError(
                f"{checkpoint.folder} was converted and does not say its process: name it, mdlm, or scdd:0.1 or gidd:0.1 "
                "with its p_u.",
                "process",
            )
        return make_process(_told(kind, share), checkpoint.vocab)
    if colon:
        raise UserError(f"process {wanted}: {checkpoint.folder} says its own p_u, so leave it out.", "process")
    trained = make_process(spec.process, checkpoint.vocab, _noise(checkpoint))
    if wanted is None:
        return trained
    if isinstance(trained, Autoregressive):
        raise UserError(f"{checkpoint.folder} is autoregressive and has no process: leave process out.", "process")
    return process_of_kind(wanted, checkpoint.vocab, trained.schedule, trained.noise)


def _noise(checkpoint: bundle.Bundle) -> Noise | None:
    """The distribution of noise that was trained with, where it is not the uniform one."""
    if bundle.NOISE not in checkpoint.extra:
        return None
    from scdd.processes.noise import read  # few models need it

    return read(checkpoint.extra[bundle.NOISE], checkpoint.vocab, str(checkpoint.folder / bundle.META))


def _told(kind: str, share: str) -> MdlmOptions | NoisyOptions:
    """The process that a caller says a converted checkpoint was trained with; p_u is never guessed."""
    if kind == "mdlm" and not share:
        return MdlmOptions()
    try:
        return NoisyOptions(kind=kind, schedule=PeakedOptions(p_u=float(share)))  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(
            f"process {kind}:{share} does not say p_u, a share in [0, 1): write scdd:0.1 if it was trained with 0.1, or "
            "mdlm.",
            "process",
        ) from error


def _repair(checkpoint: bundle.Bundle) -> RepairOptions:
    """The repair options that the model comes with: a threshold is measured on a model, not on all of them."""
    try:
        return RepairOptions(**checkpoint.extra.get(REPAIR, {}))
    except (TypeError, UserError) as error:
        raise UserError(
            f"{checkpoint.folder}'s {bundle.META} has wrong repair options ({str(error)[:200]}): mend them."
        ) from error


def _quality(checkpoint: bundle.Bundle, network: Network) -> QualityHead | None:
    """PRISM's head, where one was trained."""
    start = bundle.QUALITY
    weights = {k.removeprefix(start): v for k, v in checkpoint.weights.items() if k.startswith(start)}
    if not weights:
        return None
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    shape = found.get("first.weight", ())
    inner, width = shape if len(shape) == 2 else (0, 0)
    wanted = {"first.weight": (inner, width), "first.bias": (inner,), "last.weight": (1, inner), "last.bias": (1,)}
    if found != wanted or not inner or width != network.head.weight.shape[1]:
        raise UserError(f"{checkpoint.folder}'s quality head does not fit its network: {bundle.CURE}.")
    head = QualityHead(width, inner)
    head.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return head.eval().requires_grad_(False)
