"""Finished measurements on disk, each under the hash of its settings: what is there is not measured again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from scdd import __version__
from scdd.core.errors import UserError
from scdd.data.files import write_json
from scdd.evals.measure.model import EvalModel
from scdd.evals.measure.progress import Watch, unwatched
from scdd.training.parallel import World

FORMAT = 1  # raised when a measurement's meaning changes, so that old ones are not taken for new ones
FOLDER = "cells"
PACKAGES = ("torch", "transformers", "lm_eval", "numpy", "scipy", "openai")
A = TypeVar("A")
B = TypeVar("B")
ALONE = World()
SAMPLES = 16  # drawn at a time where nobody chose


@dataclass(frozen=True)
class Measurement:
    """What was asked, what came out, and what made it."""

    kind: str
    label: str
    settings: dict[str, Any]
    result: dict[str, Any]
    made: dict[str, Any]
    path: Path | None = None

    @property
    def labels(self) -> list[str]:
        """Everything it is called: systems that differ in their samplers share what concerns their weights alone."""
        return list(self.made.get("labels") or [self.label])

    @property
    def hash(self) -> str:
        """The name it is filed under."""
        return digest(self.kind, self.settings)

    def json(self) -> dict[str, Any]:
        """Plain data, as the file holds it."""
        content = {"settings": self.settings, "result": self.result, "made": self.made}
        return {"format": FORMAT, "kind": self.kind, "label": self.label, "hash": self.hash, **content}


def digest(kind: str, settings: dict[str, Any]) -> str:
    """A content hash of the settings: equal settings, equal name."""
    text = json.dumps({"format": FORMAT, "kind": kind, **settings}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint(value: Any) -> str:
    """A short hash of plain data: which texts a number is about."""
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()[:16]


class Store:
    """A folder of measurements; every rank asks, rank 0 reads and writes."""

    def __init__(self, folder: str | Path, world: World = ALONE) -> None:
        self.folder, self.world = Path(folder), world
        self._asked: set[Path] = set()
        for place in (self.folder, self.folder / FOLDER):
            if place.exists() and not place.is_dir():  # said before anything long is measured
                raise UserError(f"{place} is a file, and results go into a folder: name another.")

    def measurement(
        self,
        kind: str,
        model: EvalModel,
        settings: dict[str, Any],
        measure: Callable[[], dict[str, Any]],
        text: str = "",
    ) -> Measurement:
        """The finished measurement of these settings, made now by `measure` (on every rank) if there is none.

        `text` is what people call the text it is about; like the label it is no part of the hash.
        """
        asked = {"model": model.identity, **plain(settings)}
        path = self.path(kind, asked)
        stored = self.world.broadcast(_content(path) if self.world.is_main and path.is_file() else "")
        if stored:
            return self._renamed(parsed(stored, path), path, model.label, text)
        self._asked.add(path)
        start = time.time()
        result = plain(measure())
        device, machine = self.world.device, f"cpu ({platform.machine()})"
        made = {
            "versions": versions(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else machine,
            "ranks": self.world.size,
            "seconds": round(time.time() - start, 2),
            # to the millisecond: reports order systems by it
            "date": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(start))}.{int(start % 1 * 1000):03d}Z",
            "recipe": model.recipe,
            "paper": model.paper_name(settings.get("sampler"), settings.get("options")),
            **({"text": text} if text else {}),
        }
        new = Measurement(kind, model.label, asked, result, made, path)
        if self.world.is_main:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, new.json())
        return new

    def path(self, kind: str, asked: dict[str, Any]) -> Path:
        """The file of the measurement of these settings, the model's identity among them."""
        return self.folder / FOLDER / f"{kind}-{digest(kind, asked)}.json"

    def _renamed(self, stored: Measurement, path: Path, label: str, text: str) -> Measurement:
        """`stored` under its present names, which replace older ones: it may have been measured before it had any."""
        names = stored.labels
        if label not in names:
            names = [*names, label] if path in self._asked else [label]
        self._asked.add(path)
        made = {name: value for name, value in stored.made.items() if name != "labels"}
        made |= {"labels": names} if len(names) > 1 else {}
        made |= {"text": text} if text else {}
        if (names[0], made) != (stored.label, stored.made):
            stored = replace(stored, label=names[0], made=made)
            if self.world.is_main:
                write_json(path, stored.json())
        return replace(stored, label=label)


@dataclass(frozen=True)
class MeasureContext:
    """How measuring goes on: where results are kept, how many texts at a time, and who watches.

    Without a `batch_size`, likelihoods choose their own, which suits the device.
    """

    store: Store
    batch_size: int | None = None
    watch: Watch = unwatched

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise UserError(f"The batch size is {self.batch_size}: give at least 1, or leave it out.")

    @property
    def samples_at_once(self) -> int:
        """How many texts are drawn or repaired at a time."""
        return self.batch_size or SAMPLES

    @property
    def world(self) -> World:
        """This rank among its peers."""
        return self.store.world


def read_measurements(folder: str | Path) -> list[Measurement]:
    """All measurements below a run folder or an evaluation folder, in the order of their files."""
    paths = sorted(Path(folder).rglob(f"{FOLDER}/*.json"))
    return [parsed(_content(path), path) for path in paths]


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise UserError(f"{path} is damaged (it is no UTF-8): delete it, and measure again.") from error


def parsed(text: str, path: Path) -> Measurement:
    """A measurement from its file's text."""
    try:
        stored = json.loads(text)
        keys = ("kind", "label", "settings", "result", "made")
        values = {key: stored[key] for key in keys}
        if not all(isinstance(value, str if key in ("kind", "label") else dict) for key, value in values.items()):
            raise ValueError("it holds no measurement")
        return Measurement(**values, path=path)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}): delete it, and it will be measured again.") from error


def plain(value: dict[str, Any]) -> dict[str, Any]:
    """As the file will hold it: lists for tuples."""
    return cast(dict[str, Any], json.loads(json.dumps(value)))


@cache
def versions() -> dict[str, str]:
    """Versions of whatever is installed of the packages that a number may depend on."""
    installed = {"scdd": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def shared(items: Sequence[A], work: Callable[[Sequence[A], range], Sequence[B]], world: World) -> list[B]:
    """What `work` makes of all items, on every rank; each rank does its share, which it is told with its numbers.

    A share is one run of items, so that they are batched as if the rank were alone.
    """
    each = -(-len(items) // world.size)
    mine = range(min(len(items), world.rank * each), min(len(items), (world.rank + 1) * each))
    return all_gather(work(items[mine.start : mine.stop], mine), world)


def all_gather(items: Sequence[B], world: World) -> list[B]:
    """Everybody's items in the order of the ranks, on every rank."""
    if world.size == 1:
        return list(items)
    boxes: list[Any] = [None] * world.size
    dist.all_gather_object(boxes, list(items), group=world.control)
    return [cast(B, item) for box in boxes for item in box]
