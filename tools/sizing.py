"""The tables of docs/scale/sizing.md, calculated as `scdd plan` does: `python tools/sizing.py` writes them into the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from scdd.assemble.job import Job, job_of
from scdd.assemble.machines import GIB, find
from scdd.assemble.measured import fitted, measured
from scdd.assemble.memory import memory
from scdd.assemble.pace import Pace, pace
from scdd.assemble.plan import fits
from scdd.cli.plan import large, span
from scdd.models.count import attends_at_once
from scdd.recipe.load import load

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scale" / "sizing.md"
RECIPE, GPU, VOCAB = "paper/owt-scdd-0.2", "h100", 50_258
LENGTH, TOKENS, A_STEP = 1024, 20, 1 << 21  # tokens of a row, to learn from for each parameter, of a step
SHAPES = {
    "135 M": "size: smollm2-135m",
    "360 M": "size: smollm2-360m",
    "1.1 B": "size: custom, depth: 16, width: 2048, heads: 32, kv_heads: 8, mlp_width: 8192",
    "3.1 B": "size: custom, depth: 28, width: 3072, heads: 24, kv_heads: 8, mlp_width: 8192, tied: false",
    "7.4 B": "size: custom, depth: 32, width: 4096, heads: 32, kv_heads: 8, mlp_width: 14336, tied: false",
    "10.1 B": "size: custom, depth: 36, width: 4608, heads: 36, kv_heads: 12, mlp_width: 15360, tied: false",
}
COUNTS = (1, 8, 64, 256)


def changes(shape: str) -> list[str]:
    """What a row's command sets, but for what is chosen among."""
    own = {"data.length": LENGTH, "training.batch_size": A_STEP // LENGTH, "model": f"{{kind: llama, {shape}}}"}
    return [f"{key}={value}" for key, value in own.items()]


def fastest(shape: str, gpus: int) -> tuple[Job, Pace] | None:
    """Of all ways that fit, the one with the most tokens a second."""
    first, *_ = job_of(load(RECIPE, changes(shape)), gpus, vocab=VOCAB)
    found: list[tuple[Job, Pace]] = []
    for sharing in ("none",) if gpus == 1 else ("ddp", "fsdp"):
        for recompute in (False, True):
            for micro in (1 << i for i in range(first.share.bit_length()) if first.share % (1 << i) == 0):
                training = replace(first.training, recompute=recompute, micro_batch_size=micro)
                job = replace(first, sharing=sharing, training=training)
                if fits(job, find(GPU)):
                    found.append((job, pace(job, find(GPU), fitted())))
    return max(found, key=lambda each: (round(each[1].tokens_per_second, -2), each[0].micro), default=None)


def sizes() -> Iterator[str]:
    """A row for each size and number of GPUs."""
    yield f"| parameters | GPUs | shared by | `micro_batch_size` | recompute | GiB of each GPU | tokens/s | time for {TOKENS} tokens a parameter |"
    yield "|---|---:|---|---:|---|---:|---:|---:|"
    for name, shape in SHAPES.items():
        for gpus in COUNTS:
            made = fastest(shape, gpus)
            if made is None:
                yield f"| {name} | {gpus} | does not fit | | | | | |"
                continue
            job, rate = made[0], made[1].tokens_per_second
            hours = TOKENS * job.parameters.total / rate / 3600
            again = "yes" if job.training.recompute else "no"
            yield f"| {name} | {gpus} | {job.sharing} | {job.micro} | {again} | {memory(job).needed / GIB:.0f} | {large(rate)} | {span(hours)} |"


def runs() -> Iterator[str]:
    """A row for each measured run."""
    yield "| run | GiB calculated | measured | | tokens/s calculated | measured | | without runs of its size |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for run in measured():
        training = run.job.training
        what = f"{run.size}, {training.batch_size} × {run.job.length}, {run.job.micro} at a time, {'Muon' if training.muon else 'AdamW'}"
        what += ", left to right" if run.job.shape.causal else ""
        what += ", products kept" if training.keep_products else ""
        what += "" if attends_at_once(run.job.shape, run.job.keeping) else ", torch's attention"
        held, known = memory(run.job).allocated / GIB, run.memory
        said = ("–", "") if known is None else (f"{known:.1f}", f"{held / known - 1:+.0%}")
        size = run.job.shape.depth, run.job.shape.width
        rates = [pace(run.job, run.gpu, fitted(left_out)).tokens_per_second for left_out in (None, size)]
        off = [f"{rate / run.tokens_per_second - 1:+.0%}" for rate in rates]
        yield f"| {what} | {held:.1f} | {said[0]} | {said[1]} | {large(rates[0])} | {large(run.tokens_per_second)} | {off[0]} | {off[1]} |"


def commands() -> Iterator[str]:
    """Where each of them comes from."""
    for run in measured():
        said = run.said
        yield f"- {said['date']}, `{said['command']}`: {said['where']}"


def written(text: str) -> str:
    """The page with its tables as they are calculated now."""
    for name, lines in {"sizes": sizes(), "runs": runs(), "commands": commands()}.items():
        between = f"<!-- {name} -->\n\n" + "\n".join(lines) + f"\n\n<!-- end of {name} -->"
        text, found = re.subn(
            rf"<!-- {name} -->.*?<!-- end of {name} -->", lambda _, new=between: new, text, flags=re.S
        )
        assert found == 1, name
    return text


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
