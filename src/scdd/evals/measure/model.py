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
from scdd.core.errors import UserError
from scdd.lm.loading import load
from scdd.lm.model import LM
from scdd.lm.options import Dtype
from scdd.lm.run import Engine
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.base import Process
from scdd.schedules.peaked import Peaked

PAPERS_ETA = 0.01  # of ReMDM-cap
PAPERS_MASKED = {None: "MDLM", "ancestral": "MDLM", "remdm-cap": "ReMDM-Cap 0.01", "remdm-conf": "ReMDM-Confidence"}
"""What the paper calls MDLM's weights, by the sampler."""


@dataclass(frozen=True)
class ModelSource:
    """Where a model came from: enough for another process to open it."""

    source: str | None
    label: str | None
    process: str | None = None
    overrides: tuple[str, ...] = ()
    dtype: Dtype | None = None

    def open(self, device: str | torch.device) -> EvalModel:
        """The model again."""
        return open_model(
            self.source, self.label, process=self.process, device=device, dtype=self.dtype, overrides=self.overrides
        )


@dataclass(frozen=True)
class EvalModel:
    """What every measurement is given. `identity` goes into the hash of a measurement, `recipe` into its record."""

    label: str
    lm: LM
    identity: dict[str, Any]
    recipe: str | None = None
    source: ModelSource | None = None
    """None for one that was made in Python."""

    @property
    def engine(self) -> Engine:
        """The parts that measurements use of it: how texts are framed, how many tokens they may have, what is sampled."""
        return self.lm.engine

    @property
    def has_uniform_noise(self) -> bool:
        """Whether its reverse process may change a visible token."""
        return isinstance(self.lm.process, Process) and self.lm.process.has_uniform_noise

    def diffusion(self, why: str) -> Process:
        """The process; refused for an autoregressive model, which `why` tells."""
        if not isinstance(self.lm.process, Process):
            raise UserError(f"{self.label} is autoregressive and {why}.")
        return self.lm.process

    def paper_name(self, sampler: str | None, options: dict[str, Any] | None = None) -> str | None:
        """The system of the paper that this one is; None for one that the paper does not have.

        `options` are the sampler's settings, the paper's if they are not given.
        """
        if sampler == "remdm-cap" and (options or {}).get("eta", PAPERS_ETA) != PAPERS_ETA:
            return None
        kind = type(self.lm.process).__name__
        if getattr(self.lm.process, "noise", None) is not None:
            return None
        if kind == "MDLM":
            return PAPERS_MASKED.get(sampler)
        schedule = getattr(self.lm.process, "schedule", None)
        if sampler not in (None, "ancestral") or not isinstance(schedule, Peaked):
            return None
        prefix = {"SCDD": "SCDD", "GIDD": "GIDD+"}.get(kind)
        return None if prefix is None else f"{prefix} (p_u={schedule.p_u:g})"


def open_model(
    source: str | Path | LM | None,
    label: str | None = None,
    *,
    process: str | Process | None = None,
    device: str | torch.device | None = None,
    dtype: Dtype | None = None,
    overrides: Iterable[str] = (),
) -> EvalModel:
    """`scdd.load`, with the checkpoint's identity beside it; "bundled" or None is the model inside the package.

    On a CPU float32 is computed in unless `dtype` says otherwise, so that a number means the same on any of them. A model that is already loaded is taken as it is, and known by its weights.
    """
    changes = tuple(overrides)
    source = None if source == "bundled" else source
    if isinstance(source, LM):
        lm = source
    else:
        where = device or ("cuda" if torch.cuda.is_available() else "cpu")
        kind = dtype or ("float32" if str(where) == "cpu" else None)
        lm = load(source, process=process, device=where, dtype=kind, overrides=changes)
    # "None" since measurements began: their names must stay
    process_name = "None" if isinstance(lm.process, Autoregressive) else repr(lm.process)
    identity: dict[str, Any] = {"process": process_name, "context": lm.context}
    if (window := lm.network.attention_window) is not None:  # which weights do not tell
        identity["attention_window"] = window
    folder = None if isinstance(source, LM) else bundle.locate(bundle.BUNDLED if source is None else source)
    recipe = None
    if folder is not None and (folder / bundle.META).is_file():
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        identity |= {"weights": meta["weights_sha256"], "vocab": meta["vocab"]["hash"], "step": meta["step"]}
        recipe = (folder / "recipe.yaml").read_text(encoding="utf-8")
    else:
        identity |= {"weights": weights_hash(lm), "vocab": lm.tokenizer.hash}
    if changes:
        identity["changes"] = list(changes)
    if dtype is not None:
        identity["dtype"] = dtype
    place = lm.name if isinstance(source, LM) else source
    name, again = label or ("bundled" if place is None else Path(place).name or str(place)), None
    if not isinstance(source, LM) and not isinstance(process, Process):
        again = ModelSource(None if source is None else str(source), name, process, changes, dtype)
    return EvalModel(name, lm, identity, recipe, again)


def weights_hash(lm: LM) -> str:
    """SHA-256 of the weights themselves, PRISM's head included, for models that came without a checksum."""
    checksum = hashlib.sha256()
    quality = {} if lm.quality is None else lm.quality.state_dict(prefix=bundle.QUALITY)
    for name, value in sorted({**lm.network.state_dict(), **quality}.items()):
        checksum.update(name.encode())
        checksum.update(value.detach().float().cpu().contiguous().numpy().tobytes())
    return checksum.hexdigest()
