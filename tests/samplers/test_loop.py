"""The loop: what it promises of final steps, evaluations, frozen tokens, batches, early stops and frames."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scdd.core import CLEAN, UserError, Vocab
from scdd.core.rng import CounterRNG
from scdd.models.dit import DiT
from scdd.models.heads import QualityHead
from scdd.models.options import DiTConfig
from scdd.ops.bookkeeping.reference import REMASKED
from scdd.ops.common import Filters
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.base import Process
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.samplers.ancestral import Ancestral
from scdd.samplers.ar import Ar
from scdd.samplers.base import Model, Sampler, grid
from scdd.samplers.gidd_correct import GiddCorrect
from scdd.samplers.informed import Informed
from scdd.samplers.intrinsic import intrinsic
from scdd.samplers.loop import Frame
from scdd.samplers.options import Final
from scdd.samplers.p2 import P2
from scdd.samplers.prism import Prism
from scdd.samplers.remdm import Remdm
from scdd.samplers.step import KINDS, TokenRows
from scdd.samplers.threshold import Threshold
from scdd.schedules.curves import Polynomial
from scdd.schedules.decoupled import Decoupled
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked

from ..laws import Homemade, moderate
from .cases import every_sampler
from .tables import Table, Truth, assert_frequencies, table
from .tables import walk as frames_of

VOCAB = Vocab(7, 3)
MASK = VOCAB.mask_id
NOISY = SCDD(VOCAB, Peaked(p_u=0.4))
MASKED = MDLM(VOCAB, Masked())
AR = Autoregressive(VOCAB)
FINALS = get_args(Final)
QUALITY = torch.tensor([0.1, 0.5, -0.2, 0.0, 0.9, -0.7, 0.3])
CASES = every_sampler(NOISY, GIDD(VOCAB, Peaked(p_u=0.4)), MASKED)


def quality(hidden: Tensor) -> Tensor:
    return (hidden * QUALITY[: hidden.shape[-1]]).sum(-1)


def walk(
    process: Process | Autoregressive,
    sampler: Sampler,
    z: Tensor,
    steps: int = 12,
    denoiser: object | None = None,
    samples: range | list[int] | None = None,
    seed: int = 0,
    **options: Any,
) -> list[Frame]:
    network = table(VOCAB) if denoiser is None else denoiser
    model = Model(network, process, options.pop("quality", quality), options.pop("eos_id", None))
    rows = TokenRows(z, options.pop("frozen", None), options.pop("lengths", None))
    times = options.pop("times", None) or grid("uniform", steps)
    rng = CounterRNG(seed, samples if samples is not None else range(z.shape[0]))
    return list(frames_of(model, sampler, times, rows, rng, **options))


def masks(rows: int = 4, columns: int = 10) -> Tensor:
    return torch.full((rows, columns), MASK)


@pytest.mark.parametrize("final", FINALS)
@pytest.mark.parametrize("case", CASES)
def test_final_step_and_evaluations(case: str, final: str) -> None:
    """N steps are N evaluations, counted by the network itself; only `none` may leave masks, and it takes N − 1."""
    process, sampler = CASES[case]
    network = table(VOCAB)
    frames = walk(process, sampler, masks(), 12, network, final=final, rows_per_forward=4)
    last = frames[-1]
    assert network.calls == len(frames) == int(last.nfe.max())
    if final == "none":
        assert len(frames) <= 11
    else:
        assert not bool((last.tokens == MASK).any())
        extra = int(last.nfe.max()) - 12
        assert extra <= sampler.extra_steps
        assert extra >= 0 or sampler.finishes
        if not sampler.finishes:
            assert extra == 0


def test_none_leaves_masks() -> None:
    assert bool((walk(MASKED, Ancestral(), masks(50), 2, final="none")[-1].tokens == MASK).any())
    only = walk(MASKED, Ancestral(), masks(), 1, final="none")
    assert len(only) == 1
    assert only[0].step == 0
    assert bool((only[0].tokens == MASK).all())


@pytest.mark.parametrize("kind", [SCDD, GIDD])
def test_the_last_step_goes_to_clean_text_wherever_the_schedule_ends(kind: type[Process]) -> None:
    """γ_0 = 0.98 here, so a step to t = 0 would leave masks; the final one must not, nor may it draw noise."""
    process, x = kind(VOCAB, Homemade()), torch.tensor([0, 1, 2, 4, 5, 6])
    last = walk(process, Ancestral(), masks(300, 6), 3, Truth(x, VOCAB))[-1]
    assert bool((last.tokens == x).all())


def test_masks_only_keeps_every_visible_token() -> None:
    frames = walk(NOISY, Ancestral(), masks(200), 6, final="masks-only")
    before, after = frames[-2].tokens, frames[-1].tokens
    visible = before != MASK
    assert bool((after[visible] == before[visible]).all())
    moved = walk(NOISY, Ancestral(), masks(200), 6, final="ancestral")[-1].moved
    assert bool((moved[visible] == KINDS.index("corrected")).any()), "ancestral must correct in its last step"


@pytest.mark.parametrize("process", [NOISY, MASKED, GIDD(VOCAB, Peaked(p_u=0.4))], ids=["scdd", "mdlm", "gidd"])
@pytest.mark.parametrize("filters", [Filters(), Filters(temperature=0.6)], ids=["plain", "cooler"])
def test_greedy_is_the_mode_of_the_last_posterior(process: Process, filters: Filters) -> None:
    network, t = table(VOCAB, spread=2.0), 0.4
    z = torch.arange(VOCAB.size)[None]
    got = walk(process, Ancestral(), z, denoiser=network, times=(t, 0.0), final="greedy", filters=filters)[-1].tokens[0]
    x_theta = torch.tensor(network.x_theta(filters))
    expected = process.posterior(z[0], x_theta, CLEAN, t).argmax(-1)
    assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("case", CASES)
def test_frozen_and_padding_never_change(case: str) -> None:
    process, sampler = CASES[case]
    z = masks(6, 12)
    frozen = torch.rand(z.shape, generator=torch.Generator().manual_seed(1)) < 0.4
    z = torch.where(frozen, torch.randint(4, 7, z.shape, generator=torch.Generator().manual_seed(2)), z)
    lengths = [12, 11, 7, 12, 5, 9]
    outside = torch.arange(12) >= torch.tensor(lengths)[:, None]
    for frame in walk(process, sampler, z, 10, frozen=frozen, lengths=lengths):
        still = frozen | outside
        assert bool((frame.tokens[still] == z[still]).all())
        assert not bool(frame.moved[still].any())
    assert not bool((frame.tokens[~still] == MASK).any())


def small(causal: bool = False, size: int = 40) -> DiT:
    generator = torch.Generator().manual_seed(5)
    model = DiT(DiTConfig(2, 32, 2, causal=causal, time_conditioning=not causal), Vocab(size, 9), generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2, generator=generator)
        model.norm.weight.fill_(1.0)  # x_θ neither flat nor certain
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize("case", [*CASES, "ar"])
def test_a_sample_is_the_same_alone_and_in_any_batch(case: str) -> None:
    """Exactly, on a CPU, with a real network, different lengths, and any numbering of the batch."""
    network = small(causal=case == "ar")
    vocab = network.vocab
    options = {"denoiser": network, "filters": Filters(top_p=0.95), "steps": 9, "eos_id": 3}
    if case == "ar":
        process, sampler = Autoregressive(vocab), Ar()
    else:
        old, sampler = CASES[case]
        process = type(old)(vocab, old.schedule)
        if case == "prism":
            head = QualityHead(32, generator=torch.Generator().manual_seed(0))
            torch.nn.init.normal_(head.last.weight, generator=torch.Generator().manual_seed(1))
            options |= {"quality": head}
    lengths = [14, 9, 14, 11, 6]
    z = torch.full((5, 14), vocab.mask_id)
    frozen = torch.zeros(z.shape, dtype=torch.bool)
    for row, prompt in enumerate((1, 3, 2, 1, 4)):
        z[row, :prompt], frozen[row, :prompt] = torch.arange(20, 20 + prompt), True
    batch = walk(process, sampler, z, samples=[7, 1, 2, 30, 4], frozen=frozen, lengths=lengths, **options)[-1]
    for row, sample in enumerate([7, 1, 2, 30, 4]):
        n = lengths[row]
        alone = walk(
            process, sampler, z[row : row + 1, :n], samples=[sample], frozen=frozen[row : row + 1, :n], **options
        )
        assert alone[-1].tokens[0].tolist() == batch.tokens[row, :n].tolist()
        assert int(alone[-1].nfe) == int(batch.nfe[row])
        assert alone[-1].counts[0].tolist() == batch.counts[row].tolist()
    other = walk(process, sampler, z, samples=[7, 1, 2, 30, 4], seed=1, frozen=frozen, lengths=lengths, **options)[-1]
    assert not bool((other.tokens == batch.tokens).all()), "another seed must give another text"


def test_rows_together_equal_rows_alone_up_to_rounding() -> None:
    """`together` only regroups: x_θ moves in its last bits, so the texts all but always agree."""
    network, vocab = small(), Vocab(40, 9)
    process = SCDD(vocab, Peaked(p_u=0.3))
    z, lengths = torch.full((5, 12), 9), [12, 8, 12, 5, 9]
    alone = walk(process, Ancestral(), z, 8, network, lengths=lengths)[-1].tokens
    for together in (2, 5):
        grouped = walk(process, Ancestral(), z, 8, network, lengths=lengths, rows_per_forward=together)[-1].tokens
        assert float((grouped == alone).double().mean()) > 0.97


@pytest.mark.parametrize("case", CASES)
def test_recording_changes_nothing(case: str) -> None:
    process, sampler = CASES[case]
    frames = walk(process, sampler, masks(5, 20), 10)
    (only,) = walk(process, sampler, masks(5, 20), 10, record=False)
    assert only.tokens.tolist() == frames[-1].tokens.tolist()
    assert only.counts.tolist() == frames[-1].counts.tolist()
    assert only.nfe.tolist() == frames[-1].nfe.tolist()


@pytest.mark.parametrize("case", CASES)
def test_frames_say_what_moved(case: str) -> None:
    process, sampler = CASES[case]
    before, sums = masks(5, 20), torch.zeros(5, 3, dtype=torch.int64)
    for frame in walk(process, sampler, before, 10):
        was, now, changed = before != MASK, frame.tokens != MASK, before != frame.tokens
        kind = torch.where(~changed, 0, torch.where(now, torch.where(was, 2, 1), 3))
        assert kind.tolist() == frame.moved.tolist()
        sums += torch.stack([(kind == k).sum(1) for k in (1, 2, 3)], 1)
        assert sums.tolist() == frame.counts.tolist()
        before = frame.tokens


def test_frames_carry_the_probability_of_each_token() -> None:
    network = table(VOCAB)
    x = torch.tensor(network.x_theta()).log()
    before = masks(20, 20)
    for frame in walk(MASKED, Ancestral(), before, 6, network):
        drawn, stays = frame.moved == 1, (frame.moved == 0) & (frame.tokens != MASK)
        torch.testing.assert_close(frame.log_p[drawn].double(), x[MASK, frame.tokens[drawn]], atol=1e-5, rtol=0)
        kept = frame.tokens[stays]
        torch.testing.assert_close(frame.log_p[stays].double(), x[kept, kept], atol=1e-5, rtol=0)
        before = frame.tokens


@moderate
@given(
    st.floats(0.05, 0.8), st.integers(1, 8), st.integers(0, 10_000), st.sampled_from(FINALS), st.floats(0.3, 1.0),
    st.booleans(),
)  # fmt: skip
def test_scdd_never_remasks(p_u: float, steps: int, seed: int, final: str, top_p: float, decoupled: bool) -> None:
    schedule = Decoupled(Polynomial(2.0), Polynomial(0.7, end=p_u)) if decoupled else Peaked(p_u=p_u)
    network = table(VOCAB, seed, spread=3.0)
    options = {"final": final, "filters": Filters(top_p=top_p), "rows_per_forward": 6}
    frames = walk(SCDD(VOCAB, schedule), Ancestral(), masks(6, 12), steps, network, seed=seed, **options)
    assert all(not bool((frame.moved == REMASKED).any()) for frame in frames)


def test_gidd_does_remask() -> None:
    """The property above can fail: GIDD's own process, on the same weights, remasks."""
    frames = walk(GIDD(VOCAB, Peaked(p_u=0.4)), Ancestral(), masks(200), 8)
    assert int(frames[-1].counts[:, 2].sum()) > 0


@pytest.mark.parametrize("kind", [SCDD, GIDD])
def test_a_perfect_denoiser_follows_the_marginals(kind: type[Process]) -> None:
    """The N-step chain with x_θ = x: masked / right / wrong shares at every time, and corrections, as computed exactly."""
    process, steps, rows, columns = kind(VOCAB, Peaked(p_u=0.5)), 10, 2000, 20
    x = torch.tensor([0, 1, 2, 4, 5, 6, 0, 1, 2, 4] * 2)
    times = grid("uniform", steps)
    frames = walk(process, Ancestral(), masks(rows, columns), steps, Truth(x, VOCAB), rows_per_forward=rows)
    exact = intrinsic(process, times)
    count = rows * columns
    for frame, state, corrected in zip(frames, exact.states[1:], exact.per_step, strict=True):
        levels = process.levels(frame.s)
        gamma, rho = float(levels.gamma), float(levels.rho)
        right = gamma * (rho + (1 - rho) / VOCAB.K)
        np.testing.assert_allclose(state, (1 - gamma, right, gamma - right), atol=1e-12)  # = eq:marginal
        seen = (frame.tokens == MASK).double().mean(), (frame.tokens == x).double().mean()
        for share, wanted in zip(seen, state[:2], strict=True):
            assert abs(float(share) - wanted) < 5 * (wanted * (1 - wanted) / count + 1e-12) ** 0.5
        rate = float((frame.moved == 2).double().mean())
        assert abs(rate - corrected) < 5 * (corrected / count + 1e-12) ** 0.5
    assert (
        abs(float(frames[-1].counts[:, 2].sum()) / count - exact.remasked) < 5 * (exact.remasked / count + 1e-12) ** 0.5
    )


ANCHORS = {0.2: (0.591, 0.617, 0.635, 0.647, 0.657), 0.1: (0.286, 0.297, 0.306, 0.311, 0.316)}


@pytest.mark.parametrize("p_u", ANCHORS)
def test_intrinsic_correction_rate(p_u: float) -> None:
    """The known figures are those of N steps from 1 to 1e-5, without the last jump to clean text; ours go to 0."""
    process = SCDD(Vocab(50_258, 50_257), Peaked(p_u=p_u))
    for steps, wanted in zip((64, 128, 256, 512, 1024), ANCHORS[p_u], strict=True):
        short = intrinsic(process, (*np.linspace(1.0, 1e-5, steps + 1), 0.0))
        assert sum(short.per_step[:-1]) == pytest.approx(wanted, abs=7e-4)
        assert intrinsic(process, grid("uniform", steps)).corrections == pytest.approx(wanted, abs=2.5e-3)
        assert short.remasked == 0.0


def test_early_stop_saves_evaluations_row_by_row() -> None:
    """A perfect denoiser is done once nothing is masked or wrong; each row stops by itself, and ends right."""
    x = torch.tensor([0, 1, 2, 4, 5, 6])
    network = Truth(x, VOCAB)
    process = SCDD(VOCAB, Peaked(p_u=0.02))
    full = walk(process, Ancestral(), masks(20, 6), 200, network)[-1]
    early = walk(process, Ancestral(), masks(20, 6), 200, Truth(x, VOCAB), tolerance=0.05)[-1]
    assert bool((early.tokens == x).all())
    assert bool((full.nfe == 200).all())
    assert int(early.nfe.max()) <= 200
    assert float(early.nfe.double().mean()) < 190
    assert len(set(early.nfe.tolist())) > 3
    alone = walk(process, Ancestral(), masks(1, 6), 200, network, samples=[5], tolerance=0.05)[-1]
    assert int(alone.nfe) == int(early.nfe[5])


def test_early_stop_is_a_jump_of_the_same_process() -> None:
    """With a tolerance that every row meets at once, the walk is one step t → 0, with its exact frequencies."""
    network, t = table(VOCAB), 0.3
    z = torch.full((20_000, 1), 1)
    (frame,) = walk(
        NOISY, Ancestral(), z, denoiser=network, times=(t, 0.2, 0.0), tolerance=10.0, rows_per_forward=len(z)
    )
    x_theta = torch.tensor(network.x_theta())
    assert_frequencies(frame.tokens, NOISY.posterior(torch.tensor([1]), x_theta[1:2], CLEAN, t)[0].numpy())
    assert bool((frame.nfe == 1).all())


def test_early_stop_respects_the_final_step() -> None:
    z = torch.full((50, 4), 1)
    z[:, 0] = MASK
    kept = walk(NOISY, Ancestral(), z, times=(0.3, 0.2, 0.0), tolerance=10.0, final="masks-only")[-1].tokens
    assert bool((kept[:, 1:] == 1).all())
    assert not bool((kept == MASK).any())
    assert (
        walk(NOISY, Ancestral(), z, times=(0.3, 0.2, 0.0), tolerance=10.0, final="none")[-1].tokens.tolist()
        == z.tolist()
    )
    greedy = walk(NOISY, Ancestral(), z, times=(0.3, 0.2, 0.0), tolerance=10.0, final="greedy")[-1].tokens
    assert len({tuple(row) for row in greedy.tolist()}) == 1


def test_threshold_takes_fewer_evaluations_when_it_is_sure() -> None:
    network = Truth(torch.tensor([0, 1, 2, 4, 5, 6]), VOCAB)
    last = walk(MASKED, Threshold(0.9), masks(3, 6), 6, network)[-1]
    assert last.nfe.tolist() == [1, 1, 1]


def test_gidd_correction_reaches_a_fixed_point() -> None:
    """With a perfect denoiser one round mends one token; a right text ends after `patience` rounds."""
    x = torch.tensor([0, 1, 2, 4, 5, 6])
    wrong = x.clone()
    wrong[[1, 4]] = 2
    sampler = GiddCorrect(corrections=20, temperature=0.5, patience=3)
    frames = walk(NOISY, sampler, wrong[None], denoiser=Truth(x, VOCAB), times=(1e-12, 0.0), final="masks-only")
    assert [int((frame.tokens != x).sum()) for frame in frames[:4]] == [2, 1, 0, 0]
    assert len(frames) < 10
    assert bool((frames[-1].tokens == x).all())


REFUSED = [
    (Remdm(), NOISY, "ρ ≡ 1"),
    (P2(), NOISY, "ρ ≡ 1"),
    (Informed(), NOISY, "ρ ≡ 1"),
    (Threshold(), NOISY, "ρ ≡ 1"),
    (Prism(), NOISY, "ρ ≡ 1"),
    (GiddCorrect(), MASKED, "uniform noise"),
    (Ar(), MASKED, "autoregressive"),
    (Ancestral(), Autoregressive(VOCAB), "sampler ar"),
]


@pytest.mark.parametrize(("sampler", "process", "reason"), REFUSED)
def test_a_sampler_refuses_what_it_does_not_fit(
    sampler: Sampler, process: Process | Autoregressive, reason: str
) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        walk(process, sampler, masks())
    assert ":" in str(caught.value), "a refusal names the cure"


def test_prism_needs_its_head() -> None:
    with pytest.raises(UserError, match="quality head"):
        walk(MASKED, Prism(), masks(), quality=None)


def test_bad_settings_are_refused() -> None:
    for action, reason in [
        (lambda: grid("uniform", 0), "at least 1"),
        (lambda: grid("spiral", 4), "uniform"),
        (lambda: grid("uniform", 4, 1.5), "start"),
        (lambda: walk(NOISY, Ancestral(), masks(), times=(0.5, 0.7, 0.0)), "rise"),
        (lambda: walk(NOISY, Ancestral(), masks(), times=(0.5, 0.2)), "last 0"),
        (lambda: walk(NOISY, Ancestral(), masks(), final="argmax"), "final is"),
        (lambda: walk(NOISY, GiddCorrect(), masks(), tolerance=0.5), "tolerance"),
        (lambda: walk(NOISY, Ancestral(), masks(), tolerance=0.0), "tolerance"),
        (lambda: Remdm("bend"), "cap"),
        (lambda: Remdm("loop", t_on=0.1, t_off=0.3), "t_off"),
    ]:
        with pytest.raises(UserError, match=reason):
            action()


@pytest.mark.parametrize("kind", ["uniform", "quadratic", "cosine"])
def test_grids(kind: str) -> None:
    times = grid(kind, 17, 0.6)
    assert len(times) == 18
    assert times[0] == 0.6
    assert times[-1] == 0.0
    assert all(a > b for a, b in pairwise(times))


def test_gidd_weights_walk_scdds_process() -> None:
    """Any weights, any process of the same marginals: one table, two kernels, different frequencies, both exact."""
    network = table(VOCAB)
    for process in (NOISY, GIDD(VOCAB, NOISY.schedule)):
        z = torch.full((20_000, 1), 1)
        first = walk(process, Ancestral(), z, denoiser=network, times=(0.6, 0.3, 0.0), rows_per_forward=len(z))[0]
        x_theta = torch.tensor(network.x_theta())
        assert_frequencies(first.tokens, process.posterior(torch.tensor([1]), x_theta[1:2], 0.3, 0.6)[0].numpy())


def test_ar_matches_the_network_without_a_cache() -> None:
    """Greedy decoding with the cache equals argmax decoding that reads the whole row anew for every token."""
    network = small(causal=True)
    z = torch.full((3, 12), 9)
    z[:, 0], z[1, 1:3] = 1, torch.tensor([5, 6])
    frozen = z != 9
    last = walk(AR, Ar(), z, denoiser=network, frozen=frozen, filters=Filters(top_k=1))[-1]
    for row in range(3):
        tokens = z[row, : int(frozen[row].sum())].tolist()
        while len(tokens) < 12:
            tokens.append(int(network.logits(torch.tensor([tokens]))[0, -1].argmax()))
        assert last.tokens[row].tolist() == tokens
    assert last.nfe.tolist() == [11, 9, 11]


def test_ar_ends_at_end_of_text_and_refuses_holes() -> None:
    network = small(causal=True)
    z = torch.full((12, 30), 9)
    z[:, 0] = 1
    last = walk(AR, Ar(), z, eos_id=17, denoiser=network, frozen=z != 9, filters=Filters(temperature=5.0))[-1]
    ended = [row for row in last.tokens.tolist() if 17 in row]
    assert ended, "some of twelve rows must end"
    assert all(set(row[row.index(17) :]) == {17} for row in ended)
    assert not bool((last.tokens == 9).any())
    z[0, 5] = 2
    with pytest.raises(UserError, match="prompt"):
        walk(AR, Ar(), z, denoiser=network, frozen=z != 9)


def test_time_reaches_the_network() -> None:
    class Clock(Table):
        def hidden(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
            assert t is not None
            seen.append((t.dtype, t.tolist()))
            return super().hidden(z_t, t, documents)

    seen: list[tuple[torch.dtype, list[float]]] = []
    walk(MASKED, Ancestral(), masks(2), 4, Clock(torch.zeros(7, 7), VOCAB), rows_per_forward=2)
    assert seen == [(torch.float64, [t, t]) for t in (1.0, 0.75, 0.5, 0.25)]
