"""What `correct` is worth to writers: their errors, or errors made in clean text, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from scdd.evals.measure.edit_scores import scores
from scdd.evals.measure.model import EvalModel
from scdd.evals.measure.pairs import Pairs
from scdd.evals.measure.store import MeasureContext, Measurement, fingerprint, shared
from scdd.lm.edits import grammar
from scdd.lm.edits.channel import usual_channel
from scdd.lm.edits.lexicon import english

SHOWN = 4  # repairs kept in a measurement for the report


@dataclass(frozen=True)
class RepairSpec:
    """How sentences are repaired: what is chosen otherwise than the model has it, as for `LM.correct`."""

    changes: dict[str, Any] = field(default_factory=dict)
    seed: int = 0


def measure_repair(context: MeasureContext, model: EvalModel, pairs: Pairs, spec: RepairSpec) -> Measurement:
    """Repair every sentence and compare it with its references."""
    options = model.lm.to_repair("A text.", spec.changes).options  # a mistake is heard before anything is measured

    def repaired(own: Sequence[str], mine: range) -> list[tuple[str, int]]:
        done = []
        for text in own:
            correction = model.lm.correct(text, seed=spec.seed, blocks=True, **spec.changes)
            done.append((correction.text, correction.nfe))
            context.watch(1)
        return done

    def run() -> dict[str, Any]:
        every = shared(pairs.sources, repaired, context.world)
        texts = [text for text, _ in every]
        changed = [(a, b) for a, b in zip(pairs.sources, texts, strict=True) if a != b]
        return {
            **scores(pairs.sources, texts, pairs.references, spec.seed),
            "nfe": sum(nfe for _, nfe in every) / len(every),
            "samples": [{"corrupted": a, "repaired": b} for a, b in changed[:SHOWN]],
        }

    settings = {"text": fingerprint([pairs.sources, pairs.references]), "seed": spec.seed, **asdict(options)}
    if options.mode == "edit":
        settings["channel"] = fingerprint((model.lm.channel or usual_channel()).json())
        settings["candidates"] = fingerprint(
            [grammar.SETS, sorted(grammar.DELETED), grammar.INSERTED, english().counts]
        )
    return context.store.measurement("repair", model, settings, run, pairs.name)
