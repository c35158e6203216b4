"""Everything that follows from a schedule and one kernel row, written once for SCDD, MDLM and GIDD.

B batch, L length, K ordinary tokens, V = K + 1. Times t ≥ s are floats, tensors of a leading shape of z
(times [B] for tokens [B, L]), or `Levels` already at hand. Coefficients are float64 throughout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from importlib import import_module

import torch
from torch import Tensor

from scdd.core import ElboCoefficients, Kernel, Levels, Transition, UserError, Vocab
from scdd.core.options import component
from scdd.core.rng import Randomness, integers, uniforms
from scdd.processes import elbo
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.noise import Noise, own_fields
from scdd.processes.options import PROCESSES, AutoregressiveOptions, NoisyOptions, ProcessOptions
from scdd.schedules.base import Schedule, interior
from scdd.schedules.options import SCHEDULES

Time = Tensor | float | Levels


class Process(ABC):
    """A forward process with the marginals of `eq:marginal`; a concrete one says its kernel and its rates, no more."""

    def __init__(self, vocab: Vocab, schedule: Schedule, noise: Noise | None = None) -> None:
        """`noise` is what u becomes in `eq:marginal`, where it is not the paper's uniform one."""
        schedule.check()
        if noise is not None and noise.vocab != vocab:
            raise UserError(f"{noise!r} is over another vocabulary: make it for this one.", "noise")
        self.vocab, self.schedule, self.noise = vocab, schedule, noise

    @abstractmethod
    def kernel(self, z_t: Tensor, s: Time, t: Time) -> Kernel:
        """q(z_t | z_s = v) as a row over v, for each z_t: the factors of `eq:jointDist`."""

    @abstractmethod
    def rates(self, z_t: Tensor, t: Time) -> Kernel:
        """R_t(z_t, v) as a row over v: lim (kernel − 1[v = z_t]) / (t − s) as s → t."""

    def noise_part(self, mass: Tensor, z_t: Tensor) -> Tensor:
        """How much of noise of that mass is z_t, mass·π(z_t), for kernels and rates; 0 at a mask but for uniform noise."""
        return mass / self.vocab.K if self.noise is None else mass * self.noise.at(z_t)

    def noise_numbers(
        self, shape: tuple[int, ...], generator: Randomness, device: torch.device | None = None
    ) -> Tensor:
        """Random numbers for `corrupt_by` to choose noise by: ordinals in [0, K), or uniform numbers where π is not."""
        if self.noise is None:
            return integers(self.vocab.K, shape, generator, device)
        return uniforms(shape, generator, device)

    def noise_token(self, u: Tensor) -> Tensor:
        """Noise at uniform numbers u in [0, 1)."""
        if self.noise is not None:
            return self.noise.token(u)
        return self.vocab.token((u * self.vocab.K).to(torch.int64).clamp_(max=self.vocab.K - 1))

    def noise_scores(self, device: torch.device) -> Tensor | None:
        """log(K·π) [V], which the fused operations need where noise is not uniform; else None."""
        return None if self.noise is None else self.noise.log_relative(device)

    @cached_property
    def has_uniform_noise(self) -> bool:
        """Whether tokens may be replaced by random ones, i.e. not ρ ≡ 1; of whatever distribution they are."""
        return bool((self.levels(torch.linspace(0, 1, 65, dtype=torch.float64)).one_minus_rho > 0).any())

    def levels(self, t: Time) -> Levels:
        """γ_t, ρ_t, their complements and derivatives."""
        if isinstance(t, Levels):
            return t
        return self.schedule.at(torch.as_tensor(t, dtype=torch.float64))

    def marginal(self, x: Tensor, t: Time) -> Tensor:
        """q(z_t | x) over all V ids, `eq:marginal`: [..., V] for x [...], or for x a distribution [..., V]."""
        soft = x if x.is_floating_point() else torch.nn.functional.one_hot(x, self.vocab.size).to(torch.float64)
        at = self._aligned(t, soft[..., 0])
        noise = self._noise(soft.device)
        mask = (~self.vocab.ordinary(soft.device)).to(torch.float64)
        gamma, rho = at.gamma[..., None], at.rho[..., None]
        spread = gamma * at.one_minus_rho[..., None] * noise + at.one_minus_gamma[..., None] * mask
        return gamma * rho * soft + spread

    def corrupt(self, x: Tensor, t: Time, generator: Randomness = None) -> Tensor:
        """A draw of z_t given x by `eq:marginal`, from two numbers a position and nothing V-wide."""
        u = uniforms(x.shape, generator, x.device)
        return self.corrupt_by(x, t, u, self.noise_numbers(x.shape, generator, x.device))

    def corrupt_by(self, x: Tensor, t: Time, u: Tensor, which: Tensor) -> Tensor:
        """`corrupt` with its numbers handed in: u in [0, 1) says what happens, `which` (`noise_numbers`) what noise it is."""
        at = self._aligned(t, x)
        masked = u < at.one_minus_gamma
        noised = u < at.one_minus_gamma + at.gamma * at.one_minus_rho
        noise = self.vocab.token(which) if self.noise is None else self.noise.token(which)
        return torch.where(masked, self.vocab.mask_id, torch.where(noised, noise, x))

    def prior(
        self, shape: tuple[int, ...], generator: Randomness = None, device: torch.device | str | None = None
    ) -> Tensor:
        """A draw of z_1: all mask where γ_1 = 0 (p_θ(z_1) of `eq:p_theta_marginal`), uniform where nothing is masked."""
        # any token will do for data: γ_1·ρ_1 = 0, it is forgotten
        data = self.vocab.token(torch.zeros(shape, dtype=torch.int64, device=device))
        if float(self.levels(1.0).gamma) == 0.0:
            return torch.full_like(data, self.vocab.mask_id)
        return self.corrupt(data, 1.0, generator)

    def likelihood(self, z_t: Tensor, p_z: Tensor, t: Time) -> Tensor:
        """q_t(z_t | x_θ), `eq:marginal` with x_θ put for x: it asks only for p_z = x_θ(z_t)."""
        at = self._aligned(t, z_t)
        visible = at.gamma * (at.rho * p_z.to(torch.float64) + self.noise_part(at.one_minus_rho, z_t))
        return torch.where(z_t == self.vocab.mask_id, at.one_minus_gamma, visible)

    def transition(self, z_t: Tensor, p_z: Tensor, s: Time, t: Time) -> Transition:
        """p_θ(z_s | z_t) of `eq:backwardParam` as keep / model / uniform / mask, from p_z = x_θ(z_t) alone.

        A state that x_θ holds impossible is kept if the kernel can keep it (MDLM's carry-over), else redrawn.
        """
        at_s = self._aligned(s, z_t)
        row = self.kernel(z_t, s, t)
        below = self.likelihood(z_t, p_z, t)
        possible = below > 0
        inverse = torch.where(possible, 1.0, 0.0) / torch.where(possible, below, 1.0)
        redraw = row.other * at_s.gamma * inverse
        stuck = (~possible & (row.keep > 0)).to(torch.float64)
        lost = (~possible).to(torch.float64) - stuck
        return Transition(
            keep=row.keep * self.likelihood(z_t, p_z, s) * inverse + stuck,
            model=redraw * at_s.rho + lost,
            uniform=redraw * at_s.one_minus_rho,
            mask=row.from_mask * at_s.one_minus_gamma * inverse,
        )

    def posterior(self, z_t: Tensor, x_theta: Tensor, s: Time, t: Time) -> Tensor:
        """p_θ(z_s | z_t) over all V ids, `eq:backwardParam`; at x_theta one-hot, `eq:backward`. Dense: small work.

        It sums to one for any x_theta that does (`lem:p_theta_is_probability`).
        """
        x_theta = x_theta.to(torch.float64)
        p_z = x_theta.gather(-1, z_t[..., None])[..., 0]
        move = Transition(*(part[..., None].expand_as(x_theta) for part in self.transition(z_t, p_z, s, t)))
        here = torch.nn.functional.one_hot(z_t, self.vocab.size).to(torch.float64)
        ordinary = self.vocab.ordinary(z_t.device).to(torch.float64)
        return (
            move.keep * here
            + move.model * x_theta
            + self.noise_part(move.uniform * ordinary, torch.arange(self.vocab.size, device=z_t.device))
            + move.mask * (1 - ordinary)
        )

    def backward_rates(self, z_t: Tensor, x_theta: Tensor, t: Time) -> Tensor:
        """Q̃_t(v, z_t) over all V ids v, `eq:backward_rate`: the generator of the reverse process. Dense."""
        t = self.inside(t)
        x_theta = x_theta.to(torch.float64)
        row, at = self.rates(z_t, t), self._aligned(t, z_t)
        here = torch.nn.functional.one_hot(z_t, self.vocab.size).to(torch.float64)
        ordinary = self.vocab.ordinary(z_t.device).to(torch.float64)
        inflow = row.other[..., None] * ordinary + row.from_mask[..., None] * (1 - ordinary)
        p_z = x_theta.gather(-1, z_t[..., None])[..., 0]
        below = self.likelihood(z_t, p_z, at)[..., None]
        # a state that x_θ holds impossible has no inflow, and 0 · ∞ must not come of it
        odds = self.marginal(x_theta, at) / torch.where(below > 0, below, 1.0)
        away = inflow * odds * (1 - here)
        return away - here * away.sum(-1, keepdim=True)

    def elbo_coefficients(self, x: Tensor, z_t: Tensor, t: Time, s: Time | None = None) -> ElboCoefficients:
        """Rows of KL(q(z_s | z_t, x) ‖ p_θ(z_s | z_t)), constants kept; without s, of its rate as s → t (`eq:contLoss`).

        The loss is exactly 0 at x_θ = x. The diffusion term of `eq:NELBO` is the sum of these over all (s, t) of a
        grid, or the integral of the rate over t.
        """
        if s is not None:
            at_s, at_t = self._aligned(s, z_t), self._aligned(t, z_t)
            return elbo.discrete_coefficients(self.kernel(z_t, s, t), at_s, at_t, self._relation(x, z_t, at_t))
        return self._divergences(x, z_t, t, elbo.continuous_weights)

    def weighted_coefficients(self, x: Tensor, z_t: Tensor, t: Time, weighting: str) -> ElboCoefficients:
        """The divergences of `elbo_coefficients` in continuous time under weights of that name (`elbo.WEIGHTS`).

        But for "elbo" they are bounded, and the loss is no ELBO.
        """
        return self._divergences(x, z_t, t, elbo.WEIGHTS[weighting])

    def _divergences(self, x: Tensor, z_t: Tensor, t: Time, weights: elbo.Weights) -> ElboCoefficients:
        at = self._aligned(self.inside(t), z_t)
        relation = self._relation(x, z_t, at)
        return elbo.divergence_coefficients(at, relation, weights(self.rates(z_t, at), at, relation))

    def _relation(self, x: Tensor, z_t: Tensor, at: Levels) -> elbo.Relation:
        same = z_t == x
        below = self.likelihood(z_t, same.to(torch.float64), at)
        inverse = torch.where(below > 0, 1.0 / torch.where(below > 0, below, 1.0), 0.0)
        relation = elbo.Relation(same, z_t != self.vocab.mask_id, inverse, self.vocab.K, bump=self.schedule.bump())
        if self.noise is None:
            return relation
        K = self.vocab.K
        return relation._replace(weight_x=K * self.noise.at(x), weight_z=K * self.noise.at(z_t))

    def inside(self, t: Time) -> Levels:
        """Levels strictly inside (0, 1), where rates are finite."""
        return t if isinstance(t, Levels) else self.levels(interior(torch.as_tensor(t, dtype=torch.float64)))

    def _aligned(self, t: Time, z: Tensor) -> Levels:
        return self.levels(t).like(z)

    def _noise(self, device: torch.device) -> Tensor:
        """π over all V ids, 0 at the mask."""
        ordinary = self.vocab.ordinary(device)
        if self.noise is None:
            return ordinary.to(torch.float64) / self.vocab.K
        return self.noise.at(torch.arange(self.vocab.size, device=device))

    def __repr__(self) -> str:
        """With a subclass's own fields: measurements are known by it."""
        noise = "" if self.noise is None else f", {self.noise!r}"
        own = own_fields(self, ("vocab", "schedule", "noise"))
        return f"{type(self).__name__}({self.vocab!r}, {self.schedule!r}{noise}{own})"


def survival_ratio(s: Levels, t: Levels, name: str) -> tuple[Tensor, Tensor]:
    """(value_t/value_s, 1 − value_t/value_s) of γ or ρ, the ratio 0 where value_s = 0.

    The drop from s to t is taken between values or between complements, whichever are smaller: the other
    subtraction cancels.
    """
    value_s, value_t = getattr(s, name), getattr(t, name)
    lost_s, lost_t = getattr(s, f"one_minus_{name}"), getattr(t, f"one_minus_{name}")
    alive = value_s > 0
    divisor = torch.where(alive, value_s, 1.0)
    drop = torch.where(value_s > 0.5, lost_t - lost_s, value_s - value_t)
    return torch.where(alive, value_t / divisor, 0.0), torch.where(alive, drop / divisor, 1.0)


def hazard_rate(at: Levels, name: str) -> Tensor:
    """−γ′/γ or −ρ′/ρ, the rate at which that signal is lost; 0 once it is all gone."""
    value, derivative = getattr(at, name), getattr(at, f"d{name}")
    rate: Tensor = -derivative / torch.where(value > 0, value, torch.inf)
    return rate


def make_process(options: ProcessOptions, vocab: Vocab, noise: Noise | None = None) -> Process | Autoregressive:
    """The forward process of these options, or what stands for it in the autoregressive baseline.

    `noise` is the distribution that options other than uniform name: from a corpus, a file or a checkpoint.
    """
    if isinstance(options, AutoregressiveOptions):
        return Autoregressive(vocab)
    named = options.noise if isinstance(options, NoisyOptions) else "uniform"
    if named != "uniform" and noise is None:
        raise UserError(
            f"The noise {named} needs a distribution, which is made from the training data and kept with a checkpoint; there is "
            "none here: use uniform noise, or the checkpoint that has it.",
            "noise",
        )
    kind, values = component(options.schedule, SCHEDULES)
    return process_of_kind(options.kind, vocab, kind(**values), None if named == "uniform" else noise)


def process_of_kind(kind: str, vocab: Vocab, schedule: Schedule, noise: Noise | None = None) -> Process:
    """The process of that name over a schedule and a noise at hand."""
    module, _, name = PROCESSES[kind].partition(":")
    made = getattr(import_module(module), name)
    process: Process = made(vocab, schedule) if noise is None else made(vocab, schedule, noise)
    return process
