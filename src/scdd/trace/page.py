"""A self-contained HTML page: data, styles and script in one file, and nothing fetched from anywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from scdd.data.tokenizer import TextTokenizer
from scdd.lm.results import Correction, Sample, Trajectory

MARK = "/*DATA*/null"


def page(
    samples: Sequence[Sample | Correction], tokenizer: TextTokenizer, title: str, labels: Sequence[str] = ()
) -> str:
    """The page for samples that were recorded; unless `labels` names them, they go by their numbers."""
    names = labels or [f"sample {getattr(sample, 'index', 0)}" for sample in samples]
    recorded = [
        (name, sample, sample.trajectory)
        for name, sample in zip(names, samples, strict=True)
        if sample.trajectory is not None
    ]
    ids = sorted({i for *_, way in recorded for i in [*way.start.tolist(), *way.tokens.flatten().tolist()]})
    data = {
        "title": title,
        "mask": tokenizer.mask_id,
        "tokens": {i: tokenizer.token(i) for i in ids},
        "samples": [{"label": name, **_facts(sample), **_frames(way)} for name, sample, way in recorded],
    }
    # "</" inside a script element would end it
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    template = files("scdd.trace").joinpath("template.html").read_text(encoding="utf-8")
    return template.replace(MARK, text)


def _facts(sample: Sample | Correction) -> dict[str, Any]:
    names = ("sampler", "process", "final", "seed", "steps", "nfe")
    return {name: getattr(sample, name) for name in names} | {"index": getattr(sample, "index", 0)}


def _frames(way: Trajectory) -> dict[str, Any]:
    """Tokens as differences to the frame before; x_θ in thousandths, −1 where it is not known."""
    before = way.start
    frames = []
    for f, moment in enumerate(way.moments):
        now = way.tokens[f]
        changed = (now != before).nonzero()[:, 0]
        p = (way.log_p[f].double().exp() * 1000).round().nan_to_num(-1.0).long().tolist()
        moves = [[int(i), int(now[i]), int(way.moved[f, i])] for i in changed]
        frames.append(
            {"step": moment.step, "t": round(moment.t, 6), "s": round(moment.s, 6), "moves": moves, "p": p}
        )
        before = now
    return {"start": way.start.tolist(), "frames": frames}
