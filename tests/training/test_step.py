"""One training step: nothing in it waits for the device, and the optimiser is the paper's."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from scdd.assemble import training as build
from scdd.objectives.diffusion import DiffusionObjective
from scdd.recipe.load import load
from scdd.training.log import Lines, Log, Terminal, describe
from scdd.training.optim import Optimiser
from scdd.training.options import OptimiserOptions
from scdd.training.parallel import World

WAITING = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique")


class Asked(TorchDispatchMode):
    """Notes every operation whose result the host must wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.split(".")[-1]
        if name in WAITING or (name == "index" and any(t.dtype == torch.bool for t in args[1] if t is not None)):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "aim",
    [
        "{kind: elbo, steps: 1000, times: {kind: uniform}}",
        "{kind: elbo, steps: null, times: {kind: adaptive}}",
        "{kind: elbo, steps: null, times: {kind: importance}}",
        "{kind: elbo, steps: null, weighting: dynamic, times: {kind: low-discrepancy}}",
    ],
)
def test_a_step_never_waits_for_the_device(aim: str, recipe_file: Path, tmp_path: Path) -> None:
    spec = load(recipe_file, [f"objective={aim}"])
    trainer = build.trainer(spec, tmp_path / "run", World(), build.corpus(spec))
    assert isinstance(trainer.objective, DiffusionObjective)
    trainer.objective.impl = "reference"  # the CPU's own op looks at its rows; on a GPU Triton's stands there
    batches = iter(trainer.loader)
    trainer.advance(next(batches))
    batch = next(batches)
    with Asked() as asked:
        trainer.advance(batch)
    assert asked.found == []
    with Asked() as asked:
        float(trainer.norm)
    assert asked.found, "the detector must see a sync where there is one"


def test_bfloat16_is_for_activations_only(recipe_file: Path, tmp_path: Path) -> None:
    """Weights, moments and averages stay float32: updates of 1e-4 of a weight would vanish in eight bits of mantissa."""
    spec = load(recipe_file, ["training.precision=bf16"])
    trainer = build.trainer(spec, tmp_path / "run", World(), build.corpus(spec))
    seen = []
    block = trainer.module.network.blocks[0]  # type: ignore[union-attr, index]
    block.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].dtype))
    trainer.advance(next(iter(trainer.loader)))
    assert trainer.average is not None
    held = [*trainer.module.parameters(), *trainer.optimiser.state().values(), *trainer.average.shadow.values()]
    assert {tensor.dtype for tensor in held} == {torch.float32}
    assert torch.bfloat16 in seen, "or nothing was tested"


def test_the_learning_rate_rises_linearly_and_falls_as_a_cosine_to_a_tenth() -> None:
    paper = Optimiser([], OptimiserOptions(steps=100_000))
    assert paper.learning_rate_at(0) == 1e-6
    assert paper.learning_rate_at(5_000) == pytest.approx((1e-6 + 5e-4) / 2, rel=1e-3)
    assert paper.learning_rate_at(10_000) == pytest.approx(5e-4)
    assert paper.learning_rate_at(55_000) == pytest.approx((5e-4 + 5e-5) / 2)
    assert paper.learning_rate_at(100_000) == pytest.approx(5e-5)
    assert paper.learning_rate_at(200_000) == pytest.approx(5e-5)
    assert Optimiser([], OptimiserOptions(steps=5, warmup_steps=0)).learning_rate_at(0) == 5e-4


def test_an_update_is_adamw_with_clipping_and_decay_on_everything() -> None:
    """Against the formulas, for a weight and a bias; the gradient's norm is 5 and is cut to 1."""
    module = nn.Linear(1, 1)
    with torch.no_grad():
        module.weight.fill_(2.0)
        module.bias.fill_(-1.0)
    options = OptimiserOptions(steps=10, warmup_steps=0, learning_rate=0.1)
    adamw = Optimiser(module.named_parameters(), options)
    module.weight.grad, module.bias.grad = torch.full((1, 1), 3.0), torch.full((1,), -4.0)
    norm = adamw.update_and_average(0)
    assert float(norm) == pytest.approx(5.0)
    for p, before, gradient in ((module.weight, 2.0, 0.6), (module.bias, -1.0, -0.8)):
        moved = 0.1 * gradient / (math.sqrt(gradient**2) + 1e-9)
        assert p.item() == pytest.approx(before * (1 - 0.1 * 0.02) - moved, rel=1e-5)
        assert p.grad is None


def test_kept_gradients_are_those_of_a_backward_pass() -> None:
    """Of each of three steps: two passes, of which one leaves a layer out; a pass alone; two passes that never reach the last layer."""
    module, beside = (nn.ModuleList((nn.Linear(3, 2), nn.Linear(2, 1))) for _ in range(2))
    beside.load_state_dict(module.state_dict())
    options = OptimiserOptions(steps=10)
    kept, plain = (Optimiser(of.named_parameters(), options, keep_gradients=of is module) for of in (module, beside))
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))

    def whole(layers: nn.ModuleList) -> torch.Tensor:
        return layers[1](layers[0](x).tanh()).sum()

    def half(layers: nn.ModuleList) -> torch.Tensor:
        return layers[0](x * 2).square().sum()

    for step, passes in enumerate(((whole, half), (whole,), (half, half))):
        for loss in passes:
            kept.take_gradients(loss(module), alone=len(passes) == 1)
            plain.take_gradients(loss(beside))
        for p, q in zip(module.parameters(), beside.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            assert p.grad is None or (torch.equal(p.grad, q.grad) and p.grad.any())
        assert torch.equal(kept.update_and_average(step), plain.update_and_average(step))
        for p, q in zip(module.parameters(), beside.parameters(), strict=True):
            assert p.grad is None
            assert torch.equal(p, q)


def test_gradients_of_several_passes_outlive_what_the_passes_wrote() -> None:
    """A replayed pass writes its gradients to the same places again; one that is alone lends them, and nothing is copied."""
    weight = nn.Parameter(torch.zeros(3))
    optimiser = Optimiser([("weight", weight)], OptimiserOptions(steps=10), keep_gradients=True)
    place = torch.zeros(3)  # where every pass writes

    class Replayed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: torch.Tensor, value: float) -> torch.Tensor:
            ctx.value = value
            return weight.sum()

        @staticmethod
        def backward(ctx: Any, d: torch.Tensor) -> tuple[torch.Tensor, None]:
            return place.fill_(ctx.value), None

    def take(value: float, alone: bool) -> torch.Tensor:
        optimiser.take_gradients(Replayed.apply(weight, value), alone=alone)
        assert weight.grad is not None
        return weight.grad

    take(1.0, alone=False)
    held = take(2.0, alone=False)
    assert held.tolist() == [3.0] * 3
    optimiser.update_and_average(0)
    assert take(4.0, alone=True).data_ptr() == place.data_ptr()
    optimiser.update_and_average(1)
    assert take(5.0, alone=False).data_ptr() == held.data_ptr()
    assert weight.grad is not None
    assert weight.grad.tolist() == [5.0] * 3


def test_gradients_that_two_parameters_share_are_lent_once() -> None:
    """Muon scales gradients in place."""
    parts = {name: nn.Parameter(torch.eye(2)) for name in ("a", "b", "c")}
    optimiser = Optimiser(parts.items(), OptimiserOptions(steps=10), keep_gradients=True)
    d = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    optimiser.take_gradients(((parts["a"] + parts["b"]) * d).sum() + (parts["c"].T * d).sum(), alone=True)
    given = [p.grad for p in parts.values() if p.grad is not None]
    assert len({each.untyped_storage().data_ptr() for each in given}) == 3
    assert all(each.is_contiguous() for each in given)
    assert [each.tolist() for each in given] == [d.tolist(), d.tolist(), d.T.tolist()]


def test_a_terminal_shows_a_live_line_and_a_pipe_plain_ones(capsys: pytest.CaptureFixture[str]) -> None:
    values = {
        "loss": 3.5,
        "error": 0.01,
        "learning_rate": 1e-3,
        "tokens_per_second": 2.5e6,
        "eta": 3723.0,
        "memory": 3 * 2.0**30,
    }
    line = describe(values)
    for said in ("loss 3.5", "± 0.01", "1.00e-03", "2,500", "tokens/s", "1:02:03", "3.0 GiB"):
        assert said in line
    log = Log(Terminal(200, live=False))
    log.numbers(50, values)
    log.numbers(50, {"valid_nelbo": 4.0, "valid_error": 0.1, "valid_ppl": 54.6, "valid_ppl_error": 5.46})
    log.text(50, "sample", "[MASK] stays as it is")
    log.close()
    said = capsys.readouterr().out
    assert re.search(r"50/200\s+train loss 3\.5", said)
    assert "PPL 54.60 ± 5.46" in said
    assert "[MASK] stays as it is" in said
    live = Log(Terminal(200, live=True))
    live.numbers(50, values)
    live.close()
    assert "50/200" in capsys.readouterr().out


def test_resuming_drops_the_lines_that_will_be_written_again(tmp_path: Path) -> None:
    first = Lines(tmp_path)
    for step in (10, 20, 30):
        first.numbers(step, {"loss": float(step)})
    first.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "lo')  # killed while writing
    again = Lines(tmp_path, step=20)
    again.numbers(30, {"loss": 31.0})
    again.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(10, 10.0), (20, 20.0), (30, 31.0)]
