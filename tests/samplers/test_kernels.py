"""A step by its kernels, which Triton's interpreter runs here, is the step: launched one by one, and over the rows' own tensors as in a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from scdd.core.rng import CounterRNG
from scdd.ops.common import Filters
from scdd.processes.base import Process
from scdd.processes.noise import Noise
from scdd.processes.scdd import SCDD
from scdd.samplers import prediction, row_batch, slots
from scdd.samplers.ancestral import Ancestral
from scdd.samplers.base import Model, grid
from scdd.samplers.graphs import Replay, StepGraphs
from scdd.samplers.plan import SamplingPlan
from scdd.samplers.row_batch import RowBatch
from scdd.samplers.step import TokenRows
from scdd.schedules.peaked import Peaked

from .tables import table
from .test_graphs import Rerun, Watch
from .test_row_batch import CASES, HOW, NOISY, OTHER, VOCAB, Told, asked, model, together

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or torch.cuda.is_available(), reason="Triton's interpreter is not here, or a GPU is"
)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bookkeeping.triton", "barred.triton", "outcome.triton", "transition.triton"):
        monkeypatch.setattr(import_module(f"scdd.ops.{name}"), "BLOCK", 8)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many launches of copies each step over a shape's tensors ends with."""
    found: list[int] = []
    run, copy = slots.SlotTensors.run, torch._foreach_copy_

    def counted(*args: Any) -> None:
        found[-1] += 1
        copy(*args)

    def watched(self: Any, phases: Any) -> None:
        found.append(0)
        with monkeypatch.context() as here:
            here.setattr(torch, "_foreach_copy_", counted)
            run(self, phases)

    monkeypatch.setattr(slots.SlotTensors, "run", watched)
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_read_and_recorded_by_kernels(case: str, copies: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """All that frames show, bit by bit, of every sampler; nothing is copied at the end, unless the sampler keeps something of its own."""
    process, sampler = CASES[case]
    plain = model(process)
    for how in ("plain", "tolerance") if case == "scdd" else ("plain",):
        asks = asked(sampler, "greedy", how == "plain", heats=(0.5, 1.0, 1.7), rows_per_forward=4, **HOW[how])
        wanted = together(plain, asks, width=16)
        with monkeypatch.context() as kernels:
            kernels.setattr("scdd.ops.bookkeeping.choose", lambda impl, where: "triton")
            assert together(plain, asks, width=16) == wanted
            assert not copies
            for _ in range(2):
                assert together(replace(plain, graphs=StepGraphs(Rerun())), asks, width=16) == wanted
        keeps = bool(sampler.memory(torch.zeros((1, 1), dtype=torch.int64)))
        assert len(copies) > 10
        assert all(count > 0 if keeps else count == 0 for count in copies)
        copies.clear()


@contextmanager
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """While they step, rows on a CPU pass for a GPU's: every kernel that a GPU would launch is run, but nothing waits for a device."""

    def pretending(advance: Any) -> Any:
        def stepped(*args: Any, **how: Any) -> Any:
            with monkeypatch.context() as there:
                there.setattr(Tensor, "is_cuda", property(lambda self: True), raising=False)
                return advance(*args, **how)

        return stepped

    with monkeypatch.context() as here:
        for module in (row_batch, slots):
            here.setattr(module, "advance", pretending(module.advance))
        for name in ("head.triton", "head.triton_draw"):
            here.setattr(import_module(f"scdd.ops.{name}"), "BLOCK", 128)
        yield


def close(some: list[Told], others: list[Told]) -> bool:
    """The same texts, moves and counts; log x_θ up to what the head's kernels may differ by."""
    for one, other in zip(some, others, strict=True):
        for a, b in zip(one, other, strict=True):
            if (*a[:6], *a[7:]) != (*b[:6], *b[7:]):
                return False
            logs = [torch.tensor(each[6], dtype=torch.int32).view(torch.float32) for each in (a, b)]
            if not torch.allclose(*logs, atol=2e-5, equal_nan=True):
                return False
    return True


UNEVEN = SCDD(
    VOCAB, Peaked(p_u=0.4), Noise(VOCAB, torch.arange(1, VOCAB.K + 1).double() / (VOCAB.K * (VOCAB.K + 1) / 2))
)
KERNELS = ("bookkeeping.triton.record", "bookkeeping.triton.lookup", "barred.triton.barred", "outcome.triton.outcomes",
           "transition.triton.transition", "head.redrawn", "head.redraw")  # fmt: skip


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each was asked."""
    found: Counter[str] = Counter()

    def counted(name: str, whole: Any) -> Any:
        def asked(*args: Any, **how: Any) -> Any:
            found[name] += 1
            return whole(*args, **how)

        return asked

    for name in KERNELS:
        module, _, function = name.rpartition(".")
        place = prediction if module == "head" else import_module(f"scdd.ops.{module}")
        monkeypatch.setattr(place, function, counted(function, getattr(place, function)))
    return found


@pytest.mark.parametrize(
    ("process", "how", "final", "size"),
    [(NOISY, "plain", "ancestral", 2), (OTHER, "plain", "greedy", 1), (UNEVEN, "plain", "ancestral", 2),
     # the interpreter searches nuclei for a quarter of a minute
     pytest.param(NOISY, "tolerance", "masks-only", 2, marks=pytest.mark.slow), pytest.param(OTHER, "draws", "ancestral", 2, marks=pytest.mark.slow)],
    ids=["scdd", "gidd, groups", "noise of its own", "ends early", "draws"],
)  # fmt: skip
def test_a_whole_step_by_kernels(
    process: Process, how: str, final: str, size: int, copies: list[int], launched: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Two rows, in one group or in one each, few and short for the interpreter's sake."""
    plain = Model(table(VOCAB, spread=2.0), process)
    _, first, *_, second = asked(Ancestral(), final, heats=(0.5, 1.7), rows_per_forward=size, **HOW[how])
    asks = [replace(ask, joins=i, z=ask.z[:6], frozen=ask.frozen[:6]) for i, ask in enumerate((first, second))]
    wanted = together(plain, asks, width=6)
    assert not launched["record"]
    with on_a_gpu(monkeypatch):
        launched.clear()
        apart = together(plain, asks, width=6)
        assert close(apart, wanted)
        uniform = ("outcomes", "transition") if process.noise is None else ()
        assert all(launched[name] for name in ("record", "lookup", "barred", *uniform))
        launched.clear()
        assert together(replace(plain, graphs=StepGraphs(Rerun())), asks, width=6) == apart
        assert launched["record"] > 2
        assert launched["redrawn"], "the draws of one group are put into their places by no launch of its own"
        assert bool(launched["redraw"]) == (size == 1)
    assert len(copies) > 2
    assert not any(copies)


def test_what_is_not_the_networks_is_a_launch_each(launched: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the head's product and its two kernels: the lookup, the barred bias, the probabilities, what happens, and the record."""
    net = table(VOCAB)
    ids, seen = torch.eye(VOCAB.size), list[Counter[str]]()
    monkeypatch.setattr(net, "hidden", lambda z_t, *_: ids[z_t])

    def capture(run: Callable[[], None]) -> Replay:
        def replay() -> None:
            launched.clear()
            with Watch() as watch:
                run()
            seen.append(watch.kernels)

        return type("Again", (), {"replay": staticmethod(replay)})()

    m = replace(Model(net, NOISY), graphs=StepGraphs(capture))
    plan = SamplingPlan(Ancestral(), grid("uniform", 3), Filters(top_p=0.9), rows_per_forward=2, record=True)
    batch = RowBatch(m, plan, 6)
    batch.add(TokenRows(torch.full((2, 5), VOCAB.mask_id)), CounterRNG(0, range(2)))
    with on_a_gpu(monkeypatch), torch.no_grad():
        for _ in range(2):
            batch.step()
    [kernels] = seen
    assert kernels["index"] == 1, "the network"
    interpreters = ("index", "set_", "copy_")
    assert {name: count for name, count in kernels.items() if name not in interpreters} == {"addmm": 1}
    assert launched == Counter(("lookup", "barred", "transition", "outcomes", "redrawn", "record"))
