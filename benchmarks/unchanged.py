"""What is spared on a CPU by not evaluating rows again that did not change since the last step: evaluations, seconds, the same texts.

    python benchmarks/unchanged.py
    python benchmarks/unchanged.py --model RUN --rounds 5

Short texts in many steps, gaps and repairs change in few of their steps. Each line is done both ways in turns; seconds are medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

import scdd
from output import json_flag, write_json
from scdd.lm.model import LM

GAP = "The bridge was built [MASK:8] and is still in use today."
GAPS = "The bridge was built [MASK:4-12] and is still in use today."
NOISED = "The battle ended in 1943 when the German army surrendered piano the Soviet Union."


def lines(lm: LM) -> dict[str, Callable[[], str]]:
    """What is done, by name; each gives its text."""
    return {
        "infill, 8 tokens, 32 steps": lambda: lm.infill(GAP, steps=32, blocks=True)[0].text,
        "infill, 4 to 12 tokens, 32 steps": lambda: lm.infill(GAPS, steps=32, blocks=True)[0].text,
        "repair by 16 reverse steps": lambda: lm.correct(NOISED, mode="reverse", steps=16, blocks=True).text,
        "48 tokens, 32 steps": lambda: lm.generate(1, length=48, steps=32)[0].text,
        "48 tokens, 64 steps": lambda: lm.generate(1, length=48, steps=64)[0].text,
        "128 tokens, 32 steps": lambda: lm.generate(1, length=128, steps=32)[0].text,
        "128 tokens, 128 steps": lambda: lm.generate(1, length=128, steps=128)[0].text,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint or run folder; default: the bundled model")
    parser.add_argument("--rounds", type=int, default=3)
    json_flag(parser)
    args = parser.parse_args()
    lm = scdd.load(args.model, device="cpu")
    kind = type(lm.network)
    if not lm.network.looks_at_tokens_alone:
        raise SystemExit("This network is told the time, so no two of its evaluations are the same.")
    hidden, alone, asked = kind.hidden, kind.looks_at_tokens_alone, [0]

    def counted(network: Any, rows: Tensor, *given: Any, **more: Any) -> Tensor:
        asked[0] += len(rows)
        return hidden(network, rows, *given, **more)

    kind.hidden = counted  # type: ignore[method-assign, assignment]
    found = []
    print(f"{'':34}{'all, evaluations':>20}{'seconds':>9}{'changed, evaluations':>24}{'seconds':>9}")
    for name, run in lines(lm).items():
        texts, counts, seconds = set(), {}, {True: [], False: []}  # type: ignore[var-annotated]
        for _ in range(args.rounds):
            for again in (True, False):
                kind.looks_at_tokens_alone = False if again else alone  # type: ignore[method-assign, assignment]
                asked[0], began = 0, time.perf_counter()
                texts.add(run())
                seconds[again].append(time.perf_counter() - began)
                counts[again] = asked[0]
        if len(texts) != 1:
            raise SystemExit(f"{name}: the texts are not the same: {texts}")
        every, some = (statistics.median(seconds[again]) for again in (True, False))
        print(f"{name:34}{counts[True]:20}{every:9.2f}{counts[False]:24}{some:9.2f}", flush=True)
        rows = {"all": (counts[True], every), "changed": (counts[False], some)}
        found.append({"line": name, **{way: {"evaluations": n, "seconds": s} for way, (n, s) in rows.items()}})
    kind.hidden, kind.looks_at_tokens_alone = hidden, alone  # type: ignore[method-assign]
    write_json(args.json, found)


if __name__ == "__main__":
    main()
