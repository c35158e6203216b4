"""Which blocks of a network matter least: what removing each costs in NELBO, and how far each turns what passes through it.

    python tools/rank_layers.py MODEL --text valid.jsonl --keep 16 [--greedy]

Prints a line for each block, and the recipe's `model.layers` for `--keep` blocks. The cost is the NELBO's rise without the
block, on `--rows` rows with the same noise every time. The angle is the mean arccos of the cosine between a block's input and its
output, in shares of π: one pass for all blocks, blind to what the loss makes of it. `--greedy` removes the cheapest block, measures
again without it, and so on: blocks that stand in for each other are then not both taken for idle.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

import torch
from torch import Tensor, nn

from scdd.evals.measure.likelihood import NelboEstimator, combined, likelihood
from scdd.evals.measure.model import open_model
from scdd.evals.measure.texts import open_stream, rows


def say(line: str) -> None:
    """A line, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Ranking:
    """A model whose blocks can be left out, and the rows that it is measured on."""

    def __init__(self, args: argparse.Namespace) -> None:
        process: Any = args.process
        model = open_model(args.model, process=process, device=args.device)
        self.lm, self.batch = model.lm, args.batch_size
        self.network: Any = model.lm.network
        self.blocks = list(self.network.blocks)
        length = min(args.length, self.lm.context)
        self.held = rows(open_stream([args.text], self.lm.tokenizer), self.lm.tokenizer, length, args.rows)
        self.estimator = NelboEstimator(None, args.looks)

    def nelbo(self, kept: list[int]) -> float:
        """Nats a token with these blocks, the same times and noise in every call."""
        self.network.blocks = nn.ModuleList(self.blocks[i] for i in kept)
        try:
            found = likelihood(self.network, self.lm.process, self.held.rows, self.estimator, batch_size=self.batch)
        finally:
            self.network.blocks = nn.ModuleList(self.blocks)
        return float(combined(found)["nats"])

    def angles(self) -> list[float]:
        """Of each block, in shares of π, over everything that `nelbo` shows the whole network."""
        sums = torch.zeros(len(self.blocks), 2, dtype=torch.float64)

        def watch(number: int) -> Any:
            def look(block: nn.Module, given: tuple[Any, ...], made: tuple[Tensor, Tensor]) -> None:
                before = given[0] if given[1] is None else given[0] + given[1]
                cosine = nn.functional.cosine_similarity(before.float(), (made[0] + made[1]).float(), dim=-1)
                angle = cosine.clamp(-1, 1).arccos() / math.pi
                sums[number] += torch.tensor([float(angle.double().sum()), angle.numel()], dtype=torch.float64)

            return look

        hooks = [block.register_forward_hook(watch(i)) for i, block in enumerate(self.blocks)]
        self.nelbo(list(range(len(self.blocks))))
        for hook in hooks:
            hook.remove()
        return [float(total / count) for total, count in sums]


def main() -> None:
    """Measure, rank, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", help="folder, run, Hub id or file of a dit or llama")
    parser.add_argument("--text", required=True, help="text file, JSON lines, folder or shards")
    parser.add_argument("--process", help="of a model that does not say its own, such as scdd:0.2")
    parser.add_argument("--keep", type=int, help="blocks to keep")
    parser.add_argument("--greedy", action="store_true", help="measure again after each removal")
    parser.add_argument("--by", choices=("cost", "angle"), default="cost", help="what --keep goes by")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--looks", type=int, default=2)
    parser.add_argument("--batch-size", type=int, help="rows at a time; default: what suits")
    parser.add_argument("--device")
    parser.add_argument("--json", metavar="FILE", help="write the results there as JSON, too")
    args = parser.parse_args()
    ranking = Ranking(args)
    every = list(range(len(ranking.blocks)))
    if args.keep is not None and not 1 <= args.keep <= len(every):
        parser.error(f"--keep {args.keep}: the model has {len(every)} blocks")
    whole, angles = ranking.nelbo(every), ranking.angles()
    costs = [ranking.nelbo([i for i in every if i != gone]) - whole for gone in every]
    say(f"{args.model}: {whole:.4f} nats a token with all {len(every)} blocks, {len(ranking.held)} rows")
    say(f"{'block':>5}{'cost, nats':>12}{'angle / π':>11}")
    for i in every:
        say(f"{i:>5}{costs[i]:>12.4f}{angles[i]:>11.4f}")
    found: dict[str, Any] = {"nats": whole, "costs": costs, "angles": angles}
    if args.keep is not None:
        found["layers"] = kept = chosen(ranking, args, costs if args.by == "cost" else angles)
        found["nats_without"] = ranking.nelbo(kept)
        say(f"{found['nats_without']:.4f} nats a token with {args.keep} blocks, not healed")
        say(f"--set 'model={{kind: pretrained, layers: {kept}}}'")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


def chosen(ranking: Ranking, args: argparse.Namespace, worth: list[float]) -> list[int]:
    """The blocks that are kept: the dearest, or what is left when the cheapest is removed again and again."""
    kept = list(range(len(worth)))
    if not args.greedy:
        return sorted(sorted(kept, key=worth.__getitem__)[len(kept) - args.keep :])
    while len(kept) > args.keep:
        without = {gone: ranking.nelbo([i for i in kept if i != gone]) for gone in kept}
        gone = min(without, key=without.__getitem__)
        kept.remove(gone)
        say(f"without {gone:>3}: {without[gone]:.4f}")
    return kept


if __name__ == "__main__":
    main()
