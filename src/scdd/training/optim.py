"""The second half of a training step: AdamW (Muon for some matrices), and the moving average of the weights.

Nothing here waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from scdd.ops.update import Rates, Slots, update
from scdd.training.muon import Muon
from scdd.training.options import OptimiserOptions
from scdd.training.parallel import World, local


class MovingAverage:
    """shadow ← d · shadow + (1 − d) · weight after each step, d = min(decay, (1 + n) / (10 + n)) at the n-th update.

    It is what is validated, sampled from and published. The shadow is float32 whatever the weights are: with
    d = 0.9999, bfloat16 would lose every update. `Optimiser` writes it in AdamW's own pass over memory.
    """

    def __init__(self, module: nn.Module, decay: float = 0.9999) -> None:
        self.decay, self.updates = decay, 0
        self._weights = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.shadow = {name: p.detach().clone().float() for name, p in self._weights.items()}

    def next_share(self) -> float:
        """Count an update, and return 1 − d for it."""
        self.updates += 1
        return 1 - min(self.decay, (1 + self.updates) / (10 + self.updates))

    @torch.no_grad()
    def update(self, weights: Mapping[str, Tensor], share: float, finite: Tensor) -> None:
        """shadow ← shadow + share · (weight − shadow) for some of the weights, unless the step was left out; shards need
        no communication."""
        shadows = local(self.shadow[name] for name in weights)
        given = [torch.where(finite, w, s) for w, s in zip(local(weights.values()), shadows, strict=True)]
        if given:
            torch._foreach_lerp_(shadows, given, share)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The network carries the averages inside the block, and its own weights again afterwards."""
        weights = local(self._weights.values())
        with torch.no_grad():
            own = [w.detach().clone() for w in weights]
            torch._foreach_copy_(weights, local(self.shadow.values()))
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(weights, own)


def learning_rate(options: OptimiserOptions, step: float) -> float:
    """At step 0, 1, 2, …: a linear warm-up, then a cosine down to the final fraction of the peak at the end."""
    peak, first, warmup = options.learning_rate, options.initial_learning_rate, options.warmup_steps
    if step < warmup:
        return first + (peak - first) * step / warmup
    done = min(1.0, (step - warmup) / max(1, options.steps - warmup))
    rest = options.final_fraction
    return peak * (rest + (1 - rest) * 0.5 * (1 + math.cos(math.pi * done)))


class Optimiser:
    """AdamW, its moments by parameter name; Muon for `matrices`, where the options ask for it.

    The reference code decays every parameter, biases and norms too, and so does this. Sharded parameters are updated
    where their shards are: AdamW needs all of them for the gradient's norm only.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        options: OptimiserOptions,
        matrices: Collection[str] = (),
        impl: str = "auto",
        keep_gradients: bool = False,
        world: World | None = None,
    ) -> None:
        """`keep_gradients` adds a step's gradients up in tensors of its own, as passes need it that are replayed and write to the same
        places again; `world` are the ranks among which Muon's work is divided."""
        self.options, self.impl = options, impl
        self.parameters = {name: p for name, p in parameters if p.requires_grad}
        inner = {name: p for name, p in self.parameters.items() if options.muon and name in matrices}
        self.muon = Muon(inner, options.momentum, world)
        self.outer = [name for name in self.parameters if name not in inner]
        self.first = {name: torch.zeros_like(self.parameters[name]) for name in self.outer}
        self.second = {name: torch.zeros_like(self.parameters[name]) for name in self.outer}
        self.keep_gradients = keep_gradients
        self._kept: dict[nn.Parameter, Tensor] = {}

    def learning_rate_at(self, step: float) -> float:
        """AdamW's at step 0, 1, 2, …."""
        return learning_rate(self.options, step)

    def take_gradients(self, loss: Tensor, upstream: Tensor | None = None, alone: bool = False) -> None:
        """`loss.backward(upstream)`. Gradients that are kept take all of this pass's at once, not in a launch each; if it is `alone`,
        the only one of its step, nothing overwrites them before the update, and they are taken as they are."""
        if not self.keep_gradients:
            loss.backward(upstream)  # type: ignore[no-untyped-call]
            return
        owners = list(self.parameters.values())
        made = torch.autograd.grad(loss, owners, upstream, allow_unused=True)
        found = [(p, new) for p, new in zip(owners, made, strict=True) if new is not None]
        if alone:
            self._lend(found)
            return
        first: list[tuple[Tensor, Tensor]] = []
        more: list[tuple[Tensor, Tensor]] = []
        for p, new in found:
            (first if p.grad is None else more).append((self._own(p), new))
        if first:
            torch._foreach_copy_([own for own, _ in first], [new for _, new in first])
        if more:
            torch._foreach_add_([own for own, _ in more], [new for _, new in more])

    def _own(self, parameter: nn.Parameter) -> Tensor:
        """Its gradient's own tensor, the same in every step, which is its gradient from now on."""
        if parameter not in self._kept:
            self._kept[parameter] = torch.empty_like(parameter)
        own = parameter.grad = self._kept[parameter]
        return own

    @staticmethod
    def _lend(found: Iterable[tuple[nn.Parameter, Tensor]]) -> None:
        """Take gradients as they are. The update writes into some, so what two parameters share, or is laid out otherwise, is copied."""
        places: set[int] = set()
        for p, new in found:
            own = new.is_contiguous() and new.untyped_storage().data_ptr() not in places
            places.add(new.untyped_storage().data_ptr())
            p.grad = new if own else new.clone(memory_format=torch.contiguous_format)

    @torch.no_grad()
    def update_and_average(self, step: int, average: MovingAverage | None = None) -> Tensor:
        """Update the weights for the time number `step`, from 0 on, then take them into the average.

        Both happen in one pass over memory. Returns the gradient's norm before clipping, on the device. Where that is not
        finite, the step is left out: weights, moments and average stay as they are.
        """
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        if hasattr(norm, "full_tensor"):
            norm = norm.full_tensor()  # sharded: every rank learns the norm of the whole
        options = self.options
        scale = torch.ones_like(norm) if options.clip is None else (options.clip / (norm + 1e-6)).clamp(max=1.0)
        finite = torch.isfinite(norm)
        scale = torch.where(finite, scale, torch.nan)
        rate, share = self.learning_rate_at(step), 0.0 if average is None else average.next_share()
        if options.muon:
            self.muon.step(scale, options.muon * rate / options.learning_rate, options.weight_decay)
            if average is not None:
                average.update(self.muon.matrices, share, finite)
        rates = Rates(rate, options.betas, options.epsilon, options.weight_decay, step + 1, share)
        update(self._slots(average), scale, rates, self.impl)
        for p in self.parameters.values():
            p.grad = None
        return norm

    def _slots(self, average: MovingAverage | None) -> Slots:
        """AdamW's tensors and the average's, this rank's part of them."""
        used = {name: self.parameters[name] for name in self.outer if self.parameters[name].grad is not None}
        return Slots(
            local(used.values()),
            local(p.grad for p in used.values() if p.grad is not None),
            local(self.first[name] for name in used),
            local(self.second[name] for name in used),
            [] if average is None else local(average.shadow[name] for name in used),
        )

    def state(self) -> dict[str, Tensor]:
        """The moments of every parameter; the tensors are the live ones."""
        kinds = {"exp_avg": self.first, "exp_avg_sq": self.second, "velocity": self.muon.velocity}
        return {f"{name}.{kind}": t for kind, held in kinds.items() for name, t in held.items()}
