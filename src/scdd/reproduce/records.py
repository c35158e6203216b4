"""What has been done: a small file a part, which holds its numbers without its texts. Reports are made of these alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scdd.bundle import folder as bundle
from scdd.core.errors import UserError
from scdd.core.files import CONFIG_LIMIT, read_text
from scdd.data.files import make_folder, write_atomically, write_json
from scdd.reproduce.parts import Part, movable, run_folder

FORMAT = 1
FOLDER, TOGETHER = "records", "records.jsonl"
LONGEST = 32  # numbers of a list that a record keeps
SAMPLE = 600  # letters of a text that is kept to be shown
LINES_LIMIT = 256 << 20
KEYS = {
    "id": str,
    "name": str,
    "kind": str,
    "system": str,
    "training": str,
    "convention": str,
    "seed": int,
    "tuned": bool,
}


@dataclass(frozen=True)
class Record:
    """A finished part: who, how, what came out, and what made it."""

    part: Mapping[str, Any]
    """Its id, name, kind, system, training, seed, convention, whether tuned, and settings."""
    result: Mapping[str, Any]
    made: Mapping[str, Any]
    """Seconds, device, versions, the checkout's commit where there was one, date, and the checksum of the weights."""

    def __getattr__(self, name: str) -> Any:
        if name in KEYS:
            return self.part[name]
        raise AttributeError(name)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What was asked."""
        found: Mapping[str, Any] = self.part["settings"]
        return found

    def json(self) -> dict[str, Any]:
        """Plain data, as files hold it."""
        return {"format": FORMAT, "part": dict(self.part), "result": dict(self.result), "made": dict(self.made)}


class Records:
    """The records of an output folder, of the files' state at the time of asking."""

    def __init__(self, out: Path) -> None:
        self.out, self.folder = out, out / FOLDER

    def write(self, part: Part, result: Mapping[str, Any], made: Mapping[str, Any]) -> None:
        """Note that a part is finished."""
        about = {name: getattr(part, name) for name in KEYS} | {"settings": movable(part.settings)}
        if part.kind == "train":  # its folders are of this machine
            about["settings"] = {name: part.settings[name] for name in ("recipe", "steps")}
        make_folder(self.folder)
        record = Record(about, compact(result), made)
        write_json(self.folder / f"{part.id}.json", record.json())

    def read(self) -> dict[str, Record]:
        """Every record, by its id; a file of its own counts before its line among the published ones."""
        found = {}
        together = self.out / TOGETHER
        if together.is_file():
            for number, line in enumerate(read_text(together, LINES_LIMIT).split("\n"), 1):
                if line.strip():
                    one = parsed(line, f"{together}, line {number},")
                    found[one.id] = one
        for path in sorted(self.folder.glob("*.json")):
            one = parsed(read_text(path, CONFIG_LIMIT), str(path))
            found[one.id] = one
        return found

    def one(self, id: str) -> Record | None:
        """The record of this id, as `read` would have it."""
        path = self.folder / f"{id}.json"
        return parsed(read_text(path, CONFIG_LIMIT), str(path)) if path.is_file() else self.read().get(id)

    def publish(self) -> Path:
        """All records in one file, in the order of their names."""
        ordered = sorted(self.read().values(), key=lambda one: (str(one.name), str(one.id)))
        lines = [json.dumps(one.json(), ensure_ascii=False) for one in ordered]
        write_atomically(self.out / TOGETHER, "".join(f"{line}\n" for line in lines).encode())
        return self.out / TOGETHER

    def unfinished(self, parts: Sequence[Part]) -> list[Part]:
        """The parts that are still to be done.

        A measurement counts only for the weights that are there now, and a tuned one for what tuning chose. A finished
        training whose checkpoints are gone is to be done again only if something still needs its weights; on a GPU it
        has other bits then, so that all that was made with the old ones is done again, too.
        """
        found = self.read()
        weights = {
            part.name: found[part.id].made.get("weights") for part in parts if part.kind == "train" and part.id in found
        }
        todo = {part.name for part in parts if part.id not in found or _stale(found[part.id], weights, found)}
        while True:
            before = len(todo)
            needed = set[str]().union(*(part.needs for part in parts if part.name in todo))
            for part in parts:
                lost = part.kind == "train" and part.name in needed and checkpoint(self.out, part) is None
                again = any(need in todo and need.startswith("train/") for need in part.needs)
                if lost or (again and part.id in found and found[part.id].made.get("device") != "cpu"):
                    todo.add(part.name)
            if len(todo) == before:
                return [part for part in parts if part.name in todo]


def _stale(record: Record, weights: Mapping[str, Any], found: Mapping[str, Record]) -> bool:
    """Whether a record is of other weights than those that are there now, a judge's among them, or of another tuning."""
    used, tuning = record.made.get("used") or {}, found.get(record.settings.get("tuning") or "")
    if tuning is not None and "chosen" in record.made and record.made["chosen"] != tuning.result.get("chosen"):
        return True
    return record.kind != "train" and any(weights.get(name) not in (None, own) for name, own in used.items())


def of_parts(parts: Sequence[Part], found: Mapping[str, Record], by_name: bool = False) -> dict[str, Record]:
    """The records of these parts, by their names; those of the same settings, or with `by_name` also the newest of the name.

    Published records may be of another judge or another folder than this command names.
    """
    chosen = {part.name: found[part.id] for part in parts if part.id in found}
    if by_name:
        newest = {one.name: one for one in sorted(found.values(), key=lambda one: str(one.made.get("date")))}
        chosen = {**newest, **chosen}
    names = [part.name for part in parts]
    return {name: chosen[name] for name in names if name in chosen}


def checkpoint(out: Path, part: Part) -> Path | None:
    """The newest checkpoint of a training; None if it has none."""
    return bundle.newest_checkpoint(run_folder(out, part.training, part.seed))


def parsed(text: str, where: str) -> Record:
    """A record from its text."""
    try:
        stored = json.loads(text)
        if stored["format"] != FORMAT:
            raise ValueError(f"its format is {stored['format']}, not {FORMAT}")
        part, result, made = (stored[name] for name in ("part", "result", "made"))
        if not all(isinstance(each, dict) for each in (part, result, made, part["settings"])):
            raise ValueError("it holds no record")
        for name, kind in KEYS.items():
            if not isinstance(part[name], kind):
                raise ValueError(f"{name} is no {kind.__name__}")
        return Record(part, result, made)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{where} is damaged ({error}): delete it, and its part will be done again.") from error


def compact(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result without its texts and long lists; a curve keeps 33 points, and one text stays to be shown."""
    kept = dict(_kept(result))
    samples = result.get("samples")
    if isinstance(samples, list) and samples and isinstance(samples[0], str):
        kept["sample"] = samples[0][:SAMPLE]
    return kept


def _kept(result: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in result.items():
        if isinstance(value, Mapping):
            yield name, dict(_kept(value))
        elif isinstance(value, list):
            if "cumulative" in name:
                yield name, thinned(value)
            elif len(value) <= LONGEST and not any(isinstance(each, str | dict) for each in value):
                yield name, value
        else:
            yield name, value


def thinned(curve: Sequence[float]) -> list[float]:
    """A curve that starts at 0 and is known after each of its steps, at every 32nd of its way."""
    whole = [0.0, *curve]
    points = []
    for k in range(LONGEST + 1):
        place = k / LONGEST * (len(whole) - 1)
        below = min(int(place), len(whole) - 2) if len(whole) > 1 else 0
        share = place - below
        above = whole[min(below + 1, len(whole) - 1)]
        points.append(whole[below] + share * (above - whole[below]))
    return points
