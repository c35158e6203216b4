"""What the authors' configurations say of a checkpoint: process, length, time conditioning, tokenizer.

SCDD's and MDLM's code keeps an omegaconf tree in the checkpoint itself; GIDD's writes a config.yaml beside its weights, or
the config.json of a Hub folder. Keys are looked up wherever they are in the tree: forks move them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scdd.core.errors import UserError
from scdd.core.files import plain_yaml, read_json, read_text
from scdd.models.weights.inert import Inert

P_U = ("p_uniform", "p_u", "p_unif")
FORWARD = "forward"  # SCDD's section: ratio is p_u, gamma the exponent, t_peak itself
LENGTH = ("max_seq_len", "length", "max_length")
CONFIGS = ("config.yaml", "config.json", ".hydra/config.yaml")
# MDLM's names for 1 − t and for the cosine; its other schedules are none of ours.
SHAPES = {"loglinear": "log-linear", "cosine": "cosine"}
LARGEST, DEEPEST = 20_000, 60  # nodes and levels of a configuration
LARGEST_NUMBER = 1 << 40
KINDS = ("scdd", "gidd", "mdlm", "ar")


@dataclass(frozen=True)
class Said:
    """A configuration's word on what the weights do not show; None where it has none."""

    process: dict[str, Any] | None = None  # as a recipe's section
    p_u: float | None = None
    length: int | None = None
    time_conditioning: bool | None = None
    tokenizer: str | None = None
    heads: int | None = None


def said(own: Any, folder: Path, *, gidd: bool) -> Said:
    """What the checkpoint's own configuration says, or else the one that lies beside it."""
    config = plain(own)
    if not isinstance(config, dict) or not config:
        config = _beside(folder)
    forward = look(config, FORWARD)
    forward = forward if isinstance(forward, dict) else {}
    p_u = _number(config, P_U)
    p_u = _number(forward, ("ratio",)) if p_u is None else p_u
    model = look(config, "model")
    length = _number(model if isinstance(model, dict) else {}, LENGTH)
    if length is None:
        length = _number(config, ("max_seq_len", "model_length"))
    heads = _number(config, ("n_heads", "num_attention_heads"))
    conditioned = look(config, "time_conditioning")
    name = look(config, "tokenizer_name_or_path")
    return Said(
        process=_process(config, p_u, gidd),
        p_u=p_u,
        length=int(length) if length is not None and length >= 1 else None,
        time_conditioning=conditioned if isinstance(conditioned, bool) else None,
        tokenizer=name if isinstance(name, str) else None,
        heads=int(heads) if heads is not None and heads >= 1 else None,
    )


def described(
    kind: str, p_u: float | None, exponent: float | None = None, t_peak: float | None = None
) -> dict[str, Any]:
    """A recipe's process section with the paper's schedule, or with masks alone."""
    if kind == "ar":
        return {"kind": "ar"}
    if kind == "mdlm":
        return {"kind": "mdlm", "schedule": {"kind": "masked"}}
    told = {"exponent": exponent, "t_peak": t_peak}
    schedule = {"kind": "peaked", "p_u": p_u, **{name: value for name, value in told.items() if value is not None}}
    return {"kind": kind, "schedule": schedule}


def named(process: str, p_u: float | None) -> dict[str, Any]:
    """The section that a caller's "kind" or "kind:p_u" means; `p_u` is what the checkpoint says itself."""
    kind, _, share = process.partition(":")
    if kind not in KINDS:
        raise UserError(f"process {process} is not known: choose one of {', '.join(KINDS)}.", "process")
    if share:
        try:
            p_u = float(share)
        except ValueError as error:
            raise UserError(
                f"process {process} has no number behind the colon: write {kind}:0.1.", "process"
            ) from error
        if kind in ("mdlm", "ar") or not 0 <= p_u < 1:
            raise UserError(f"process {process} is wrong: scdd and gidd take a share p_u in [0, 1).", "process")
    if kind in ("scdd", "gidd") and p_u is None:
        raise UserError(
            f"process {process} needs its share of uniform noise, p_u, which the checkpoint does not say: write "
            f"{kind}:0.1 if it was trained with 0.1.",
            "process",
        )
    return described(kind, p_u)


def plain(tree: Any) -> Any:
    """Plain data from a tree that may hold omegaconf's nodes, which the unpickler left inert; what is too large is left out."""
    left = LARGEST

    def walk(node: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or depth > DEEPEST:
            return None
        if isinstance(node, Inert):
            state = node.state if isinstance(node.state, dict) else {}
            return walk(state.get("_content", state.get("_val", node.entries or node.elements)), depth + 1)
        if isinstance(node, Mapping):
            return {str(key): walk(value, depth + 1) for key, value in node.items() if isinstance(key, (str, int))}
        if isinstance(node, (list, tuple)):
            return [walk(value, depth + 1) for value in node]
        return node if isinstance(node, (str, int, float, bool)) else None

    return walk(tree, 0)


def look(config: Any, key: str) -> Any:
    """The first value under `key`, breadth first; None when absent."""
    queue, seen = deque([config]), set[int]()
    while queue:
        node = queue.popleft()
        if id(node) in seen:  # YAML can name a part again
            continue
        seen.add(id(node))
        if isinstance(node, dict):
            if node.get(key) is not None:
                return node[key]
            queue.extend(node.values())
        elif isinstance(node, list):
            queue.extend(node)
    return None


def _number(config: dict[str, Any], names: tuple[str, ...]) -> float | None:
    found = (look(config, name) for name in names)
    numbers = (v for v in found if isinstance(v, (int, float)) and not isinstance(v, bool))
    return next((v for v in numbers if abs(v) < LARGEST_NUMBER), None)  # neither infinite nor NaN


def _beside(folder: Path) -> dict[str, Any]:
    folders = (folder, folder.parent) if folder.name == "checkpoints" else (folder,)
    for file in (each / name for each in folders for name in CONFIGS):
        if file.is_file():
            if file.suffix == ".json":
                return read_json(file)
            try:
                found = plain_yaml(read_text(file))
            except ValueError as error:
                raise UserError(f"{file} is damaged ({error}): fetch it again.") from error
            return found if isinstance(found, dict) else {}
    return {}


def _process(config: dict[str, Any], p_u: float | None, gidd: bool) -> dict[str, Any] | None:
    """The process section; None where a schedule is none of ours, or nothing is said."""
    keys = ("diffusion_process", "diffusion", "process", "parameterization", "backbone", "model_type")
    words = [look(config, key) for key in keys]
    names = [word.lower() for word in words if isinstance(word, str)]
    model = look(config, "model")
    if "ar" in names or (isinstance(model, dict) and model.get("type") == "autoregressive"):
        return described("ar", None)
    kind = next((each for each in ("scdd", "gidd", "mdlm") for name in names if each in name), None)
    if kind is None and p_u is not None:
        kind = "gidd" if gidd else "scdd" if p_u > 0 else None
    if kind is None and not gidd and ("absorbing_state" in names or "subs" in names):
        kind = "mdlm"
    if kind is None or (kind != "mdlm" and (p_u is None or not 0 <= p_u < 1)):
        return None
    if kind == "mdlm":
        noise = look(config, "noise")
        type_ = noise.get("type", "loglinear") if isinstance(noise, dict) else "loglinear"
        return (
            {"kind": "mdlm", "schedule": {"kind": "masked", "shape": SHAPES[type_]}} if str(type_) in SHAPES else None
        )
    exponent = model.get("gamma") if gidd and isinstance(model, dict) else None
    forward = look(config, FORWARD)
    if kind == "scdd" and isinstance(forward, dict):
        return described(kind, p_u, _number(forward, ("gamma",)), _number(forward, ("t_peak",)))
    return described(kind, p_u, exponent if isinstance(exponent, float) else None)
