"""A model from a checkpoint folder, a run folder, the Hub, or the package itself."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from scdd import bundle, recipe
from scdd.assemble import model as build
from scdd.core.errors import UserError
from scdd.data.tokenizer import TextTokenizer
from scdd.lm.checks import check_kinds
from scdd.lm.model import LM
from scdd.models.attention import Rotary
from scdd.models.dit import DiT
from scdd.models.heads import QualityHead
from scdd.models.options import DiTConfig
from scdd.processes.base import Process
from scdd.processes.options import PROCESSES, AutoregressiveOptions, MdlmOptions, NoisyOptions
from scdd.samplers.options import SamplingOptions

BUNDLED = Path(__file__).resolve().parent.parent / "assets" / "model"
CONTEXT = 512  # for converted checkpoints, which do not say how long their rows were

SHORTEST = 4


def load(
    source: str | Path | None = None,
    *,
    process: str | Process | None = None,
    device: str | torch.device | None = None,
    context: int | None = None,
    overrides: Iterable[str] = (),
) -> LM:
    """A model ready to write.

    `source` is a checkpoint folder, a run folder (its newest checkpoint) or a Hub id; None is the model that comes with
    the package. `process` samples with another reverse process of the same marginals ("scdd" on GIDD's weights), and
    says what a converted checkpoint was trained with. `overrides` change the recipe's sampling section
    ("sampling.steps=64").
    """
    changes = (overrides,) if isinstance(overrides, str) else tuple(overrides)
    check_kinds(context=context)
    if context is not None and context < SHORTEST:
        raise UserError(f"context is {context}: give {SHORTEST} or more, [BOS] and [EOS] included.")
    for change in changes:
        if "=" in change and not change.strip().startswith("sampling."):
            raise UserError(
                f"--set {change}: only sampling.… can be changed in a trained model; another process has --process."
            )
    found = bundle.read(_folder(source))
    if found.tokenizer is None:
        raise UserError(
            f"{found.folder} has no tokenizer.json, so it cannot write text: convert it with its tokenizer."
        )
    tokenizer = TextTokenizer(found.tokenizer, str(found.folder / "tokenizer.json"))
    spec = _recipe(found, changes)
    network = _network(found, spec)
    forward = _process(found, spec, process)
    quality = _quality(found, network.config)
    length = context or (spec.data.length if spec is not None else CONTEXT)
    sampling = spec.sampling if spec is not None else SamplingOptions()
    model = LM(network, forward, tokenizer, length, sampling, quality, str(source or "the bundled model"))
    return model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _folder(source: str | Path | None) -> str | Path:
    if source is None:
        if not (BUNDLED / "model.safetensors").is_file():
            raise UserError(
                "This build of scdd comes without its model: name a checkpoint (--model, or scdd.load(path)), or make one "
                "with `scdd demo --run DIR`."
            )
        return BUNDLED
    if not str(source):
        raise UserError(
            "The model's name is empty: give a folder or a Hub id, or leave it out for the bundled one."
        )
    newest = (
        sorted(Path(source, "checkpoints").glob("step-*")) if Path(source, "checkpoints").is_dir() else []
    )
    return newest[-1] if newest else source


def _recipe(found: bundle.Bundle, overrides: Iterable[str]) -> recipe.Recipe | None:
    """The recipe, or None for a converted checkpoint, whose recipe is the network's section only."""
    try:
        return recipe.loads(found.recipe, str(found.folder / "recipe.yaml"), overrides)
    except UserError:
        if found.network is None or "converted_from" not in found.extra:
            raise
        return None


def _network(found: bundle.Bundle, spec: recipe.Recipe | None) -> DiT:
    weights = {k: v for k, v in found.weights.items() if not k.startswith("quality.")}
    if found.network is not None:
        config = DiTConfig(**found.network)
    elif spec is not None:
        config = build.network_config(spec, input_bias="output.input_bias" in weights)
    else:
        raise UserError(
            f"{found.folder} does not say its network's shape: take the folder again from where it came."
        )
    with torch.device("meta"):
        network = DiT(config, found.vocab)
    try:
        network.load_state_dict(weights, assign=True)
        network.rotary = Rotary(config.head_width // 2)  # its tables are made, not stored
    except RuntimeError as error:
        detail = str(error).splitlines()[-1].strip()
        raise UserError(
            f"{found.folder}'s weights do not fit its recipe ({detail}): take the folder again."
        ) from error
    return network.eval().requires_grad_(False)


def _process(
    found: bundle.Bundle, spec: recipe.Recipe | None, wanted: str | Process | None
) -> Process | None:
    """The recipe's process; under another name, that kernel with the same schedule, hence the same marginals."""
    if isinstance(wanted, Process):
        return wanted
    if build.FOREIGN in found.extra:
        raise UserError(
            f"{found.folder} was trained with {found.extra[build.FOREIGN]}, which its recipe cannot name: "
            "load it from Python with that process, scdd.load(folder, process=…)."
        )
    if wanted is not None and wanted not in PROCESSES:
        raise UserError(f"There is no process {wanted!r}: choose one of {', '.join(PROCESSES)}.")
    if spec is None:
        if wanted is None:
            raise UserError(
                f"{found.folder} was converted and does not say its process: name it (--process, or process=…), "
                f"one of {', '.join(PROCESSES)}."
            )
        section: Any = MdlmOptions() if wanted == "mdlm" else NoisyOptions(kind=_noisy(wanted))
        return build.process(section, found.vocab)
    if isinstance(spec.process, AutoregressiveOptions):
        if wanted is not None:
            raise UserError(f"{found.folder} is autoregressive and has no process: leave --process out.")
        return None
    own = build.process(spec.process, found.vocab)
    return own if wanted is None else build.process_of_kind(wanted, found.vocab, own.schedule)


def _noisy(name: str) -> Any:
    return name


def _quality(found: bundle.Bundle, config: DiTConfig) -> QualityHead | None:
    """PRISM's head, where one was trained."""
    weights = {k.removeprefix("quality."): v for k, v in found.weights.items() if k.startswith("quality.")}
    if not weights:
        return None
    head = QualityHead(config.width, inner=weights["first.weight"].shape[0])
    head.load_state_dict(weights)
    return head.eval().requires_grad_(False)
