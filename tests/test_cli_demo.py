"""`scdd demo`: what it shows, what it leaves, that it counts rightly, and that it is quick."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scdd.cli import demo as verb
from scdd.cli.main import main
from scdd.lm.loading import load
from scdd.lm.model import LM

from . import tiny

PROMISED = 60  # seconds on two cores; machines that run tests are busy, hence twice as much below
TALLY = re.compile(r"(\d+) of (\d+) damaged tokens came back exactly, (\d+) of (\d+) clean ones were harmed")


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> LM:
    return load(tiny.checkpoint(tmp_path_factory.mktemp("demo") / "model"), device="cpu")


@pytest.fixture
def show(lm: LM, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[bool], tuple[str, dict[str, object]]]:
    """The demo of a model of random weights, and the data of its page."""

    def run(plain: bool) -> tuple[str, dict[str, object]]:
        page = tmp_path / "page.html"
        verb._show(lm, page, steps=5, seed=0, plain=plain)
        return capsys.readouterr().out, _data(page)

    return run


def _data(page: Path) -> dict[str, object]:
    found = re.search(r"const data = (\{.*\});\n", page.read_text(encoding="utf-8"))
    assert found is not None
    data: dict[str, object] = json.loads(found[1])
    return data


def test_the_bundled_model_shows_it_all_in_time(tmp_path: Path) -> None:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "scdd", "demo"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert time.perf_counter() - start < 2 * PROMISED
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout, "no colours in a pipe"
    headings = [line for line in done.stdout.splitlines() if re.match(r"\d\. ", line)]
    assert [heading[:2] for heading in headings] == ["1.", "2.", "3."]
    assert verb.PROMPT in done.stdout
    assert "[MASK:12]" in done.stdout
    assert re.search(r"\d+ of its tokens were revised", done.stdout)
    told = [tuple(map(int, counts)) for counts in TALLY.findall(" ".join(done.stdout.split()))]
    assert len(told) == 2, "one pass, and the reverse process"
    for back, hit, harmed, clean in told:
        assert 3 * back >= hit
        assert 20 * harmed <= clean
    samples = _data(tmp_path / "demo.html")["samples"]
    assert isinstance(samples, list)
    assert [s["label"] for s in samples][:2] == ["a text", "a repair"]
    assert len(samples) == 2 + verb.FILLS


def test_the_same_seed_shows_the_same(show) -> None:
    first, again = (show(True) for _ in range(2))
    said, repeated = (re.sub(r"\d+ seconds on", "some seconds on", shown[0]) for shown in (first, again))
    assert said == repeated
    assert first[1] == again[1]


def test_a_terminal_has_colours_unless_told_otherwise(show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in show(False)[0]
    assert "\x1b[" not in show(True)[0]


def test_revisions_are_the_corrections_that_were_counted(lm: LM) -> None:
    sample = lm.generate(1, steps=30, seed=2, record=True, stop=False)[0]
    assert sample.trajectory is not None
    made = list(verb.revisions(sample.trajectory))
    assert len(made) == sample.corrections > 0
    assert all(one.before != one.after for one in made)
    assert lm.tokenizer.mask_id not in {token for one in made for token in (one.before, one.after)}
    last = {one.position: one.after for one in made}
    drawn_last = {i for i in last if sample.tokens[i] == last[i]}
    assert drawn_last == set(last), "without remasking, the last revision is what stands there in the end"


def test_damage_can_be_read_back_token_by_token(lm: LM) -> None:
    tokenizer = lm.tokenizer
    clean = tokenizer.encode(verb.PARAGRAPH)
    broken = verb.damaged(tokenizer, clean, 0.1, seed=0)
    assert tokenizer.encode(tokenizer.decode(broken)) == broken
    hit = [i for i, (a, b) in enumerate(zip(clean, broken, strict=True)) if a != b]
    assert 0.05 < len(hit) / len(clean) < 0.15
    assert broken == verb.damaged(tokenizer, clean, 0.1, seed=0) != verb.damaged(tokenizer, clean, 0.1, seed=1)
    assert verb.damaged(tokenizer, clean, 0.0, seed=0) == clean
    assert verb._tally(clean, hit, clean).startswith(f"{len(hit)} of {len(hit)} damaged")
    assert verb._tally(clean, hit, broken).startswith(f"0 of {len(hit)} damaged")
    harmed = [clean[0] + 1, *clean[1:]]
    assert verb._tally(clean, [5], harmed).endswith(f"1 of {len(clean) - 1} clean ones were harmed")


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        (("a", "b", "a"), "restored"),
        (("a", "b", "b"), "missed"),
        (("a", "b", "c"), "wrong"),
        (("a", "a", "b"), "harmed"),
    ],
)
def test_the_fate_of_a_token(words: tuple[str, str, str], verdict: str) -> None:
    assert verb._fate(*words).endswith(verdict)


def test_a_bad_path_is_refused_before_anything_is_computed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--trace", "demo.pdf"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")


@pytest.mark.slow
def test_demo_trains_a_model_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "demo.html"
    assert main(["demo", "--train", "--seconds", "15", "--steps", "8", "--trace", str(page)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Training a nano model")
    assert TALLY.search(" ".join(out.split()))
    assert page.stat().st_size > 5_000
