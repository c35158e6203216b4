"""What limits exact recovery of random tokens: finding them, knowing their surroundings, or the network itself.

    python benchmarks/recovery_limit.py TEXT.jsonl                      # the bundled model, 25 of 254 tokens a row
    python benchmarks/recovery_limit.py SHARDS --model RUN --rows 512 --k 50

The rows and random tokens are those of `scdd eval recovery` with the same --k, --length, --num and --seed. One pass has to find the wrong tokens and
to name the right ones. Then the network is told more and more: which are wrong, and at last what stands in all other
places, each PARTS-th of the wrong tokens on its turn. Whoever asks this network for a token cannot tell it more than that.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import torch
from torch import Tensor

from output import json_flag, write_json
from scdd.core.rng import CounterRNG, derive_seed
from scdd.evals.measure import stats
from scdd.evals.measure.recovery import corrupt
from scdd.evals.measure.texts import open_stream, rows
from scdd.evals.measure.walk import framed_rows
from scdd.lm.loading import load
from scdd.lm.repair import likeliest
from scdd.ops.head import Top

TOGETHER = 4096  # tokens that are read at a time


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+", help="text file, JSON lines, folder or shards")
    parser.add_argument("--model", help="checkpoint or run folder; default: the bundled model")
    parser.add_argument("--k", type=int, default=25, help="tokens of a row that are replaced")
    parser.add_argument("--length", type=int, default=256, help="tokens of a row, its ends included")
    parser.add_argument("--num", type=int, default=256, help="rows")
    parser.add_argument("--parts", type=int, default=5, help="turns that the wrong tokens are divided among")
    parser.add_argument("--threshold", type=float, help="of the one pass; default: the model's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", help="of the arithmetic; default: the model's usual one")
    parser.add_argument("--device")
    json_flag(parser)
    return parser.parse_args()


@torch.no_grad()
def main() -> None:
    args = arguments()
    lm = load(args.model, device=args.device, dtype=args.dtype)
    own, threshold = lm.tokenizer, args.threshold or lm.repair.threshold
    texts = rows(open_stream(args.text, own), own, args.length, args.num, whole=True).rows
    clean, frame, numbers = framed_rows(texts, range(len(texts)), lm.device)
    source = CounterRNG(derive_seed(args.seed, f"recovery {args.k}"), numbers, lm.device)
    noisy, wrong = corrupt(clean, args.k, own.vocab, source, frame)
    turn = torch.where(wrong, wrong.cumsum(1) % args.parts, args.parts)

    def read(z: Tensor) -> Top:
        step = max(1, TOGETHER // args.length)
        parts = [likeliest(lm.engine.model, part, lm.repair.strength) for part in z.split(step)]
        return Top(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def in_turns(row_at: Callable[[Tensor], Tensor]) -> Tensor:
        """The likeliest tokens, each read when it was its turn; `row_at` says what stands in the rows then."""
        named = clean
        for part in range(args.parts):
            here = turn == part
            named = torch.where(here, read(row_at(here)).tokens[..., 0], named)
        return named

    best = read(noisy)
    guessed, masked = torch.where(wrong, best.tokens[..., 0], clean), clean.masked_fill(wrong, own.mask_id)
    found = (best.log_p_z < best.log_p[..., 0] + math.log(threshold)) & ~frame

    def in_two(open_: Tensor, row: Tensor) -> Tensor:
        """The surer half of the tokens named by the first look, the others masked and named by a second one."""
        order = best.log_p[..., 0].masked_fill(~open_, -math.inf).argsort(1, descending=True).argsort(1)
        later = open_ & (2 * order >= open_.sum(1, keepdim=True))
        named = torch.where(open_, best.tokens[..., 0], row)
        return torch.where(later, read(named.masked_fill(later, own.mask_id)).tokens[..., 0], named)

    ways = {
        f"one pass, threshold {threshold:g}": torch.where(found, best.tokens[..., 0], noisy),
        "… two looks, the surer half first": in_two(found, noisy),
        "told which are wrong": guessed,
        "… told, two looks, the surer half first": in_two(wrong, clean),
        "… and these masked": torch.where(wrong, read(masked).tokens[..., 0], clean),
        f"… {args.parts} turns, others as guessed": in_turns(lambda here: guessed.masked_fill(here, own.mask_id)),
        f"… {args.parts} turns, all others right": in_turns(lambda here: torch.where(here, noisy, clean)),
        f"… {args.parts} turns, others right, masked": in_turns(lambda here: clean.masked_fill(here, own.mask_id)),
    }
    print(f"{len(clean)} rows of {args.length}, {args.k} tokens of each replaced by random ones")
    told = []
    for name, repaired in ways.items():
        right = stats.ratio(((repaired == clean) & wrong).sum(1).tolist(), wrong.sum(1).tolist())
        harmed = stats.ratio(((repaired != clean) & ~wrong).sum(1).tolist(), (~wrong & ~frame).sum(1).tolist())
        print(f"  {name:40} recovered {right.value:.3f} ± {right.error:.3f}   damaged {harmed.value:.4f}")
        told.append({"way": name, "recovered": right.value, "error": right.error, "damaged": harmed.value})
    write_json(args.json, told)


if __name__ == "__main__":
    main()
