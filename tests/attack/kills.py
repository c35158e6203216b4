"""Commands that are killed at random moments and inside their file operations, and gone on with until they are done."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests import tiny
from tests.attack.tally import Tally
from tests.training.conftest import RECIPE, asked, forking, written
from tests.training.test_resume import same

KILLS = 10  # a round
PATIENCE = 120  # seconds for what takes two
SETS = ("training.steps=80", "training.save_every=3", "training.parallel=ddp")


@dataclass(frozen=True)
class Victim:
    """A command, what it is run on, and how two of its results are compared."""

    name: str
    argv: list[str]
    ranks: int
    compare: Callable[[Path, Path], None]

    def run(self, zygote: subprocess.Popen[str], out: Path, **how: float) -> list[int]:
        argv = [str(out) if word == "OUT" else word for word in self.argv]
        request = {"argv": argv, "ranks": self.ranks, "log": f"{out}.log", "imports": ["scdd.cli.main"], **how}
        return asked(zygote, {"after": PATIENCE, **request})


def digests(folder: Path) -> dict[str, str]:
    files = [each for each in sorted(folder.rglob("*")) if each.is_file()]
    return {str(each.relative_to(folder)): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


def same_files(a: Path, b: Path) -> None:
    one, two = digests(a), digests(b)
    assert one == two, sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))


def victims(place: Path) -> list[Victim]:
    (place / "text").mkdir()
    recipe, lines = place / "small.yaml", place / "lines.jsonl"
    recipe.write_text(RECIPE.format(text=written(place / "text")), encoding="utf-8")
    texts = [each.read_text() for each in sorted((place / "text").iterdir())]
    lines.write_text("".join(json.dumps({"text": f"{i} {texts[i % 5]}"}) + "\n" for i in range(300)))
    train = ["train", str(recipe), "--out", "OUT", "--device", "cpu"]
    train += [part for each in SETS for part in ("--set", each)]
    prepare = ["prepare", str(lines), "--out", "OUT", "--train-tokenizer", "300", "--shard-tokens", "20000"]
    # A kill after the last rename leaves a whole model, which only --force replaces.
    export = ["export", str(tiny.checkpoint(place / "model")), "--out", "OUT", "--force"]
    return [
        Victim("train on 1 rank", train, 1, same),
        Victim("prepare", [*prepare, "--workers", "1"], 1, same_files),
        Victim("train on 2 ranks", train, 2, same),
        Victim("export", export, 1, same_files),
        Victim("train on 4 ranks", train, 4, same),
    ]


def rounds(place: Path, first: int) -> Iterator[Tally]:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    every = victims(place)
    calm: dict[str, float] = {}
    with forking() as zygote:
        asked(zygote, {"argv": ["--version"], "ranks": 1, "log": str(place / "first")})  # when all is imported
        for number in count(first):
            victim = every[number % len(every)]
            name, began = victim.name.replace(" ", "-"), time.monotonic()
            tally = Tally(rounds=1)
            if name not in calm:
                codes = victim.run(zygote, place / name)
                calm[name] = time.monotonic() - began
                if any(codes):
                    tally.fault("differing", f"{victim.name}, undisturbed: {codes} {told(place / name)}")
            torment(zygote, victim, place / name, calm[name], number, tally)
            tally.seconds = time.monotonic() - began
            yield tally


def told(out: Path) -> str:
    return out.with_name(f"{out.name}.log.0").read_text(errors="replace")[-400:]


def torment(
    zygote: subprocess.Popen[str], victim: Victim, calm: Path, seconds: float, number: int, tally: Tally
) -> None:
    """Kill it until it ends or has been killed often enough, let it finish, and compare."""
    chance, out = random.Random(number), calm.with_name("killed")
    shutil.rmtree(out, ignore_errors=True)
    for file in out.parent.glob("killed.log.*"):
        file.unlink()
    where = f"round {number}, {victim.name}"
    while tally.inputs < KILLS:
        moment = {"operation": chance.randint(1, 40)}
        if chance.random() < 0.5:
            moment = {"after": chance.uniform(0.01, 0.25) * seconds}
        codes = victim.run(zygote, out, **moment)
        tally.inputs += -signal.SIGKILL in codes
        if victim.ranks == 1 and codes[0] not in (0, -signal.SIGKILL):
            tally.fault("tracebacks", f"{where}, after {tally.inputs} kills: {codes} {told(out)}")
            return
        if not any(codes):
            break
    codes = victim.run(zygote, out)
    if -signal.SIGKILL in codes:
        tally.fault("hangs", f"{where}: not done after {PATIENCE} s")
    elif any(codes):
        tally.fault("tracebacks", f"{where}: {codes} {told(out)}")
    else:
        try:
            victim.compare(calm, out)
        except (AssertionError, OSError) as error:
            tally.fault("differing", f"{where}: {error}")
