"""The negative ELBO of a text, whole: every step of the grid or all of (0, 1), reconstruction included, with its errors.

Two errors, two questions. `error` is the Monte-Carlo error of this very text's NELBO; `spread` is the error of the mean
over a corpus of which these sequences are a sample (it contains the first). Every sequence is looked at `looks` times:
in two independent halves, each spread evenly over the times, so the difference of the halves tells the Monte-Carlo
error without bias however few looks there are.

`convention="authors"` is what the code behind the paper reports as Val PPL, so that its numbers can be compared with: the
cross-entropies of `eq:loss_zt` without the constants, but with γ inside the logarithms; i = 1 + ⌊T·(0.001 + 0.999·u)⌋ with
weight T, so that at T = 1000 the last step, i = 1, is never drawn; t = i/T, but at most 0.9999, and s = t − 1/T. MDLM's masks
are drawn at 0.999·t there, and its loss has no γ. It is no bound: a perfect denoiser has 0.1796 nats a token (p_u 0.2,
K = 50,257, T = 1000) or 0.0852 (p_u 0.1), not 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from scdd.core import UserError
from scdd.core.denoiser import Denoiser
from scdd.core.rng import CounterRNG, derive_seed, uniforms
from scdd.evals.measure import stats
from scdd.evals.measure.model import EvalModel
from scdd.evals.measure.progress import Watch, unwatched
from scdd.evals.measure.specs import check_convention
from scdd.evals.measure.store import MeasureContext, Measurement, fingerprint, shared
from scdd.evals.measure.texts import Rows
from scdd.objectives.ar import ArObjective, cross_entropy_coefficients
from scdd.objectives.base import BatchSlice
from scdd.objectives.times import Times, TimeSampler, nelbo_densities
from scdd.ops.elbo import elbo
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.base import Process
from scdd.processes.gidd import GIDD
from scdd.samplers.options import Convention

RENAMED: dict[str, Convention] = {"exact": "ours", "reference": "authors"}
"""What measurements called the conventions before sampling had them too. "reference" treated t = 1 in a way of its own."""
STORED = {"ours": "exact", "authors": "authors"}  # measurements are known by these names, and theirs must stay
SMALLEST, LATEST = 1e-3, 1 - 1e-4  # of the authors' times: what they draw is at least this, and moved down to that
MASKS_AT = 0.999  # of t, where the authors mask MDLM's tokens
PAPERS_STEPS = 1000
REPLICATES = 2
# Read together where nobody chose, with their padding: enough work for a GPU; on a CPU what its caches and freed memory hold.
POSITIONS, POSITIONS_CPU = 1 << 15, 1 << 11


@dataclass(frozen=True)
class NelboEstimator:
    """How a NELBO is estimated. `steps`: T of the grid, None for continuous time (for the authors': their 1000)."""

    steps: int | None = None
    looks: int = 8
    convention: Convention = "ours"
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "convention", RENAMED.get(self.convention, self.convention))
        check_convention(self.convention)
        if self.convention == "authors" and self.steps is None:
            object.__setattr__(self, "steps", PAPERS_STEPS)
        if self.looks < REPLICATES or self.looks % REPLICATES:
            raise UserError(f"looks is {self.looks}: give an even number of at least 2, for the error bars.", "looks")
        if self.steps is not None and self.steps < 2:
            raise UserError(f"The grid has {self.steps} steps: give at least 2, or leave it out for continuous time.")

    def settled(self) -> dict[str, Any]:
        """Plain data, for a measurement's settings."""
        return {**asdict(self), "convention": STORED[self.convention]}


EXACT = NelboEstimator()


@dataclass(frozen=True)
class RowNats:
    """One sequence: its estimates in nats, one a replicate, and how many tokens they are over."""

    nats: tuple[float, ...]
    tokens: int

    @property
    def mean(self) -> float:
        """The estimate."""
        return sum(self.nats) / len(self.nats)

    @property
    def variance(self) -> float:
        """Of the estimate; 0 for a single number, which is exact."""
        count, mean = len(self.nats), self.mean
        return sum((value - mean) ** 2 for value in self.nats) / max(count - 1, 1) / count


def combined(rows: Sequence[RowNats], bytes: int | None = None) -> dict[str, Any]:
    """All sequences together, whatever rank they come from: nats per token, perplexity, bits per byte of text.

    `error` is Monte Carlo's, `spread` that of the sequences as a sample.
    """
    if not rows:
        raise UserError("There is no text to take the likelihood of: give one with at least a token.")
    tokens = sum(row.tokens for row in rows)
    nats, spread, sequences = stats.ratio([row.mean for row in rows], [row.tokens for row in rows])
    error, ppl = math.sqrt(sum(row.variance for row in rows)) / tokens, stats.exp(nats)
    return {
        **{"nats": nats, "error": error, "spread": spread},
        **{"sequences": sequences, "tokens": tokens, "bytes": bytes},
        **{"ppl": ppl, "ppl_error": ppl * error, "ppl_spread": ppl * spread},
        "bits_per_byte": None if not bytes else nats * tokens / bytes / math.log(2),
    }


@torch.no_grad()
def likelihood(
    denoiser: Denoiser,
    process: Process | Autoregressive,
    rows: Sequence[Sequence[int]],
    estimator: NelboEstimator = EXACT,
    indices: Sequence[int] | None = None,
    batch_size: int | None = None,
    watch: Watch = unwatched,
) -> list[RowNats]:
    """The NELBO of sequences number 0, 1, … or `indices` (the number decides their random times and noise).

    Every token counts, [BOS] and [EOS] of a packed block included, as in training. Of an autoregressive model
    the number is exact and a sequence's first token is given.
    """
    every = range(len(rows)) if indices is None else indices
    device = denoiser.head.weight.device
    estimates: list[RowNats] = []
    for part in batches([len(row) for row in rows], device, batch_size):
        batch, numbers = rows[part], list(every[part])
        x, documents = padded(batch, device)
        if isinstance(process, Autoregressive):
            whole = BatchSlice(0, 0, 0, len(batch), len(batch))
            nats, given = ArObjective(process).evaluate(denoiser, x, documents, whole).nats[:, None], 1
        else:
            nats, given = _estimates(denoiser, process, x, documents, numbers, estimator), 0
        estimates += [
            RowNats(tuple(values), len(row) - given) for values, row in zip(nats.tolist(), batch, strict=True)
        ]
        watch(len(batch))
    return estimates


@torch.no_grad()
def next_token_nats(denoiser: Denoiser, x: Tensor) -> Tensor:
    """−log p(x_{i+1} | x_{≤ i}) of a causal network, float64 [B, L − 1] for tokens x [B, L].

    A causal network does not look at padding on the right, so it needs no mask.
    """
    inputs, targets = x[:, :-1], x[:, 1:]
    hidden = denoiser.hidden(inputs, None, None).flatten(0, 1)
    rows = cross_entropy_coefficients(torch.ones(targets.shape, dtype=torch.float64, device=x.device))
    unseen = torch.full_like(targets, denoiser.head.vocab.mask_id)  # the next token is not an input
    _, losses = elbo(hidden, denoiser.head, targets.flatten(), unseen.flatten(), rows.flatten(targets.shape))
    return losses.view(targets.shape).double()


def measure_likelihood(
    context: MeasureContext, model: EvalModel, rows: Rows, estimator: NelboEstimator = EXACT
) -> Measurement:
    """The likelihood of framed rows (`tab:valppl`)."""

    def nats(own: Sequence[list[int]], mine: range) -> list[RowNats]:
        network, process = model.lm.network, model.lm.process
        return likelihood(network, process, own, estimator, mine, context.batch_size, context.watch)

    def run() -> dict[str, Any]:
        return combined(shared(rows.rows, nats, context.world), rows.bytes)

    # An autoregressive model's number is exact: it has no looks to set.
    settings = {"text": fingerprint(rows.rows), **({} if model.engine.autoregressive else estimator.settled())}
    return context.store.measurement("likelihood", model, settings, run, rows.name)


def batches(lengths: Sequence[int], device: torch.device, batch_size: int | None = None) -> Iterator[slice]:
    """Which rows are read together: `batch_size` at a time, by default as many as have the `POSITIONS` that suit the device.

    Padding counts as well, so rows sorted by their lengths come in the fewest batches.
    """
    positions = POSITIONS if device.type == "cuda" else POSITIONS_CPU
    start, longest = 0, 0
    for i, length in enumerate(lengths):
        longest, many = max(longest, length), i - start + 1
        full = many > batch_size if batch_size else many * longest > positions
        if full and i > start:
            yield slice(start, i)
            start, longest = i, length
    if start < len(lengths):
        yield slice(start, len(lengths))


def padded(rows: Sequence[Sequence[int]], device: torch.device | str) -> tuple[Tensor, Tensor | None]:
    """Tokens [B, L], and documents [B, L] with −1 at padding, or None where nothing is padded."""
    lengths = [len(row) for row in rows]
    if min(lengths) < 1:
        raise UserError("A sequence has no token: leave empty texts out.")
    longest = max(lengths)
    x = torch.tensor([[*row, *[row[0]] * (longest - len(row))] for row in rows], device=device)
    if min(lengths) == longest:
        return x, None
    real = torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]
    return x, torch.where(real, 0, -1)


def _estimates(
    denoiser: Denoiser,
    process: Process,
    x: Tensor,
    documents: Tensor | None,
    indices: Sequence[int],
    estimator: NelboEstimator,
) -> Tensor:
    """[B, REPLICATES]: unbiased estimates of each row's NELBO."""
    total = torch.zeros((len(x), REPLICATES), dtype=torch.float64, device=x.device)
    each, seed = estimator.looks // REPLICATES, derive_seed(estimator.seed, "corrupt")
    for look, (t, s, weight, _) in enumerate(_times(process, indices, estimator, x.device)):
        samples = torch.tensor(indices, device=x.device) * estimator.looks + look
        z_t = process.corrupt(x, _noised_at(process, t, estimator), CounterRNG(seed, samples, x.device))
        hidden = denoiser.hidden(z_t, t, documents).flatten(0, 1)
        coefficients = process.elbo_coefficients(x, z_t, t, s).flatten(x.shape)
        noise = process.noise_scores(x.device)
        _, flat = elbo(hidden, denoiser.head, x.flatten(), z_t.flatten(), coefficients, noise=noise)
        losses = flat.view(x.shape).double()
        if estimator.convention == "authors":
            assert s is not None
            losses = losses - dropped(process, x, z_t, s, t)
        if documents is not None:
            losses = losses.where(documents >= 0, 0.0)
        total[:, look // each] += weight * losses.sum(1) / each
    return total


def _times(
    process: Process, indices: Sequence[int], estimator: NelboEstimator, device: torch.device
) -> Iterator[Times]:
    """Times [B] of each look. A replicate's looks share one offset a row, and so divide [0, 1) evenly."""
    source = CounterRNG(derive_seed(estimator.seed, "times"), indices, device)
    each = estimator.looks // REPLICATES
    if estimator.convention == "authors":
        assert estimator.steps is not None
        for offset in uniforms((len(indices), REPLICATES), source).unbind(1):
            for stratum in range(each):
                yield authors_times((offset + stratum) / each, estimator.steps)
        return
    samplers = [TimeSampler(density, estimator.steps) for density in nelbo_densities(process).mixture]
    counts = [each - max(1, each // 4), max(1, each // 4)]
    offsets = uniforms((len(indices), REPLICATES, 2), source)
    for replicate in range(REPLICATES):
        for k, sampler in enumerate(samplers):
            for stratum in range(counts[k]):
                at = sampler.at((offsets[:, replicate, k] + stratum) / counts[k])
                yield Times(at.t, at.s, 1.0 / _chance(samplers, counts, at))


def authors_times(u: Tensor, T: int) -> Times:
    """The authors' step for u uniform in [0, 1): (t, s, weight). The weight T is as if every step were as likely."""
    i = 1 + (T * (SMALLEST + (1 - SMALLEST) * u)).floor().clamp(max=T - 1)
    t = (i / T).clamp(max=LATEST)
    return Times(t, t - 1 / T, torch.full_like(u, float(T)))


def _noised_at(process: Process, t: Tensor, estimator: NelboEstimator) -> Tensor:
    """Where z_t is drawn: at t, but for the authors' MDLM."""
    return MASKS_AT * t if estimator.convention == "authors" and not process.has_uniform_noise else t


def _chance(samplers: Sequence[TimeSampler], counts: Sequence[int], at: Times) -> Tensor:
    """The mixture's probability of a step of the grid, or its density at a time."""
    whole = torch.zeros_like(at.t)
    for sampler, count in zip(samplers, counts, strict=True):
        law = sampler.density
        one = 1.0 / law.importance_weight(at.t) if at.s is None else law.cumulative(at.t) - law.cumulative(at.s)
        whole = whole + count / sum(counts) * one
    return whole


def dropped(process: Process, x: Tensor, z_t: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """What the authors' loss leaves out of each KL: E[f_s(z_s) | z_t, x] − f_t(z_t), with f 0 at the mask and else
    f_t(z) = log(γ_t·(ρ_t·1[z = x] + (1 − ρ_t)/K)), that is, log q_t(z | x).

    `eq:loss_zt` prints ρ alone; their code has γ·ρ and γ·(1 − ρ) inside its logarithms, so that γ stays, but not in MDLM's.
    The true posterior of z_s is at x, at the mask, or somewhere else, where f_s is the same.
    """
    if isinstance(process, GIDD):
        raise UserError("The authors' convention is SCDD's and MDLM's: use convention ours for GIDD.")
    if process.noise is not None:
        raise UserError("The authors' convention is that of uniform noise: use convention ours for this process.")
    K, m = process.vocab.K, process.vocab.mask_id
    same = (z_t == x).to(torch.float64)
    move = process.transition(z_t, same, s, t)
    right = move.keep * same + move.model + move.uniform / K
    masked = move.mask + move.keep * (z_t == m)
    at_s, at_t = process.levels(s).like(z_t), process.levels(t).like(z_t)
    gamma_s, gamma_t = (at_s.gamma, at_t.gamma) if process.has_uniform_noise else (1.0, 1.0)
    other = (1.0 - right - masked).clamp(min=0.0)
    log_right = (gamma_s * (at_s.rho + at_s.one_minus_rho / K)).log()
    log_other = (gamma_s * at_s.one_minus_rho / K).log()
    before = right * log_right + torch.where(other > 1e-15, other * log_other, 0.0)
    now = torch.where(z_t == m, 0.0, (gamma_t * (at_t.rho * same + at_t.one_minus_rho / K)).log())
    return before - now
