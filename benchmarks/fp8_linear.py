"""The matrix products of one block, forward and backward: bfloat16 beside FP8, with casts; then products and casts alone.

python benchmarks/fp8_linear.py --json fp8.json
python benchmarks/fp8_linear.py --networks dit-1024,dit-2048 --seconds 300

The first three lines of a network are compiled, from float32 weights. The others are the same work in its parts, replayed as CUDA
graphs (their peak of memory is that of all pools): what the products would take if casts were free, and what the casts take.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from common import Result, matmul_rate, measure, parser, report, result
from scdd.ops import fp8

Sizes = tuple[tuple[int, int, bool], ...]  # (inputs, outputs, whether there is a bias) of each map


def dit(width: int) -> Sizes:
    """Queries, keys and values; out; the MLP's two."""
    return (width, 3 * width, False), (width, width, False), (width, 4 * width, True), (4 * width, width, True)


NETWORKS: dict[str, Sizes] = {
    "dit-768": dit(768),
    "dit-1024": dit(1024),
    "dit-2048": dit(2048),
    "smollm2-576": ((576, 960, False), (576, 576, False), (576, 3072, False), (1536, 576, False)),
    "nano": dit(32),
}


class Map(NamedTuple):
    """One linear map with its input and the gradient of its output."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    d: Tensor

    @property
    def leaves(self) -> list[Tensor]:
        """What gradients are taken of."""
        return [t for t in (self.x, self.weight, self.bias) if t is not None]


def maps(sizes: Sizes, tokens: int, device: str) -> list[Map]:
    """Activations and gradients in bfloat16, weights in float32, as in training."""
    made = []
    for inputs, outputs, biased in sizes:
        x, d = (torch.randn(tokens, n, device=device).bfloat16() for n in (inputs, outputs))
        weight, bias = torch.randn(outputs, inputs, device=device) * inputs**-0.5, torch.randn(outputs, device=device)
        given = Map(x, weight, bias if biased else None, d * 1e-3)
        for leaf in given.leaves:
            leaf.requires_grad_()
        made.append(given)
    return made


def trained(given: list[Map], linear: Callable[..., Tensor], compiled: bool) -> Callable[[], tuple[Tensor, ...]]:
    """Forward and backward of all maps: the outputs, then the gradients."""

    def forward(tensors: list[tuple[Tensor, Tensor, Tensor | None]]) -> list[Tensor]:
        return [linear(*each) for each in tensors]

    if compiled:
        torch._dynamo.reset()
        forward = torch.compile(forward, fullgraph=True, dynamic=False)
    tensors, leaves = [each[:3] for each in given], [leaf for each in given for leaf in each.leaves]

    def work() -> tuple[Tensor, ...]:
        with torch.autocast(given[0].x.device.type, torch.bfloat16):
            outputs = forward(tensors)
        return (*outputs, *torch.autograd.grad(outputs, leaves, [each.d for each in given]))

    return work


def parts(given: list[Map], device: str) -> dict[str, Callable[[], None]]:
    """The three products of all maps without casts, and the casts without products."""
    if device == "cuda":
        from scdd.ops.fp8 import triton as part
    else:
        from scdd.ops.fp8 import reference as part  # type: ignore[no-redef]
    wide = [(m.x.detach(), m.weight.detach().bfloat16(), m.d) for m in given]
    masters = [m.weight.detach() for m in given]

    def casts(both: bool) -> list[tuple[fp8.Narrow, ...]]:
        return [
            (
                part.narrowed(x, fp8.FORWARD, both),
                part.narrowed(weight, fp8.FORWARD, True),
                part.narrowed(d, fp8.GRADIENTS, both),
            )
            for (x, _, d), weight in zip(wide, masters, strict=True)
        ]

    ready = casts(True)

    def plain() -> None:
        for x, w, d in wide:
            x @ w.T, d @ w, d.T @ x

    def narrow(fast: tuple[bool, bool, bool]) -> None:
        for x, w, d in ready:
            part.product(x, w, None, torch.bfloat16, fast[0])
            part.product(d, turned(w), None, torch.bfloat16, fast[1])
            part.product(turned(d), turned(x), None, torch.bfloat16, fast[2])

    return {
        "products alone, bf16": plain,
        "products alone, FP8": partial(narrow, fp8.FAST),
        "products alone, FP8, float32 sums": partial(narrow, (False, False, False)),
        "products alone, FP8, fast sums": partial(narrow, (True, True, True)),
        "casts alone": partial(casts, True),
        "casts alone, for dW in bf16": partial(casts, False),
    }


def turned(matrix: fp8.Narrow) -> fp8.Narrow:
    """Its transpose."""
    assert matrix.turned is not None
    return fp8.Narrow(matrix.turned, matrix.codes, matrix.step)


def replayed(work: Callable[[], object], device: str) -> Callable[[], object]:
    """The same as a CUDA graph: these kernels are over before Python launches the next."""
    if device == "cpu":
        return work
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


class Table:
    """Measures while there is time, prints each line at once, and outlives what fails."""

    def __init__(self, args: Any) -> None:
        self.args, self.began, self.lines = args, time.perf_counter(), list[Result]()
        self.failed: list[str] = []
        self.rate = matmul_rate() if args.device == "cuda" else None

    def attempt(self, name: str, make: Callable[[], Callable[[], object]], flops: float | None, base: str) -> None:
        """One line, beside the line called `base`."""
        spent = time.perf_counter() - self.began
        if spent > self.args.seconds:
            print(f"{name:44} left out: {spent:.0f} s are over", flush=True)
            return
        with self.outliving(name):
            timing = measure(make(), self.args.device, self.args.repeats)
            self._show(result(name, timing, self.args.tokens, flops, self.rate), base)

    @contextmanager
    def outliving(self, name: str) -> Iterator[None]:
        """What fails is named, and the others are still worth having."""
        try:
            yield
        except Exception:
            traceback.print_exc(limit=6, file=sys.stderr)
            self.failed.append(name)
            print(f"{name:44} failed", flush=True)

    def _show(self, line: Result, base: str) -> None:
        self.lines.append(line)
        beside = next((each.median_ms for each in self.lines if each.name == base), None)
        ratio = "" if beside is None or base == line.name else f"{beside / line.median_ms:8.2f} × bf16's speed"
        spent = time.perf_counter() - self.began
        print(f"{line.name:44}{line.median_ms:10.3f} ms{ratio:24}  (after {spent:.1f} s)", flush=True)


def errors(name: str, exact: tuple[Tensor, ...], found: tuple[Tensor, ...]) -> None:
    """Print how far FP8 is from bfloat16, in norm, in the worst of the outputs and gradients: a few hundredths, or it is wrong."""
    far = [((a - b).float().norm() / b.float().norm()).item() for a, b in zip(found, exact, strict=True)]
    print(f"{name:44}{max(far):10.4f} from bf16", flush=True)


def one_network(table: Table, name: str) -> None:
    """All lines of one network."""
    args, sizes = table.args, NETWORKS[name]
    given, compiled = maps(sizes, args.tokens, args.device), args.device == "cuda" and not args.eager
    flops = 6.0 * args.tokens * sum(inputs * outputs for inputs, outputs, _ in sizes)
    ways = {"bf16": F.linear, "FP8": fp8.linear, "FP8, dW in bf16": partial(fp8.linear, wgrad="bf16")}
    works: dict[str, Callable[[], tuple[Tensor, ...]]] = {}

    def start(way: str) -> Callable[[], object]:
        works[way] = trained(given, ways[way], compiled)
        return works[way]

    for way in ways:
        table.attempt(f"{name}: {way}", partial(start, way), flops, f"{name}: bf16")
        if way != "bf16" and way in works and f"{name}: {way}" not in table.failed:
            with table.outliving(f"{name}: {way}, its errors"):
                errors(f"{name}: {way}", trained(given, F.linear, False)(), works[way]())
    for way, work in parts(given, args.device).items():
        product = flops if "product" in way else None
        base = f"{name}: products alone, bf16" if product else ""
        table.attempt(f"{name}: {way}", partial(replayed, work, args.device), product, base)


def main() -> None:
    """Every network in one run."""
    args = parser(__doc__)
    args.add_argument("--networks", default="dit-1024,dit-768,dit-2048,smollm2-576", help=", ".join(NETWORKS))
    args.add_argument("--tokens", type=int, default=16_384)
    args.add_argument("--eager", action="store_true", help="compile nothing")
    args.add_argument("--seconds", type=float, default=50.0, help="begin no measurement after so many")
    args = args.parse_args()
    torch.manual_seed(0)
    table = Table(args)
    for name in args.networks.split(","):
        with table.outliving(name):
            one_network(table, name)
    report(
        f"a block's products, forward and backward, {args.tokens} tokens, {args.device}",
        table.lines,
        args.json,
        matmul_tflops=None if table.rate is None else round(table.rate / 1e12),
        failed=table.failed,
    )


if __name__ == "__main__":
    main()
