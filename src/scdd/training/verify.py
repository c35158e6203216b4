"""Whether a checkpoint can be trusted: digests of its files, written with it and compared before a run goes on from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from scdd.bundle import folder as bundle
from scdd.core import UserError
from scdd.core.errors import reason
from scdd.core.files import CONFIG_LIMIT
from scdd.training.parallel import World

RESUME, FACTS, STATE, DIGESTS = "resume", "facts.json", "state.safetensors", "digests.json"
LISTED = f"{RESUME}/{DIGESTS}"
NEEDED = {bundle.META, bundle.RECIPE, bundle.WEIGHTS, f"{RESUME}/{FACTS}"}
COUNTS = ("step", "tokens", "ema_updates")  # facts that are whole numbers


def write_digests(checkpoint: Path, known: Mapping[str, str]) -> None:
    """Note the SHA-256 of every file of a complete checkpoint, in `resume/digests.json`.

    `known` are those that were taken while the files were written; the others are read.
    """
    digests = {**known, **_digests(checkpoint, _files(checkpoint) - known.keys())}
    (checkpoint / LISTED).write_text(json.dumps(dict(sorted(digests.items())), indent=1) + "\n", encoding="utf-8")


def sound_checkpoint(run: Path, world: World) -> tuple[Path | None, list[str]]:
    """(The newest checkpoint that can be trusted, or None in a run without any; notices for the user.)

    Damaged ones that are newer are renamed, so that nothing takes them for the run's last. A run that has none but
    damaged ones is refused, and left as it is. Rank 0 looks, all are told.
    """
    found = ""
    if world.is_main:
        try:
            chosen, damaged = _newest_sound(run)
            notices = [_set_aside(each, harm, chosen) for each, harm in damaged]
            found = json.dumps([None if chosen is None else str(chosen), notices, None])
        except (UserError, OSError) as error:
            found = json.dumps([None, [], str(error)])
    path, notices, mistake = json.loads(world.broadcast(found))
    if mistake is not None:
        raise UserError(mistake)
    return None if path is None else Path(path), notices


def sound_meta(run: Path) -> dict[str, Any] | None:
    """What the newest checkpoint with an undamaged meta.json says of itself; None if there is none."""
    found = (_undamaged_meta(each) for each in reversed(bundle.checkpoints(run)))
    return next((meta for meta in found if meta is not None), None)


def read_facts(checkpoint: Path) -> dict[str, Any]:
    """`facts.json`, checked; ValueError or OSError where it is not as it was written."""
    facts = _json(checkpoint / RESUME / FACTS)
    loader, seconds = facts.get("loader"), facts.get("seconds")
    whole = all(type(facts.get(name)) is int for name in COUNTS)
    if not whole or not isinstance(loader, dict) or type(loader.get("cursor")) is not int:
        raise ValueError(f"{RESUME}/{FACTS} lacks what a run needs to go on")
    if type(seconds) not in (int, float):
        raise ValueError(f"{RESUME}/{FACTS} lacks the time spent")
    if facts["step"] != int(checkpoint.name.removeprefix("step-")):
        raise ValueError(f"it holds step {facts['step']}")
    return facts


# -- looking --------------------------------------------------------------------------------------------------------


def _newest_sound(run: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """(The newest sound checkpoint, what is wrong with each newer one), newest first."""
    damaged: list[tuple[Path, str]] = []
    for checkpoint in reversed(bundle.checkpoints(run, complete=False)):
        harm = _harm(checkpoint)
        if harm is None:
            return checkpoint, damaged
        damaged.append((checkpoint, harm))
    if damaged:
        newest, harm = damaged[0]
        raise UserError(
            f"{newest} is damaged ({harm}), and there is no other checkpoint to go on from: restore it from a copy, or "
            "delete the run folder to start anew."
        )
    return None, []


def _harm(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint; None if nothing is. Those without digests come from older versions."""
    try:
        _require_digests(checkpoint)
        for name in (bundle.META, bundle.RECIPE, bundle.WEIGHTS):
            if not (checkpoint / name).is_file():
                raise ValueError(f"{name} is missing")
        meta = _meta(checkpoint)
        if not (checkpoint / LISTED).exists():
            weights = _digests(checkpoint, {bundle.WEIGHTS})
            if weights[bundle.WEIGHTS] != meta.get("weights_sha256"):
                raise ValueError(f"{bundle.WEIGHTS} has another checksum than when it was written")
        read_facts(checkpoint)
        tensors = sorted((checkpoint / RESUME).glob("*.safetensors"))
        if not tensors:
            raise ValueError(f"{RESUME}/{STATE} is missing")
        for file in tensors:
            with safe_open(str(file), framework="pt"):
                pass  # a header that does not fit its file is refused here
    except (OSError, ValueError, SafetensorError) as error:
        return reason(error)
    return None


def _set_aside(checkpoint: Path, harm: str, instead: Path | None) -> str:
    """Take a damaged checkpoint out of the row, under a name that says so; the sentence to tell."""
    place, number = checkpoint.with_name(f"{checkpoint.name}.damaged"), 1
    while place.exists():
        number += 1
        place = checkpoint.with_name(f"{checkpoint.name}.damaged-{number}")
    checkpoint.rename(place)
    return f"{checkpoint} is damaged ({harm}) and now called {place.name}: going on from {instead}, the one before"


def _require_digests(checkpoint: Path, only: set[str] | None = None) -> None:
    """Compare files with their digests, where there are any; ValueError names the first that differs."""
    if not (checkpoint / LISTED).exists():
        return
    noted = _json(checkpoint / LISTED)
    asked = set(noted) if only is None else only & set(noted)
    there = _files(checkpoint)
    shards = {name for name in there if name.startswith(f"{RESUME}/") and name.endswith(".safetensors")}
    state = shards or {f"{RESUME}/{STATE}"}  # one file, or one of each rank
    if only is None and (unlisted := sorted((NEEDED | state) - asked)):
        raise ValueError(f"{LISTED} does not list {unlisted[0]}")
    if missing := sorted(asked - there):
        raise ValueError(f"{missing[0][:200]} is missing")
    found = _digests(checkpoint, asked)
    if changed := sorted(name for name in asked if found[name] != noted[name]):
        raise ValueError(f"{changed[0]} has another checksum than when it was written")


def _undamaged_meta(checkpoint: Path) -> dict[str, Any] | None:
    try:
        _require_digests(checkpoint, {bundle.META})
        return _meta(checkpoint)
    except (OSError, ValueError):
        return None


def _meta(checkpoint: Path) -> dict[str, Any]:
    """meta.json, with what resuming asks of it; one of a newer version is refused."""
    meta = _json(checkpoint / bundle.META)
    vocab = meta.get("vocab")
    whole = type(meta.get("schema")) is int and isinstance(vocab, dict) and {"hash", "size"} <= vocab.keys()
    if not whole or "network" not in meta:
        raise ValueError(f"{bundle.META} lacks what a run needs to go on")
    return bundle.meta(checkpoint)


def _json(file: Path) -> dict[str, Any]:
    name = file.name if file.parent.name != RESUME else f"{RESUME}/{file.name}"
    if not file.is_file():
        raise ValueError(f"{name} is missing")
    if file.stat().st_size > CONFIG_LIMIT:
        raise ValueError(f"{name} is too large")
    try:
        found = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is no JSON: {reason(error)}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{name} holds no object")
    return found


def _files(checkpoint: Path) -> set[str]:
    return {path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if path.is_file()} - {LISTED}


def _digests(checkpoint: Path, names: set[str]) -> dict[str, str]:
    ordered = sorted(names)
    with ThreadPoolExecutor() as pool:
        return dict(zip(ordered, pool.map(lambda name: bundle.sha256_of(checkpoint / name), ordered), strict=True))
