"""Finished measurements on disk, each under the hash of its settings: what is there is not measured again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar, cast

import torch.distributed as dist

from scdd import __version__
from scdd.core.errors import UserError
from scdd.data.files import write_json
from scdd.evals.paper import paper_name
from scdd.evals.subject import EvalModel
from scdd.training.parallel import World

FORMAT = 1  # raised when a measurement's meaning changes, so that old cells are not taken for new ones
PACKAGES = ("torch", "transformers", "lm_eval", "numpy", "scipy", "openai")
T = TypeVar("T")
ALONE = World()


@dataclass(frozen=True)
class Measurement:
    """One measurement: what was asked, what came out, and what made it."""

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
        return {
            "format": FORMAT,
            "kind": self.kind,
            "label": self.label,
            "hash": self.hash,
            "settings": self.settings,
            "result": self.result,
            "made": self.made,
        }


def digest(kind: str, settings: dict[str, Any]) -> str:
    """A content hash of the settings: equal settings, equal name."""
    text = json.dumps({"format": FORMAT, "kind": kind, **settings}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Store:
    """A folder of cells; every rank asks, rank 0 reads and writes."""

    def __init__(self, folder: str | Path, world: World = ALONE) -> None:
        self.folder, self.world = Path(folder), world
        self._asked: set[Path] = set()
        for place in (self.folder, self.folder / "cells"):
            if place.exists() and not place.is_dir():  # said before anything long is measured
                raise UserError(f"{place} is a file, and results go into a folder: name another with --out.")

    def cell(
        self,
        kind: str,
        subject: EvalModel,
        settings: dict[str, Any],
        measure: Callable[[], dict[str, Any]],
        text: str = "",
    ) -> Measurement:
        """The finished cell of these settings, measured now if there is none. `measure` runs on every rank.

        `text` is what people call the text it is about; like the label it is no part of the hash.
        """
        asked = {"model": subject.identity, **json.loads(json.dumps(settings))}
        path = self.folder / "cells" / f"{kind}-{digest(kind, asked)}.json"
        held = self.world.broadcast(
            path.read_text(encoding="utf-8") if self.world.is_main and path.is_file() else ""
        )
        if held:
            return self._called(parsed(held, path), path, subject.label, text)
        self._asked.add(path)
        start = time.time()
        result = measure()
        made = {
            "versions": versions(),
            "device": self.device(),
            "ranks": self.world.size,
            "seconds": round(time.time() - start, 2),
            # to the millisecond: reports order systems by it
            "date": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(start))}.{int(start % 1 * 1000):03d}Z",
            "recipe": subject.recipe,
            "paper": paper_name(subject, settings.get("sampler"), settings.get("options")),
            **({"text": text} if text else {}),
        }
        found = Measurement(kind, subject.label, asked, json.loads(json.dumps(result)), made, path)
        if self.world.is_main:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, found.json())
        return found

    def _called(self, cell: Measurement, path: Path, label: str, text: str) -> Measurement:
        """`cell` under its present names, which replace older ones: it may have been measured before it had any."""
        names = cell.labels
        if label not in names:
            names = [*names, label] if path in self._asked else [label]
        self._asked.add(path)
        made = {name: value for name, value in cell.made.items() if name != "labels"}
        made |= {"labels": names} if len(names) > 1 else {}
        made |= {"text": text} if text else {}
        if (names[0], made) != (cell.label, cell.made):
            cell = replace(cell, label=names[0], made=made)
            if self.world.is_main:
                write_json(path, cell.json())
        return replace(cell, label=label)

    def device(self) -> str:
        """The device, in words."""
        import torch

        if self.world.device.type == "cuda":
            return torch.cuda.get_device_name(self.world.device)
        return f"cpu ({platform.machine()})"


def read_cells(folder: str | Path) -> list[Measurement]:
    """All cells below a run folder or an evaluation folder, in the order of their files."""
    return [
        parsed(path.read_text(encoding="utf-8"), path) for path in sorted(Path(folder).rglob("cells/*.json"))
    ]


def parsed(text: str, path: Path) -> Measurement:
    """A cell from its file's text."""
    try:
        found = json.loads(text)
        return Measurement(
            found["kind"], found["label"], found["settings"], found["result"], found["made"], path
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}): delete it, and it will be measured again.") from error


def versions() -> dict[str, str]:
    """Versions of whatever is installed of the packages that a number may depend on."""
    found = {"scdd": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def share(count: int, world: World) -> range:
    """The indices of this rank: one run of them, so that they are batched as if it were alone."""
    each = -(-count // world.size)
    return range(min(count, world.rank * each), min(count, (world.rank + 1) * each))


def gathered(items: Sequence[T], world: World) -> list[T]:
    """Everybody's items in the order of the ranks, on every rank."""
    if world.size == 1:
        return list(items)
    boxes: list[Any] = [None] * world.size
    dist.all_gather_object(boxes, list(items), group=world.control)
    return [cast(T, item) for box in boxes for item in box]
