"""A model under measurement: loaded, named, and known by what its weights are, not by where they lie."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scdd.bundle import folder as bundle
from scdd.lm import LM, load
from scdd.lm.loading import BUNDLED
from scdd.processes.base import Process


@dataclass(frozen=True)
class EvalModel:
    """What every measurement is given. `identity` goes into the hash of a cell, `recipe` into its record."""

    label: str
    lm: LM
    identity: dict[str, Any]
    recipe: str | None = None

    @property
    def process(self) -> Process | None:
        """The process that is sampled with; None for autoregression."""
        return self.lm.process


def open_model(
    source: str | Path | None,
    label: str | None = None,
    *,
    process: str | Process | None = None,
    device: str | torch.device | None = None,
    overrides: Iterable[str] = (),
) -> EvalModel:
    """`scdd.load`, with the checkpoint's identity beside it."""
    changes = tuple(overrides)
    lm = load(source, process=process, device=device, overrides=changes)
    identity: dict[str, Any] = {"process": repr(lm.process), "context": lm.context}
    folder = BUNDLED if source is None else bundle.locate(source)
    recipe = None
    if folder is not None:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        identity |= {"weights": meta["weights_sha256"], "vocab": meta["vocab"]["hash"], "step": meta["step"]}
        recipe = (folder / "recipe.yaml").read_text(encoding="utf-8")
    else:
        identity |= {"weights": weights_hash(lm), "vocab": lm.tokenizer.hash}
    if changes:
        identity["changes"] = list(changes)
    return EvalModel(label or _label(source), lm, identity, recipe)


def weights_hash(lm: LM) -> str:
    """SHA-256 of the weights themselves, PRISM's head included, for models that came without a checksum."""
    digest = hashlib.sha256()
    quality = {} if lm.quality is None else lm.quality.state_dict(prefix="quality.")
    for name, value in sorted({**lm.network.state_dict(), **quality}.items()):
        digest.update(name.encode())
        digest.update(value.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _label(source: str | Path | None) -> str:
    return "bundled" if source is None else Path(source).name or str(source)
