"""What a model thinks of a given text, token by token, and the repairs that follow from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from scdd.core import CLEAN
from scdd.core.errors import UserError
from scdd.lm.options import RepairOptions
from scdd.lm.results import Change, Correction, Sample, TokenScore
from scdd.lm.rows import Row
from scdd.lm.run import Engine, Window, windows
from scdd.ops.head import Top
from scdd.processes.base import Process
from scdd.samplers.base import Model
from scdd.samplers.prediction import Prediction, row_groups

if TYPE_CHECKING:
    from scdd.lm.edits.channel import Channel

TOGETHER = 16  # windows that are read at a time

Told = Callable[[int, int], None]
"""Hears what has been done, and of how much."""


@contextmanager
def bar(what: str, live: bool) -> Iterator[Told]:
    """A bar on standard error while it lasts, if `live`; a second text begins it again."""
    if not live:
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def likeliest(model: Model, z: Tensor, t: float, lengths: Sequence[int] | None = None) -> Top:
    """The likeliest token at every position of z [B, L], taken as z_t, and the probability of the one standing there.

    `lengths` says how many columns of each row are real, if not all are.
    """
    return Prediction(model.denoiser, row_groups(z, lengths), z, t, packing=model.packing).top()


def one_pass(best: Top, z: Tensor, frozen: Tensor, threshold: float) -> Tensor:
    """z with the likeliest token wherever x_θ(z) < threshold·max x_θ; frozen positions and all others stay.

    That is the mode of p_θ(z_0 | z_t) for the noise level at which (1 − ρ_t)/K over ρ_t is the threshold. Without a
    threshold (plain argmax) a good part of the clean tokens would be damaged.
    """
    unlikely = best.log_p_z < best.log_p[..., 0] + math.log(threshold)
    return torch.where(unlikely & ~frozen, best.tokens[..., 0], z)


class Scored(NamedTuple):
    """A text's tokens as the model sees them, after one evaluation of each window."""

    tokens: tuple[TokenScore, ...]
    one_pass: tuple[int, ...]
    """The text's tokens after the one-pass repair."""
    nfe: int


@torch.no_grad()
def score_tokens(engine: Engine, rows: Sequence[Row], options: RepairOptions) -> list[Scored]:
    """Every token of each text taken as z_t at t = strength, and what the one-pass repair would make of it."""
    parts = [(i, window) for i, row in enumerate(rows) for window in windows(len(row), engine.room)]
    # Texts of like lengths together, for little padding; a text's windows stay in their order.
    parts.sort(key=lambda part: len(rows[part[0]]))
    scores: list[list[TokenScore]] = [[] for _ in rows]
    repaired: list[list[int]] = [[] for _ in rows]
    seen = [0] * len(rows)
    for first in range(0, len(parts), TOGETHER):
        batch = parts[first : first + TOGETHER]
        columns = _columns(engine, [(rows[i], window) for i, window in batch], options)
        for r, (i, window) in enumerate(batch):
            fresh = slice(window.fresh - window.start + 1, window.stop - window.start + 1)
            values = zip(*(column[r, fresh].tolist() for column in columns), strict=True)
            for place, (token, p, top, p_best, wrong, new) in enumerate(values, start=window.fresh):
                names = engine.tokenizer.token(token), engine.tokenizer.token(top)
                scores[i].append(TokenScore(place, token, names[0], p, names[1], p_best, wrong))
                repaired[i].append(new)
            seen[i] += 1
    return [Scored(tuple(s), tuple(r), n) for s, r, n in zip(scores, repaired, seen, strict=True)]


def _columns(engine: Engine, batch: Sequence[tuple[Row, Window]], options: RepairOptions) -> tuple[Tensor, ...]:
    """[B, L] each: tokens, x_θ of them, the likeliest ones, x_θ of those, doubts, the tokens after the one-pass repair."""
    framed = [engine.framed(row.tokens[window.start : window.stop]) for row, window in batch]
    longest = max(map(len, framed))
    z = torch.tensor(
        [[*row, *[engine.tokenizer.mask_id] * (longest - len(row))] for row in framed], device=engine.device
    )
    frozen = torch.ones_like(z, dtype=torch.bool)
    for r, (row, window) in enumerate(batch):
        given = torch.tensor(row.frozen[window.start : window.stop], device=z.device)
        frozen[r, 1 : 1 + len(given)] = given
    best = likeliest(engine.model, z, options.strength, [len(row) for row in framed])
    mended = one_pass(best, z, frozen, options.threshold)
    move = diffusion_process(engine).transition(z, best.log_p_z.exp(), CLEAN, options.strength)
    p_z = best.log_p_z.double().exp()
    # where the schedule leaves a token no probability at all, nothing speaks for it
    doubt = (1.0 - move.keep - move.model * p_z).nan_to_num(1.0).clamp(0.0, 1.0)
    return z, p_z, best.tokens[..., 0], best.log_p[..., 0].double().exp(), doubt, mended


def diffusion_process(engine: Engine) -> Process:
    """The process of a model that can look at both sides of a token."""
    if not isinstance(engine.model.process, Process):
        raise UserError(
            "An autoregressive model sees no token's right side: score and repair texts with a diffusion model."
        )
    return engine.model.process


@dataclass(frozen=True)
class Repair:
    """A text to repair, and how."""

    engine: Engine
    text: str
    row: Row
    options: RepairOptions
    seed: int = 0
    frozen: Sequence[tuple[int, int]] = ()
    """Character ranges that stay."""
    channel: Channel | None = None
    """Mode edit: what decides; None is the package's."""

    def at_once(self, told: Told | None = None) -> Correction:
        """The modes that have no steps to be watched; `told` hears how many words of how many have been looked at."""
        return self.by_edits(told) if self.options.mode == "edit" else self.in_one_pass()

    def by_edits(self, told: Told | None = None) -> Correction:
        """Words give way to others, to fewer or to more, wherever the odds for it are clear."""
        from scdd.lm.edits.channel import usual_channel
        from scdd.lm.edits.lexicon import english
        from scdd.lm.edits.search import Editor

        channel = self.channel or usual_channel()
        editor = Editor(self.engine, english(), channel, self.options.strength, self.seed)
        made = editor.edit(self.text, self.frozen, told)
        [scored] = score_tokens(self.engine, [self.row], self.options)
        how = {"steps": made.rounds, "nfe": made.nfe + scored.nfe, "sampler": "noisy channel", "final": "edit"}
        tokens = self.engine.tokenizer.encode(made.text) if made.edits else self.row.tokens
        same = self._correction(scored, self.row.tokens, [], how)
        return replace(same, text=made.text, tokens=tuple(tokens), corrections=len(made.edits), edits=made.edits)

    def in_one_pass(self) -> Correction:
        """One evaluation of each window."""
        [scored] = score_tokens(self.engine, [self.row], self.options)
        p_after = [score.p_best for score in scored.tokens]
        how = {"steps": 1, "nfe": scored.nfe, "sampler": "threshold rule", "final": "pass"}
        return self._correction(scored, scored.one_pass, p_after, how)

    def of_walk(self, sample: Sample, record: bool) -> Correction:
        """From a recorded walk of the reverse process."""
        assert sample.trajectory is not None
        [scored] = score_tokens(self.engine, [self.row], self.options)
        p_after = sample.trajectory.last_log_p.double().exp().nan_to_num(0.0).tolist()
        how = {"steps": sample.steps, "nfe": scored.nfe + sample.nfe, "sampler": sample.sampler, "final": sample.final}
        correction = self._correction(scored, sample.tokens, p_after, how)
        return replace(correction, trajectory=sample.trajectory) if record else correction

    def _correction(
        self, scored: Scored, tokens: Sequence[int], p_after: Sequence[float], how: dict[str, Any]
    ) -> Correction:
        changes = tuple(
            Change(i, old.text, self.engine.tokenizer.token(new), old.p, p_after[i], old.doubt)
            for i, (old, new) in enumerate(zip(scored.tokens, tokens, strict=True))
            if old.token != new
        )
        return Correction(
            text=self.engine.text(tokens) if changes else self.text,
            before=self.text,
            mode=self.options.mode,
            strength=self.options.strength,
            seed=self.seed,
            process=self.engine.process_name,
            tokens=tuple(tokens),
            corrections=len(changes),
            changes=changes,
            edits=(),
            doubts=scored.tokens,
            **how,
        )
