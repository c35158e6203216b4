"""What edits are decided by: weights that find the right candidate, and a price of each kind for the harm that it does."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from scdd.lm.edits.channel import KINDS, Channel
from scdd.lm.edits.lexicon import english
from tests.docs import pages

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return pages.tool("fit_repair")


def site(kind: str, span: float, right: bool) -> list[dict[str, Any]]:
    return [{"kind": kind, "features": {"span": span}, "right": right}]


def made(seed: int, rows: int = 60) -> list[dict[str, Any]]:
    """Sentences in which spellings are right by their gain, and forms do harm as often as they help."""
    rng = Random(seed)
    found = []
    for _ in range(rows):
        sites = [site("spelling", rng.gauss(8, 2), True), site("spelling", rng.gauss(-8, 2), False)]
        sites += [site("form", rng.gauss(3, 3), rng.random() < 0.5) for _ in range(2)]
        found.append({"sites": sites, "clean": 20, "errors": 2, "text": ""})
    return found


def test_the_tail_of_wrong_edits_says_what_is_clear(tool: ModuleType) -> None:
    rng = Random(0)
    for mean in (0.5, 2.0):
        wrong = [tool.TAIL + rng.expovariate(1 / mean) for _ in range(4000)]
        for allowed in (40, 4):
            expected = tool.TAIL + mean * math.log(4000 / allowed)
            assert tool.clear(wrong, allowed) == pytest.approx(expected, abs=0.4)
        assert tool.clear([*wrong, *[-9.0] * 999], 4) == tool.clear(wrong, 4)  # what lies far below says nothing
    assert tool.clear([], 0.05) < tool.clear([0.0], 0.05) < tool.clear([4.0], 0.05)


def test_a_kind_pays_for_its_harm(tool: ModuleType) -> None:
    rows = made(0)
    channel = tool.fitted(rows)
    pays = tool.prices([(row, channel) for row in rows])
    assert set(pays) == set(KINDS)
    assert pays["form"] > pays["spelling"] + 1
    assert min(pays.values()) >= 0
    cheaper = tool.priced(channel, pays)
    assert cheaper.log_odds("form", {"span": 1.0}) == pytest.approx(
        channel.log_odds("form", {"span": 1.0}) - pays["form"]
    )
    wrong = [tool._best([(row, channel)]) for row in made(1)]
    assert sum(right is False and odds - pays[kind] > tool.MARGIN for each in wrong for odds, right, kind in each) == 0


def test_slips_of_common_words_are_no_words(tool: ModuleType) -> None:
    counts = {"the": 1 << 20, "teh": 8, "thy": 64, "tze": 8, "dog": 9, "dgo": 8}
    assert tool.mistyped(counts) == {"teh"}  # not what is commoner, no easy slip, or near a word that is not common
    assert not english().knows("teh")
    assert english().knows("thy")


def test_the_file_that_is_written(tool: ModuleType, tmp_path: Path) -> None:
    examples, out = tmp_path / "examples.jsonl", tmp_path / "channel.json"
    examples.write_text("".join(json.dumps(row) + "\n" for row in made(2)), encoding="utf-8")
    told = CliRunner().invoke(tool.app, ["fit", str(examples), "--out", str(out)])
    assert told.exit_code == 0, told.output
    channel = Channel.of(json.loads(out.read_text(encoding="utf-8")), "channel.json")
    assert channel.margin == pytest.approx(math.log(0.08 / 0.92) - math.log(0.01 / 0.99))
    assert channel.log_odds("spelling", {"span": 8.0}) > channel.margin > channel.log_odds("spelling", {"span": -8.0})
    assert "form: " in told.output
    assert "0.00000 of clean words harmed" in told.output
