"""A self-contained HTML page: data, styles and script in one file, and nothing fetched from anywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from scdd.core.errors import UserError
from scdd.data.tokenizer import TextTokenizer

if TYPE_CHECKING:
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
    ids = {i for *_, one in recorded for i in [*one.start.tolist(), *one.tokens.flatten().tolist()]}
    data = {
        "title": title,
        "mask": tokenizer.mask_id,
        "tokens": {i: tokenizer.token(i) for i in sorted(ids)},
        "samples": [{"label": name, **_facts(sample), **_frames(one)} for name, sample, one in recorded],
    }
    template = files("scdd.trace").joinpath("template.html").read_text(encoding="utf-8")
    return template.replace(MARK, in_script(data))


def in_script(data: Any) -> str:
    """JSON for the inside of a script element; any page with data in it takes it from here.

    `</script` would end the element there, and `<!--<script` keep it from ending at all: no < may stay.
    """
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def player(sample: Sample | Correction, tokenizer: TextTokenizer, title: str = "", height: int = 620) -> str:
    """The page of one recorded sample as an HTML fragment, `height` pixels high, for a notebook's cell."""
    if sample.trajectory is None:
        raise UserError("There is nothing to play: the sample's steps were not recorded.")
    content = escape(page([sample], tokenizer, title))
    return (
        f'<iframe srcdoc="{content}" sandbox="allow-scripts" title="a sample, step by step" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )


def _facts(sample: Sample | Correction) -> dict[str, Any]:
    names = ("sampler", "process", "final", "seed", "steps", "nfe")
    return {name: getattr(sample, name) for name in names} | {"index": getattr(sample, "index", 0)}


def _frames(trajectory: Trajectory) -> dict[str, Any]:
    """Tokens as differences to the frame before; x_θ in thousandths, −1 where it is not known."""
    before = trajectory.start
    frames = []
    for f, moment in enumerate(trajectory.moments):
        now = trajectory.tokens[f]
        changed = (now != before).nonzero()[:, 0]
        p = (trajectory.log_p[f].double().exp() * 1000).round().nan_to_num(-1.0).long().tolist()
        moves = [[int(i), int(now[i]), int(trajectory.moved[f, i])] for i in changed]
        frames.append({"step": moment.step, "t": round(moment.t, 6), "s": round(moment.s, 6), "moves": moves, "p": p})
        before = now
    return {"start": trajectory.start.tolist(), "frames": frames}
