"""What people see: masks that fill in and corrections that flash on a terminal; plain text or JSON in a pipe."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.text import Text

    from scdd.cli.options import DrawFlags, ModelFlags
    from scdd.lm.model import LM
    from scdd.lm.results import Correction, Sample, Score, Tried
    from scdd.lm.run import BatchFrame, Run

STYLES = {1: "green", 2: "bold black on yellow", 3: "magenta"}
MASK, MASK_STYLE = "░░", "grey50"
FLASH = 3  # frames for which a move stays coloured
LENGTHS = 6  # of those that were tried
LARGE_ODDS = math.log(1e6)  # beyond which nobody counts
SHOWN = 3  # texts shown side by side while they are drawn


def on_terminal(as_json: bool, plain: bool) -> bool:
    """Whether somebody is watching."""
    return sys.stdout.isatty() and not as_json and not plain


def follow(run: Run, lm: LM, live: bool) -> tuple[Sample, ...]:
    """Draw the samples, with a live view if somebody is watching, who is also told how long it took."""
    start = time.perf_counter()
    if live:
        from rich.live import Live

        with Live(refresh_per_second=20, transient=True) as screen:
            board = Board(lm)
            try:
                for batch in run:
                    screen.update(board.frame(batch))
            finally:
                screen.update("")  # what is taller than the window could not be taken back at the end
    samples = run.results
    if live:
        drawn = sum(sample.unmasked for sample in samples)
        taken = time.perf_counter() - start
        typer.secho(f"[{drawn} tokens in {taken:.1f} s on {lm.device.type}]", err=True, dim=True)
    return samples


class Board:
    """The live view: the first few texts of a batch, one frame at a time."""

    def __init__(self, lm: LM) -> None:
        self.lm = lm
        self.ages: dict[int, tuple[list[int], list[int]]] = {}  # sample → (kind, frames since) of each position

    def frame(self, batch: BatchFrame) -> Any:
        """The texts after a step, and a line that says how far they are."""
        from rich.console import Group
        from rich.text import Text

        frame = batch.frame
        rows = min(SHOWN, len(batch.samples))
        tokens, moved = frame.tokens[:rows].tolist(), frame.moved[:rows].tolist()
        counts = frame.counts.sum(0).tolist()
        parts: list[Any] = [self._text(batch.samples[r], tokens[r], moved[r], batch.lengths[r]) for r in range(rows)]
        more = f" · {len(batch.samples) - rows} more" if len(batch.samples) > rows else ""
        line = (
            f"step {frame.step}/{frame.steps} · t = {frame.s:.3f} · {counts[1]} corrected · {counts[2]} remasked{more}"
        )
        return Group(*[Group(part, Text("")) for part in parts], Text(line, style="dim"))

    def _text(self, sample: int, tokens: list[int], moved: list[int], length: int) -> Text:
        from rich.text import Text

        inside = slice(1, 1 + length)
        tokens, moved = tokens[inside], moved[inside]
        kinds, since = self.ages.get(sample, ([0] * length, [FLASH] * length))
        if len(kinds) != length:
            kinds, since = [0] * length, [FLASH] * length
        out = Text()
        for i, (token, kind) in enumerate(zip(tokens, moved, strict=True)):
            kinds[i], since[i] = (kind, 0) if kind else (kinds[i], since[i] + 1)
            style = STYLES.get(kinds[i], "") if since[i] < FLASH else ""
            if token == self.lm.tokenizer.mask_id:
                out.append(MASK, style or MASK_STYLE)
            else:
                out.append(self.lm.tokenizer.token(token), style)
        self.ages[sample] = (kinds, since)
        return out


def draw(run: Run, lm: LM, verb: str, flags: DrawFlags) -> tuple[Sample, ...]:
    """The samples of a run, drawn and shown, with their trace written if one is asked for."""
    samples = follow(run, lm, flags.live)
    show_samples(samples, flags.json, flags.live)
    save_trace(flags.trace, samples, lm, verb)
    return samples


def show_samples(samples: Sequence[Sample], as_json: bool, live: bool) -> None:
    """The finished texts."""
    for i, sample in enumerate(samples):
        if as_json:
            print(json.dumps(sample.json(), ensure_ascii=False))
            continue
        if i:
            print()
        print(sample.text)
        if live:
            typer.secho(_facts(sample), err=True, dim=True)
    if live and samples and samples[0].tried:
        typer.secho(_lengths(samples[0].tried), err=True, dim=True)


def _facts(sample: Sample) -> str:
    parts = [
        *(f"sample {sample.index} of seed {sample.seed}", f"{sample.process}, {sample.sampler}, final {sample.final}"),
        *(f"{sample.nfe} evaluations", f"{sample.corrections} corrected", f"{sample.remasked} remasked"),
    ]
    return "[" + " · ".join(parts) + "]"


def _lengths(tried: Sequence[Tried]) -> str:
    """Which lengths were tried, the best of each, and why the first one won."""
    best: dict[tuple[int, ...], Tried] = {}
    for each in tried:  # best first
        best.setdefault(each.lengths, each)
    shown = [f"{'+'.join(map(str, lengths))}: {one.nats:.2f} ({one.score:.2f})" for lengths, one in best.items()]
    rest = f" · {len(shown) - LENGTHS} more" if len(shown) > LENGTHS else ""
    return f"[tokens: nats a filled token (less for length, lowest wins) · {' · '.join(shown[:LENGTHS])}{rest}]"


def show_correction(correction: Correction, flags: ModelFlags) -> None:
    """The repaired text; on a terminal with what was there before."""
    if flags.json:
        print(json.dumps(correction.json(), ensure_ascii=False))
        return
    if not flags.live:
        print(correction.text)
        return
    if correction.mode == "edit":
        _show_edits(correction)
        return
    from rich.console import Console
    from rich.text import Text

    changes = {change.position: change for change in correction.changes}
    out = Text()
    for token in correction.doubts:
        change = changes.get(token.position)
        if change is None:
            out.append(token.text)
        else:
            out.append(change.before, "red strike")
            out.append(change.after, STYLES[2])
    console = Console()
    console.print(out)
    for change in correction.changes:
        console.print(
            f"{change.position:>5}  {change.before!r} → {change.after!r}   "
            f"x_θ {change.p_before:.2g} → {change.p_after:.2g}   doubt {change.doubt:.2f}",
            style="dim",
            markup=False,
            highlight=False,
        )
    summary = f"{len(correction.changes)} changed of {len(correction.doubts)} tokens · {correction.nfe} evaluations · {correction.mode}"
    console.print(summary, style="dim")


def _show_edits(correction: Correction) -> None:
    """What was there struck through, what is there now beside it, and below each edit with its odds."""
    from rich.console import Console
    from rich.text import Text

    out, place = Text(), 0
    for edit in correction.edits:
        out.append(correction.before[place : edit.start])
        out.append(edit.before, "red strike")
        out.append(edit.after, STYLES[2])
        place = edit.end
    out.append(correction.before[place:])
    console = Console()
    console.print(out)
    for edit in correction.edits:
        line = f"{edit.start:>5}  {edit.before!r} → {edit.after!r}   {edit.kind}, odds {odds(edit.log_odds)}"
        console.print(line, style="dim", markup=False, highlight=False)
    summary = f"{len(correction.edits)} edits · {correction.nfe} evaluations · strength {correction.strength:g}"
    console.print(summary, style="dim", highlight=False)


def odds(log_odds: float) -> str:
    """As people say them: 12 : 1, > 1,000,000 : 1."""
    more = abs(log_odds) > LARGE_ODDS
    told = f"{'> ' if more else ''}{math.exp(LARGE_ODDS if more else abs(log_odds)):,.0f}"
    return f"{told} : 1" if log_odds > 0 else f"1 : {told}"


def show_score(score: Score, flags: ModelFlags) -> None:
    """The doubt map: colours on a terminal, a table of tab-separated lines in a pipe."""
    if flags.json:
        print(json.dumps(score.json(), ensure_ascii=False))
        return
    if not flags.live:
        print("position\ttoken\tp\tdoubt\tbest\tp_best")
        for one in score.tokens:
            print(f"{one.position}\t{one.text!r}\t{one.p:.6g}\t{one.doubt:.6g}\t{one.best!r}\t{one.p_best:.6g}")
        return
    from rich.console import Console
    from rich.text import Text

    out = Text()
    for one in score.tokens:
        out.append(one.text, _shade(one.doubt))
    console = Console()
    console.print(out)
    worst = sorted(score.tokens, key=lambda one: -one.doubt)[:5]
    for one in worst:
        console.print(
            f"{one.position:>5}  {one.text!r}  doubt {one.doubt:.2f}  x_θ {one.p:.2g}  better: {one.best!r} {one.p_best:.2g}",
            style="dim",
            markup=False,
            highlight=False,
        )


def _shade(doubt: float) -> str:
    """From nothing to red."""
    if doubt < 0.02:
        return ""
    return f"on rgb({int(70 + 140 * doubt)},{int(60 * (1 - doubt))},{int(40 * (1 - doubt))})"


def save_trace(path: Path | None, samples: Sequence[Sample | Correction], lm: LM, verb: str) -> None:
    """Write the trace, and say so."""
    if path is None:
        return
    from scdd.trace.output import write

    write(path, samples, lm.tokenizer, f"scdd {verb} · {lm.name}")
    typer.secho(f"wrote {path}", err=True, dim=True)
