"""`scdd demo`: a text that corrects itself, a damaged paragraph repaired, a gap filled, and a page that plays it all."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from scdd.cli import options as o
from scdd.cli.view import MASK, MASK_STYLE, STYLES, follow, on_terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from scdd.data.tokenizer import TextTokenizer
    from scdd.lm.model import LM
    from scdd.lm.results import Correction, Sample, Trajectory

PROMPT = "The old town"
PARAGRAPH = (
    "A glacier is a large body of ice that forms on land where more snow falls in winter than melts in summer. Over many "
    "years the snow is pressed together by its own weight and turns into ice. Under the force of gravity the ice begins "
    "to flow slowly down the valley. As it moves, it carries rocks and soil with it and cuts deep valleys into the "
    "mountains. When the climate becomes warmer, the glacier melts faster than new snow can fall, and its lower end moves "
    "back."
)
GAP = "The lighthouse stands on a small island at the mouth of the river. It was built [MASK:12] and is still in use today."
FILLS = 3
SHARE = 0.1  # of the paragraph's tokens that are replaced
REVISIONS, AROUND = 8, 5  # revisions listed, and tokens shown on either side of each
WIDTH = 100
LOST = "red"
GOOD = STYLES[1]


def demo(
    trace: Annotated[Path, typer.Option(help="Where the page goes that plays it all.")] = Path("demo.html"),
    steps: Annotated[int | None, typer.Option(help="Steps, each one network evaluation.")] = None,
    seed: o.Seed = 0,
    train: Annotated[
        bool, typer.Option("--train", help="First train a nano model, and show that one instead.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="--train: for how long.")] = 60.0,
    run: Annotated[Path | None, typer.Option(help="--train in this run folder, keep it, and go on with it.")] = None,
    device: o.Device = None,
    plain: o.Plain = False,
) -> None:
    """Write a text that corrects itself, repair a damaged paragraph, fill a gap, and leave a page that plays it.

    With the bundled model, and with a fixed seed, so that it shows the same each time.
    """
    from scdd.trace.output import check_path

    check_path(trace)
    if train or run is not None:
        with tempfile.TemporaryDirectory(prefix="scdd-demo-") as scratch:
            _show(_trained(run or Path(scratch), seconds, device), trace, steps, seed, plain)
    else:
        _show(o.open_model(None, device=device), trace, steps, seed, plain)


def _trained(folder: Path, seconds: float, device: str | None) -> LM:
    """The nano recipe, run by the trainer that `scdd train` uses."""
    from scdd.lm.training import train

    typer.echo(f"Training a nano model on the bundled text for about {seconds:.0f} seconds.\n")
    train("nano", folder, overrides=[f"training.max_seconds={seconds}"], device=device)
    typer.echo()
    return o.open_model(str(folder), device=device)


def _show(lm: LM, trace: Path, steps: int | None, seed: int, plain: bool) -> None:
    from rich.console import Console

    from scdd.trace.output import write

    live = on_terminal(False, plain)
    console = Console(color_system="auto" if live else None, highlight=False, markup=False, emoji=False)
    console.width = min(console.width, WIDTH)
    begun = time.perf_counter()
    text = _write(console, lm, steps, seed, live)
    walk = _repair(console, lm, seed)
    fills = _fill(console, lm, steps, seed, live)
    names = ["a text", "a repair", *(f"a gap, fill {i + 1}" for i in range(len(fills)))]
    write(trace, [text, walk, *fills], lm.tokenizer, "scdd demo", names)
    taken = time.perf_counter() - begun
    _say(console, f"{taken:.0f} seconds on {lm.device.type}. Open {trace} in a browser and watch it step by step.")


# -- a text that corrects itself ---------------------------------------------------------------------------------------


class Revision(NamedTuple):
    """A visible token that another one replaced."""

    frame: int
    position: int
    before: int
    after: int


def _write(console: Console, lm: LM, steps: int | None, seed: int, live: bool) -> Sample:
    """The text with its revised tokens marked, some revisions, and their rate beside the process's own."""
    plan = lm.plan(steps=steps, seed=seed, record=True, stop=False)
    run = lm.start(1, prompt=PROMPT, plan=plan)
    with _section(
        console, 1, f"A text from {run.starts[0].count(lm.tokenizer.mask_id)} masks and the words {PROMPT!r}"
    ):
        sample = follow(run, lm, live)[0]
        assert sample.trajectory is not None
        made = list(revisions(sample.trajectory))
        revised = {one.position for one in made}
        console.print(_pieces(lm, sample.tokens, dict.fromkeys(revised, STYLES[2])))
        apart = -(-len(made) // REVISIONS) or 1
        told = f"{len(revised)} of its tokens were revised after they had been written, {len(made)} times in all."
        _say(console, f"\n{told} One revision in {apart}, as the text stood then:\n")
        for one in made[::apart]:
            console.print(_in_place(lm, sample.trajectory, one), no_wrap=True, overflow="ellipsis")
        _say(console, "\n" + _rate(lm, sample))
    return sample


def revisions(way: Trajectory) -> Iterator[Revision]:
    """Every correction of a walk, in order."""
    before = way.start
    for frame, now in enumerate(way.tokens):
        for position in (way.moved[frame] == 2).nonzero()[:, 0].tolist():
            yield Revision(frame, position, int(before[position]), int(now[position]))
        before = now


def _in_place(lm: LM, way: Trajectory, one: Revision) -> Text:
    """One line: the step, and the revision within the text as it stood then."""
    from rich.text import Text

    now = way.tokens[one.frame].tolist()
    around = [now[max(0, one.position - AROUND) : one.position], now[one.position + 1 :][:AROUND]]
    before, after = (_pieces(lm, tokens, {}) for tokens in around)
    old, new = (_words(lm, [token]) for token in (one.before, one.after))
    out = Text(f"  step {way.moments[one.frame].step:>3}  …", "dim").append_text(before)
    out.append(" [" if new.startswith(" ") else "[", "dim").append(old.strip(" "), LOST).append(" → ", "dim")
    out.append(new.strip(" "), STYLES[2]).append("]", "dim").append_text(after).append("…", "dim")
    out.plain = out.plain.replace("\n", "↵")  # one line each; as long as it was, so that styles stay in place
    return out


def _rate(lm: LM, sample: Sample) -> str:
    """Measured rate of corrections beside those that the process alone asks for."""
    from scdd.processes.base import Process
    from scdd.samplers.base import grid
    from scdd.samplers.intrinsic import intrinsic

    assert isinstance(lm.process, Process)
    own = intrinsic(lm.process, grid(lm.sampling.grid.kind, sample.steps)).corrections
    measured = sample.corrections / max(1, sample.unmasked)
    return (
        f"That is {measured:.2f} corrections a token in {sample.steps} steps. A perfect model would make {own:.2f}: the "
        "process draws noise and takes it back."
    )


# -- a damaged paragraph ------------------------------------------------------------------------------------------------


def _repair(console: Console, lm: LM, seed: int) -> Correction:
    """Before, after, and the fate of every token that was damaged or changed; hands over the walk to be played."""
    clean = lm.tokenizer.encode(PARAGRAPH)
    broken = damaged(lm.tokenizer, clean, SHARE, seed)
    hit = [i for i, (a, b) in enumerate(zip(clean, broken, strict=True)) if a != b]
    text = lm.engine.text(broken)
    with _section(console, 2, f"A paragraph of {len(clean)} tokens, {len(hit)} of them replaced by random ones"):
        console.print(_pieces(lm, broken, dict.fromkeys(hit, LOST)))
        repaired = lm.correct(text, mode="pass", blocks=True)
        _say(console, "\nRepaired in one evaluation of the network (scdd correct --mode pass):\n")
        changed = {change.position for change in repaired.changes}
        styles = {i: GOOD if repaired.tokens[i] == clean[i] else LOST for i in sorted({*hit, *changed})}
        console.print(_pieces(lm, repaired.tokens, styles))
        console.print()
        for i in styles:
            words = (repr(lm.tokenizer.token(tokens[i])) for tokens in (clean, broken, repaired.tokens))
            console.print(_fate(*words), style="dim")
        walk = lm.correct(text, seed=seed, blocks=True, record=True)
        reverse = f"The reverse process (scdd correct --mode reverse, {walk.steps} steps; in the page)"
        _say(console, f"\n{_tally(clean, hit, repaired.tokens)}.\n{reverse}: {_tally(clean, hit, walk.tokens)}.")
    return walk


def damaged(tokenizer: TextTokenizer, tokens: Sequence[int], share: float, seed: int) -> list[int]:
    """`tokens` with about `share` of them replaced by random ones.

    A replacement that the tokenizer would read as other tokens is drawn again, so that what was damaged and what came
    back can be counted token by token.
    """
    from scdd.core.rng import CounterRNG, integers, uniforms

    source, broken, tries = CounterRNG(seed, [0]), list(tokens), 100
    for i in (uniforms((1, len(broken)), source)[0] < share).nonzero()[:, 0].tolist():
        for new in tokenizer.vocab.token(integers(tokenizer.vocab.K, (1, tries), source))[0].tolist():
            wanted = [*broken[:i], new, *broken[i + 1 :]]
            if new != broken[i] and tokenizer.encode(tokenizer.decode(wanted, skip_special=False)) == wanted:
                broken = wanted
                break
    return broken


def _fate(was: str, given: str, now: str) -> str:
    verdict = "restored" if now == was else "harmed" if given == was else "missed" if now == given else "wrong"
    return f"  {was:>14} → {given:<14} → {now:<14}  {verdict}"


def _tally(clean: Sequence[int], hit: Sequence[int], now: Sequence[int]) -> str:
    back = sum(now[i] == clean[i] for i in hit)
    harmed = sum(a != b for i, (a, b) in enumerate(zip(clean, now, strict=True)) if i not in set(hit))
    return f"{back} of {len(hit)} damaged tokens came back exactly, {harmed} of {len(clean) - len(hit)} clean ones were harmed"


# -- a gap --------------------------------------------------------------------------------------------------------------


def _fill(console: Console, lm: LM, steps: int | None, seed: int, live: bool) -> tuple[Sample, ...]:
    """The sentence with its gap, and a few ways to fill it."""
    plan = lm.plan(steps=steps, seed=seed, record=True)
    run = lm.start_infill(GAP, FILLS, blocks=True, plan=plan)
    gap = [i for i, token in enumerate(run.starts[0]) if token == lm.tokenizer.mask_id]
    with _section(console, 3, f"A gap of {len(gap)} tokens, filled {FILLS} times"):
        _say(console, f"{GAP}\n")
        samples = follow(run, lm, live)
        for sample in samples:
            console.print(_pieces(lm, sample.tokens, dict.fromkeys(gap, GOOD)))
    return samples


# -- printing -----------------------------------------------------------------------------------------------------------


@contextmanager
def _section(console: Console, number: int, title: str) -> Iterator[None]:
    console.print(f"{number}. {title}\n", style="bold")
    yield
    console.print()


def _say(console: Console, text: str) -> None:
    console.print(text, style="dim")


def _pieces(lm: LM, tokens: Sequence[int], styles: dict[int, str]) -> Text:
    """Tokens as one text, some of them coloured; a run of one colour is decoded whole, letters of several tokens too."""
    from rich.text import Text

    def look(i: int) -> tuple[bool, str]:
        masked = tokens[i] == lm.tokenizer.mask_id
        return masked, styles.get(i, MASK_STYLE if masked else "")

    out = Text()
    for (masked, style), places in groupby(range(len(tokens)), look):
        run = [tokens[i] for i in places]
        out.append(MASK * len(run) if masked else _words(lm, run), style)
    return out


def _words(lm: LM, tokens: Sequence[int]) -> str:
    """Tokens as a terminal may show them: half-drawn texts hold control characters too."""
    text = lm.tokenizer.decode(tokens, skip_special=False)
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)
