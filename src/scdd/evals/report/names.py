"""What measurements are called in tables and figures, so that no two different numbers share a name."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from scdd.evals.measure.store import Measurement

SHORT = 8  # digits of a hash, where a hash is all there is to say
SPOKEN = {"top_p": "top-p", "top_k": "top-k", "num": "texts", "changes": "with"}
Slot = Callable[[Measurement], Hashable]
Key = TypeVar("Key", bound=Hashable)


def distinct_names(measurements: Sequence[Measurement], slot: Slot) -> list[str]:
    """A name for each: its label, and where several of a label want one slot, what they differ in."""
    by_label = grouped(measurements, lambda one: one.label)
    keys = {label: _differences(group, slot) for label, group in by_label.items()}
    names = [
        ", ".join([one.label, *(f"{SPOKEN.get(key, key)} {_value(one, key)}" for key in keys[one.label])])
        for one in measurements
    ]
    taken: dict[tuple[str, Hashable], set[str]] = {}
    for name, one in zip(names, measurements, strict=True):
        taken.setdefault((name, slot(one)), set()).add(one.hash)
    return [
        name if len(taken[name, slot(one)]) == 1 else f"{name}, cell {one.hash[:SHORT]}"
        for name, one in zip(names, measurements, strict=True)
    ]


def text_of(measurement: Measurement) -> str:
    """The text that a measurement is about: its name, or its fingerprint where nobody named it."""
    mark = measurement.settings.get("text") or measurement.settings.get("human") or ""
    return str(measurement.made.get("text") or f"text {mark[:SHORT]}")


def vocab_of(measurement: Measurement) -> str:
    """What a model's tokens are known by, and what is counted in them."""
    return str((measurement.settings.get("model") or {}).get("vocab", ""))


def own_tokens(measurements: Sequence[Measurement]) -> list[str]:
    """A note where models of several vocabularies stand side by side: what is counted in tokens is in tokens of their own."""
    if len(set(map(vocab_of, measurements))) < 2:
        return []
    return [
        "The models have different vocabularies, and entropy, distinct-n and repetition are of each one's own tokens: shorter tokens "
        "alone change them, so compare them within a vocabulary. Word entropy, where it was measured, is the same unit for all."
    ]


def grouped(measurements: Iterable[Measurement], key: Callable[[Measurement], Key]) -> dict[Key, list[Measurement]]:
    """Measurements of one key together, in the order in which keys come."""
    groups: dict[Key, list[Measurement]] = {}
    for one in measurements:
        groups.setdefault(key(one), []).append(one)
    return groups


def listed(names: Iterable[str]) -> str:
    """Names in a row, each once."""
    return ", ".join(dict.fromkeys(names))


def _differences(measurements: Sequence[Measurement], slot: Slot) -> list[str]:
    """The settings that differ within any slot, in the order of the settings."""
    different: dict[str, None] = {}
    for group in grouped(measurements, slot).values():
        settings = [_flat(one.settings) for one in group]
        for key in dict.fromkeys(key for each in settings for key in each):
            if any(each.get(key) != settings[0].get(key) for each in settings):
                different[key] = None
    return list(different)


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with the model's identity beside the others; reference LM and text have tables of their own."""
    own = {key: value for key, value in settings.items() if key not in ("model", "judge", "text", "human")}
    return {**settings.get("model", {}), **own}


def _value(measurement: Measurement, key: str) -> str:
    """A setting as a reader needs it: what the recipe decided, where the command left it open."""
    value = _flat(measurement.settings).get(key)
    if value is None:
        value = {**measurement.result.get("filters", {}), **measurement.result}.get(key)
    if key in ("weights", "vocab"):
        return str(value)[:SHORT]
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else "as in the recipe" if value is None else str(value)
