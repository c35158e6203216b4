"""How noisy a reported NELBO is: ours against the authors' convention, at the same number of network evaluations.

    python benchmarks/nelbo_variance.py CHECKPOINT --text FILE --rows 32 --repeats 40

Both estimate a text's bound from `--looks` evaluations a row. Ours keeps the constants, draws times by importance over all
of the grid and divides them evenly; the authors' convention takes the cross-entropies of `eq:loss_zt` at uniform i ≥ 2.
The ratio of their variances over repeated runs is how many more evaluations the authors' convention needs for the same
error, on top of not being the bound. Two variants between the two tell what the constants and the times are worth.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch

from output import json_flag, write_json
from scdd.core.rng import CounterRNG, derive_seed, uniforms
from scdd.evals.measure import likelihood as estimate
from scdd.evals.measure.likelihood import NelboEstimator, combined, likelihood
from scdd.evals.measure.model import open_model
from scdd.evals.measure.texts import open_stream, rows
from scdd.objectives.times import Times
from scdd.processes.base import Process


def uniform_times(process: Process, indices: list[int], estimator: NelboEstimator, device: torch.device) -> list[Times]:
    """Independent uniform i = 1 … T: the exact bound, constants kept, with the authors' spread of times."""
    assert estimator.steps is not None
    drawn = uniforms((len(indices), estimator.looks), CounterRNG(derive_seed(estimator.seed, "times"), indices, device))
    before = (drawn * estimator.steps).floor()
    weight = torch.full((len(indices),), float(estimator.steps), dtype=torch.float64, device=device)
    return [Times((b + 1) / estimator.steps, b / estimator.steps, weight) for b in before.unbind(1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("checkpoint", nargs="?", help="checkpoint or run folder; default: the bundled model")
    parser.add_argument("--text", action="append", required=True, help="text file, JSON lines, folder or shards")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--looks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1000, help="T of the grid")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default=None)
    json_flag(parser)
    args = parser.parse_args()
    lm = open_model(args.checkpoint, device=args.device).lm
    if lm.engine.autoregressive:
        parser.error("an autoregressive likelihood is exact: give a diffusion model")
    held = rows(open_stream(args.text, lm.tokenizer), lm.tokenizer, lm.context, args.rows)
    ours = estimate._times

    def runs(convention: str, times: Callable[..., object]) -> tuple[np.ndarray, float]:
        """(Estimates over the repeats, root mean square of the errors that they state)."""
        estimate._times = times  # type: ignore[assignment]
        found = []
        for seed in range(args.repeats):
            estimator = NelboEstimator(args.steps, args.looks, convention, seed)  # type: ignore[arg-type]
            nats = likelihood(lm.network, lm.process, held.rows, estimator, batch_size=args.batch_size)
            found.append(combined(nats))
        estimate._times = ours
        return np.array([f["nats"] for f in found]), float(np.mean([f["error"] ** 2 for f in found]) ** 0.5)

    variants = {
        "authors' convention (cross-entropies, uniform i >= 2)": runs("authors", ours),
        "exact bound, uniform independent i": runs("ours", uniform_times),
        "ours (exact bound, importance-sampled, divided evenly)": runs("ours", ours),
    }
    least = variants["ours (exact bound, importance-sampled, divided evenly)"][0].var(ddof=1)
    print(
        f"{len(held)} rows of {lm.context}, T = {args.steps}, {args.looks} looks a row, {args.repeats} runs, {lm.process}"
    )
    print(f"{'':56}{'nats/token':>12}{'sd of a run':>13}{'error stated':>14}{'variance ratio':>16}")
    results = {}
    for name, (values, stated) in variants.items():
        ratio = values.var(ddof=1) / least
        results[name] = {"nats": values.mean(), "sd": values.std(ddof=1), "stated": stated, "ratio": ratio}
        print(f"{name:56}{values.mean():12.4f}{values.std(ddof=1):13.4f}{stated:14.4f}{ratio:16.1f}")
    write_json(args.json, results)


if __name__ == "__main__":
    main()
