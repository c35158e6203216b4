"""Controlled corruption and recovery (`tab:exact-recovery`): what is touched, what is restored, and what is damaged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scdd.core import UserError, Vocab
from scdd.core.rng import CounterRNG, derive_seed, integers, uniforms
from scdd.data.tokenizer import TextTokenizer
from scdd.evals import stats
from scdd.evals.likelihood import Watch
from scdd.evals.typos import KINDS, Piece
from scdd.evals.walk import Engine, walk
from scdd.lm.run import Settings
from scdd.ops.common import NO_FILTERS, Filters
from scdd.samplers.ancestral import Ancestral
from scdd.samplers.base import Grid, grid
from scdd.samplers.network import Evaluation, groups

COUNTS = (5, 10, 20, 50)


@dataclass(frozen=True)
class Repair:
    """The last `last` steps of a walk of `steps` steps: 1 of 128 is the paper's. Replacements come from a nucleus.

    With a threshold it is the one pass of `LM.correct(mode="pass")` instead: x_θ(z) < threshold · max x_θ → the argmax.

    `nucleus` cuts x_θ before the step, as sampling with top-p does, and as the paper, going by its touch rate of 1.000,
    seems to do: all that lies outside the nucleus is then touched, errors and right tokens that surprise the model alike.
    Else doubts come from the whole x_θ, as in `LM.correct`.
    """

    steps: int = 128
    last: int = 1
    top_p: float = 0.9
    final: str = "ancestral"
    threshold: float | None = None
    nucleus: bool = False

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0.0 < self.threshold < 1.0:
            raise UserError(f"threshold is {self.threshold}: choose one in (0, 1).")
        if not 1 <= self.last <= self.steps:
            raise UserError(f"last is {self.last}: take 1 to {self.steps} of the walk's {self.steps} steps.")

    @property
    def name(self) -> str:
        """For tables."""
        if self.threshold is None:
            return f"{self.last} of {self.steps} steps" + (", nucleus" if self.nucleus else "")
        return f"one pass, threshold {self.threshold:g}"

    @property
    def nfe(self) -> int:
        """Network evaluations."""
        return self.last if self.threshold is None else 1

    @property
    def times(self) -> Grid:
        """The end of the uniform grid."""
        return grid("uniform", self.steps)[-self.last - 1 :]

    def json(self) -> dict[str, Any]:
        """Plain data, for a cell's settings; `nucleus` only where it is chosen, since older cells do not know it."""
        return {name: value for name, value in asdict(self).items() if name != "nucleus" or value}

    def settings(self, seed: int, batch_size: int) -> Settings:
        """Replacements come from the nucleus, doubts from it or from the whole x_θ."""
        draws = Filters(top_p=self.top_p)
        return Settings(
            Ancestral(),
            self.times,
            draws if self.nucleus else NO_FILTERS,
            self.final,
            draws,
            seed=seed,
            batch_size=batch_size,
            stop=False,
        )


def way_of(settings: dict[str, Any]) -> str:
    """The name of the repair that a cell's settings hold."""
    return Repair(
        settings["steps"],
        settings["last"],
        threshold=settings.get("threshold"),
        nucleus=settings.get("nucleus", False),
    ).name


class Repaired(NamedTuple):
    """N rows before and after; `hit` where a token was corrupted."""

    clean: Tensor  # [N, L]
    corrupted: Tensor  # [N, L]
    repaired: Tensor  # [N, L]
    hit: Tensor  # [N, L]


def corrupt(x: Tensor, count: int, vocab: Vocab, source: CounterRNG, frozen: Tensor) -> tuple[Tensor, Tensor]:
    """(Rows with `count` positions replaced by a uniformly drawn other token, where); frozen positions stay."""
    if int((~frozen).sum(1).min()) < count:
        raise UserError(
            f"{count} tokens are to be corrupted, and a row has fewer: use longer rows or a smaller K."
        )
    order = torch.where(frozen, 2.0, uniforms(x.shape, source)).argsort(1).argsort(1)
    hit = order < count
    ordinal = integers(vocab.K - 1, x.shape, source)  # of the K − 1 tokens that are not x
    own = x - (x > vocab.mask_id).to(x.dtype)
    return torch.where(hit, vocab.token(ordinal + (ordinal >= own).to(x.dtype)), x), hit


def recover(
    engine: Engine,
    rows: Tensor,
    count: int,
    repair: Repair,
    *,
    seed: int = 0,
    first: int = 0,
    batch_size: int = 16,
    framed: bool = True,
    watch: Watch | None = None,
) -> Repaired:
    """Corrupt `count` tokens of each row (number first, first + 1, …) and let the reverse process mend them."""
    indices = list(range(first, first + len(rows)))
    frozen = torch.zeros_like(rows, dtype=torch.bool)
    if framed:
        frozen[:, 0] = frozen[:, -1] = True
    vocab = engine.denoiser.vocab
    source = CounterRNG(derive_seed(seed, f"recovery {count}"), indices, rows.device)
    noisy, hit = corrupt(rows, count, vocab, source, frozen)
    done = mend(engine, repair, noisy, frozen, indices, seed, batch_size, watch)
    return Repaired(rows.cpu(), noisy.cpu(), done, hit.cpu())


def mend(
    engine: Engine,
    repair: Repair,
    z: Tensor,
    frozen: Tensor,
    indices: Sequence[int],
    seed: int,
    batch_size: int = 1,
    watch: Watch | None = None,
) -> Tensor:
    """Rows z [N, L] after the repair, on the CPU."""
    if repair.threshold is None:
        settings = repair.settings(derive_seed(seed, "repair"), batch_size)
        return walk(engine, settings, z, frozen, indices, watch, looking=False).tokens
    parts = []
    for start in range(0, len(z), batch_size):
        cut = slice(start, start + batch_size)
        parts.append(_one_pass(engine, repair.threshold, z[cut], frozen[cut]))
        if watch is not None:
            watch(len(parts[-1]))
    return torch.cat(parts).cpu()


@torch.no_grad()
def _one_pass(engine: Engine, threshold: float, z: Tensor, frozen: Tensor) -> Tensor:
    """The argmax wherever the token is so unlikely beside it."""
    t = torch.zeros(len(z), dtype=torch.float64, device=z.device)
    parts = groups(len(z), z.shape[1], None, z.device, None)
    seen = Evaluation(engine.denoiser, parts, z, t, NO_FILTERS).top()
    doubtful = seen.log_p_z < seen.log_p[..., 0] + math.log(threshold)
    return torch.where(doubtful & ~frozen, seen.tokens[..., 0], z)


def scores(found: Repaired, framed: bool = True) -> dict[str, Any]:
    """Touch and recovery rates over corrupted tokens, damage over clean ones, each with its error over rows."""
    inside = slice(1, -1) if framed else slice(None)
    clean, before, after, hit = (part[:, inside] for part in found)
    wrong = hit.sum(1).tolist()
    right = (~hit).sum(1).tolist()
    counts = {
        "touch": (((after != before) & hit).sum(1).tolist(), wrong),
        "recovery": (((after == clean) & hit).sum(1).tolist(), wrong),
        "damage": (((after != clean) & ~hit).sum(1).tolist(), right),
    }
    return {name: stats.ratio(*pair)._asdict() for name, pair in counts.items()}


# -- typing errors --------------------------------------------------------------------------------------------------


def typed_scores(
    pieces: Sequence[Sequence[Piece]],
    tokens: Sequence[Sequence[int]],
    repaired: Sequence[Sequence[int]],
    tokenizer: TextTokenizer,
) -> dict[str, Any]:
    """Touch, recovery and damage by words: the tokens under a word before and after tell what became of it.

    A diffusion model keeps the number of tokens, so an error that changed it can be touched and made readable, but seldom
    be undone letter by letter; a repeated word counts as recovered if nothing but white space is left of it.
    """
    per_text: list[dict[str, list[int]]] = []
    kinds: dict[str, list[int]] = {kind: [0, 0] for kind in KINDS}
    for words, old, new in zip(pieces, tokens, repaired, strict=True):
        found = {"touch": [0, 0], "recovery": [0, 0], "damage": [0, 0]}
        for piece, before, after in zip(words, *_words(words, old, new, tokenizer), strict=True):
            if piece.error:
                restored = after.strip() == piece.meant.strip()
                _count(found["touch"], after != before)
                _count(found["recovery"], restored)
                _count(kinds[piece.error], restored)
            else:
                _count(found["damage"], after != before)
        per_text.append(found)
    result: dict[str, Any] = {
        name: stats.ratio([f[name][0] for f in per_text], [f[name][1] for f in per_text])._asdict()
        for name in ("touch", "recovery", "damage")
    }
    result["errors"] = sum(f["recovery"][1] for f in per_text) / max(len(per_text), 1)
    result["recovery_by_kind"] = {k: hits / total for k, (hits, total) in kinds.items() if total}
    return result


def _count(pair: list[int], hit: bool) -> None:
    pair[0] += hit
    pair[1] += 1


def _words(
    words: Sequence[Piece], old: Sequence[int], new: Sequence[int], tokenizer: TextTokenizer
) -> tuple[list[str], list[str]]:
    """What stands under each word before and after: the text of the tokens that reach into it."""
    before, after = ([tokenizer.token(i) for i in row] for row in (old, new))
    found: tuple[list[str], list[str]] = ([], [])
    ends = _ends(old, tokenizer)
    place, first = 0, 0
    for piece in words:
        stop = place + len(piece.typed)
        while first < len(ends) and ends[first] <= place:
            first += 1
        last = first
        while last < len(ends) and ends[last] < stop:
            last += 1
        found[0].append("".join(before[first : last + 1]))
        found[1].append("".join(after[first : last + 1]))
        place = stop
    return found


def _ends(tokens: Sequence[int], tokenizer: TextTokenizer) -> list[int]:
    """Where each token ends in the decoded text, in characters."""
    return [len(tokenizer.decode(tokens[: i + 1], skip_special=False)) for i in range(len(tokens))]
