"""The paper's tables as data, and which of its systems one of ours is."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from scdd.evals.subject import EvalModel
from scdd.recipe.load import parse
from scdd.schedules.peaked import Peaked

ASSETS = Path(__file__).parent / "assets"
CORPORA = ("LM1B", "OWT")
PAPERS_ETA = 0.01  # of ReMDM-cap


@cache
def paper() -> dict[str, Any]:
    """The paper's tables, by label."""
    found: dict[str, Any] = parse((ASSETS / "paper.yaml").read_text(encoding="utf-8"))
    return found


def printed(table: str, name: str | None, corpus: str, steps: int) -> str | None:
    """The number that a table of systems by steps holds; None where the paper has none."""
    found = paper()[table]
    values = found["rows"].get(name or "", {}).get(corpus)
    known = found["steps"].get(corpus, [])
    return f"{values[known.index(steps)]:g}" if values and steps in known else None


def paper_name(subject: EvalModel, sampler: str | None, options: dict[str, Any] | None = None) -> str | None:
    """The system of the paper that this one is; None for one that the paper does not have.

    `options` are the sampler's settings, the paper's if they are not given.
    """
    process = subject.process
    if sampler == "remdm-cap" and (options or {}).get("eta", PAPERS_ETA) != PAPERS_ETA:
        return None
    kind = type(process).__name__
    if kind == "MDLM":
        return {
            None: "MDLM",
            "ancestral": "MDLM",
            "remdm-cap": "ReMDM-Cap 0.01",
            "remdm-conf": "ReMDM-Confidence",
        }.get(sampler)
    schedule = getattr(process, "schedule", None)
    if sampler not in (None, "ancestral") or not isinstance(schedule, Peaked):
        return None
    prefix = {"SCDD": "SCDD", "GIDD": "GIDD+"}.get(kind)
    return None if prefix is None else f"{prefix} (p_u={schedule.p_u:g})"
