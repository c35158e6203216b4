"""Rows with noise and no masks (`repair_share`): the loss written out, which rows they are, and who has none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scdd.core import UserError, Vocab
from scdd.core.rng import uniforms
from scdd.models.dit import DiT
from scdd.models.options import DiTConfig
from scdd.objectives.base import BatchSlice
from scdd.objectives.diffusion import DiffusionObjective
from scdd.objectives.options import AdaptiveTimesOptions, ElboOptions
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked
from tests.objectives.networks import stirred

VOCAB = Vocab(size=12, mask_id=11)
K = VOCAB.K
NOISE = 0.3
PROCESSES = {"scdd": SCDD(VOCAB, Peaked(0.2)), "gidd": GIDD(VOCAB, Peaked(0.2))}
ROWS, LENGTH = 64, 9
PART = BatchSlice(3, 5, 0, ROWS, ROWS)


class Watched(DiT):
    """Remembers what it was shown."""

    z: Tensor
    t: Tensor | None

    def hidden(self, z_t: Tensor, t: Tensor | None = None, *args: object) -> Tensor:
        self.z, self.t = z_t, t
        return super().hidden(z_t, t, *args)  # type: ignore[arg-type]


def network() -> Watched:
    generator = torch.Generator().manual_seed(0)
    return stirred(
        Watched(DiTConfig(depth=1, width=16, heads=2, cond_width=8, time_conditioning=True), VOCAB, generator),
        generator,
    )


def text() -> Tensor:
    return torch.randint(11, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))


def objective(process: SCDD | GIDD, weighting: str, share: float = 0.5, weight: float = 1.0) -> DiffusionObjective:
    repairs = {"repair_share": share, "repair_noise": NOISE, "repair_weight": weight}
    options = ElboOptions(steps=None, weighting=weighting, **repairs)  # type: ignore[arg-type]
    return DiffusionObjective(process, options)


def chosen() -> tuple[Tensor, Tensor]:
    """(Which rows, their share of noise), as the objective draws them."""
    which, rate = uniforms((ROWS, 2), PART.keyed("repair", "cpu")).unbind(-1)
    return which < 0.5, NOISE * (1 - rate.double())


@pytest.mark.parametrize("weighting", ["dynamic", "scdd+", "gidd+"])
@pytest.mark.parametrize("name", PROCESSES)
def test_their_loss_is_the_divergence_at_that_noise(name: str, weighting: str) -> None:
    """w·[KL(f(·|x) ‖ f(·|x_θ)) + IS(q(z|x) ‖ q(z|x_θ))] with f = (1 − r)·x + r·u, w = 1 at noise and r/(K(1 − r)) elsewhere."""
    net, x = network(), text()
    with torch.no_grad():
        found = objective(PROCESSES[name], weighting).loss(net, x, None, PART).nats
        z = net.z
        p = net.logits(z, net.t)[..., :K].double().softmax(-1)
    rows, rate = chosen()
    r = rate[:, None, None]
    f_x = (1 - r) * torch.nn.functional.one_hot(x, K) + r / K
    f_p = (1 - r) * p + r / K
    kl = (f_x * (f_x / f_p).log()).sum(-1)
    ratio = (f_x / f_p).gather(-1, z.clamp(max=K - 1)[..., None])[..., 0]
    weight = torch.where(z == x, rate[:, None] / (K * (1 - rate[:, None])), 1.0)
    wanted = (weight * (kl + ratio - ratio.log() - 1)).sum(1)
    assert 16 < int(rows.sum()) < 48
    assert torch.allclose(found[rows], wanted[rows], rtol=2e-5, atol=1e-6)


def test_they_have_noise_at_their_rate_and_no_masks() -> None:
    net, x = network(), text()
    with torch.no_grad():
        objective(PROCESSES["scdd"], "dynamic").loss(net, x, None, PART)
    rows, rate = chosen()
    assert net.t is not None
    assert torch.equal(net.t[rows], rate[rows])  # what a repair tells the network
    assert not (net.z[rows] == VOCAB.mask_id).any()
    assert (net.z[~rows] == VOCAB.mask_id).any()
    count, expected = int((net.z != x)[rows].sum()), float(rate[rows].sum()) * LENGTH * (K - 1) / K
    assert abs(count - expected) < 4 * expected**0.5


def test_others_are_as_without_them_and_parts_as_the_whole() -> None:
    net, x = network(), text()
    with torch.no_grad():
        mixed = objective(PROCESSES["scdd"], "dynamic").loss(net, x, None, PART).nats
        z = net.z
        plain = objective(PROCESSES["scdd"], "dynamic", 0.0).loss(net, x, None, PART).nats
        rows = chosen()[0]
        assert torch.equal(net.z[~rows], z[~rows])
        assert torch.allclose(plain[~rows], mixed[~rows], rtol=1e-6)
        half = objective(PROCESSES["scdd"], "dynamic").loss(net, x[20:50], None, PART.cut(20, 30)).nats
    assert torch.allclose(half, mixed[20:50], rtol=1e-5)


def test_their_weight_is_theirs_alone() -> None:
    net, x = network(), text()
    with torch.no_grad():
        light = objective(PROCESSES["scdd"], "dynamic").loss(net, x, None, PART)
        heavy = objective(PROCESSES["scdd"], "dynamic", weight=4.0).loss(net, x, None, PART)
    rows = chosen()[0]
    assert torch.allclose(heavy.nats[rows], 4 * light.nats[rows], rtol=1e-6)
    assert torch.equal(heavy.nats[~rows], light.nats[~rows])
    total = heavy.nats.sum() / heavy.tokens.sum()
    assert torch.allclose(heavy.total.double(), total, rtol=1e-5)


def test_who_has_none_is_told() -> None:
    with pytest.raises(UserError, match="rows without masks are no part of the bound"):
        ElboOptions(repair_share=0.5)
    with pytest.raises(UserError, match="nor of times adapted to it"):
        ElboOptions(steps=None, weighting="dynamic", times=AdaptiveTimesOptions(), repair_share=0.5)
    options = ElboOptions(steps=None, weighting="dynamic", repair_share=0.5)
    with pytest.raises(UserError, match="has no noise"):
        DiffusionObjective(MDLM(VOCAB, Masked()), options)
