"""Corrections: a perfect denoiser makes the intrinsic ones and no others, and the ablation makes none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scdd.core import UserError, Vocab
from scdd.evals.measure.generation import (
    cumulative,
    draw,
    ended,
    measure_correction,
    measure_generation,
    measure_samples,
    rates,
)
from scdd.evals.measure.model import EvalModel, open_model
from scdd.evals.measure.reference_lm import OwnReferenceLM
from scdd.evals.measure.specs import SamplingSpec
from scdd.evals.measure.store import MeasureContext, Measurement, Store
from scdd.evals.measure.walk import Uncorrected, WalkedRow, sampling_plan, walk
from scdd.processes.base import Process
from scdd.processes.gidd import GIDD
from scdd.processes.scdd import SCDD
from scdd.reproduce.claims import entropy_of
from scdd.samplers.ancestral import Ancestral
from scdd.samplers.base import Model, grid
from scdd.samplers.plan import SamplingPlan
from scdd.schedules.peaked import Peaked
from tests import tiny
from tests.evals.worlds import free_rows
from tests.samplers.tables import Truth, table

VOCAB = Vocab(9, 8)


def columns(walked: list[WalkedRow]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[int, ...]]:
    tokens, first, moves, nfe = zip(*walked, strict=True)
    return torch.tensor(tokens), torch.tensor(first), torch.stack(moves), nfe


@pytest.mark.parametrize("kind", [SCDD, GIDD])
def test_a_perfect_denoiser_corrects_at_the_intrinsic_rate(kind: type[Process]) -> None:
    process = kind(VOCAB, Peaked(0.3))
    x = torch.arange(40) % VOCAB.K
    settings = SamplingPlan(Ancestral(), grid("uniform", 12), batch_size=100, rows_per_forward=100)
    z = torch.full((200, 40), VOCAB.mask_id)
    tokens, _, moves, nfe = columns(walk(Model(Truth(x, VOCAB), process), settings, free_rows(z)))
    assert (tokens == x).all()
    assert set(nfe) == {12}
    found = rates(moves, 40, process, settings.times)
    assert abs(found["excess"]) < 4 * found["rate_error"]
    assert found["rate"] > 0.1, "or the comparison says nothing"
    assert found["rate_per_step"] == pytest.approx(found["rate"] / 12)
    assert abs(found["remasked"] - found["intrinsic_remasked"]) < 4 * found["remasked_error"] + 1e-12
    assert found["cumulative"][-1] == pytest.approx(1.0)
    drift = max(abs(a - b) for a, b in zip(found["cumulative"], found["intrinsic_cumulative"], strict=True))
    assert drift < 0.05


def test_without_correction_visible_tokens_stay() -> None:
    process = SCDD(VOCAB, Peaked(0.3))
    settings = SamplingPlan(Uncorrected(Ancestral()), grid("uniform", 8), batch_size=50, rows_per_forward=50)
    z = torch.full((50, 20), VOCAB.mask_id)
    z[:, 3] = 5
    tokens, first, moves, _ = columns(walk(Model(table(VOCAB), process), settings, free_rows(z)))
    assert (tokens != VOCAB.mask_id).all()
    assert (tokens[:, 3] == 5).all()
    assert moves[..., 1].sum() == 0
    assert moves[..., 2].sum() == 0
    assert (first == tokens).all()
    # noise is never drawn either: a perfect denoiser is still perfect
    x = torch.arange(20) % VOCAB.K
    masks = free_rows(torch.full((50, 20), VOCAB.mask_id))
    right = walk(Model(Truth(x, VOCAB), process), settings, masks)
    assert all(row.tokens == x.tolist() for row in right)


def test_first_tokens_are_the_text_before_its_corrections() -> None:
    process = SCDD(VOCAB, Peaked(0.3))
    settings = SamplingPlan(Ancestral(), grid("uniform", 8), batch_size=50, rows_per_forward=50)
    masks = free_rows(torch.full((50, 20), VOCAB.mask_id))
    tokens, first, moves, _ = columns(walk(Model(table(VOCAB), process), settings, masks))
    assert 0 < (first != tokens).sum() <= moves[..., 1].sum()


def test_cumulative_of_nothing() -> None:
    assert cumulative(torch.zeros(3, dtype=torch.float64)) == [0.0, 0.0, 0.0]
    assert cumulative(torch.tensor([1.0, 0.0, 3.0])) == [0.25, 0.25, 1.0]


def test_samples_do_not_depend_on_the_batch(scdd: EvalModel, tmp_path: Path) -> None:
    spec, store = SamplingSpec(num=5, nfe=4), Store(tmp_path)
    a = draw(MeasureContext(store, batch_size=2), scdd, spec)
    b = draw(MeasureContext(store, batch_size=5), scdd, spec, follow=False)
    assert [row.tokens for row in a] == [row.tokens for row in b]
    assert {row.nfe for row in a} == {4}
    texts = [scdd.engine.text(ended(row.tokens[1:-1], scdd.lm.tokenizer.eos_id)) for row in a]
    assert texts == [s.text for s in scdd.lm.generate(5, steps=4)], "the same texts as `scdd sample` gives"


def test_equal_evaluations(scdd: EvalModel, tmp_path: Path) -> None:
    """Rounds after the walk come out of the same budget; a final step that is left out gives one back."""
    assert sampling_plan(scdd, SamplingSpec(1, 8), 1).steps == 8
    assert sampling_plan(scdd, SamplingSpec(1, 8, changes={"final": "none"}), 1).steps == 9
    with pytest.raises(UserError, match="leaves none"):
        sampling_plan(scdd, SamplingSpec(1, 8, changes={"sampler": "gidd-correct"}), 1)
    assert sampling_plan(scdd, SamplingSpec(1, 70, changes={"sampler": "gidd-correct"}), 1).steps == 6
    context = MeasureContext(Store(tmp_path))
    assert [row.nfe for row in draw(context, scdd, SamplingSpec(2, 3, changes={"final": "none"}))] == [3, 3]


def test_worth_of_corrections(tmp_path: Path, scdd: EvalModel, ar: EvalModel) -> None:
    reference = OwnReferenceLM(ar)
    context = MeasureContext(Store(tmp_path))
    found = measure_correction(context, scdd, SamplingSpec(6, 4), reference).result
    assert {"rate", "intrinsic", "excess", "benefit", "ppl_before", "ppl_after", "ppl_uncorrected"} <= set(found)
    assert found["excess"] == pytest.approx(found["rate"] - found["intrinsic"])
    plain = measure_samples(context, scdd, SamplingSpec(6, 4, correct=False)).result
    assert found["entropy_uncorrected"] == plain["diversity"]["entropy"]
    assert entropy_of("ppl_after", found) is not None
    again = measure_correction(context, replace(scdd, label="other"), SamplingSpec(6, 4), reference)
    assert again.result == found
    assert again.label == "other"


def test_refuses_autoregression(tmp_path: Path, ar: EvalModel, checkpoints: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="corrects nothing"):
        measure_correction(MeasureContext(Store(tmp_path)), ar, SamplingSpec(2, 2))
    masked = open_model(checkpoints["mdlm"], device="cpu")
    context = MeasureContext(Store(tmp_path))
    assert measure_correction(context, masked, SamplingSpec(2, 2)).result["rate"] == 0.0


def test_measurements_of_other_sampling_defaults_are_not_reused(tmp_path: Path, ar: EvalModel) -> None:
    """The recipe beside the weights decides what a command leaves open; editing it must not bring back old texts."""
    folder = tiny.checkpoint(tmp_path / "model")
    reference, context, spec = OwnReferenceLM(ar), MeasureContext(Store(tmp_path / "out")), SamplingSpec(3, 4)

    def measured() -> list[Measurement]:
        model = open_model(folder, "m", device="cpu")
        return [
            measure_samples(context, model, spec),
            measure_generation(context, model, spec, reference),
            measure_correction(context, model, spec),
        ]

    before = measured()
    assert [one.hash for one in measured()] == [one.hash for one in before]
    recipe = folder / "recipe.yaml"
    text = recipe.read_text(encoding="utf-8")
    edits = {
        "kind: uniform\n    start": "kind: quadratic\n    start",
        "temperature: 1.0": "temperature: 0.5",
        "top_p: 1.0": "top_p: 0.5",
        "top_k: null": "top_k: 3",
        "length: null": "length: 20",
        "tolerance: null": "tolerance: 30.0",
        "final: ancestral": "final: greedy",
        "sampler:\n    kind: ancestral": "sampler:\n    kind: gidd-correct\n    corrections: 2",
    }
    seen = {one.hash for one in before}
    for old, new in edits.items():
        assert text.count(old) == 1, old
        recipe.write_text(text.replace(old, new), encoding="utf-8")
        after = measured()
        assert not seen & {one.hash for one in after}, new
        assert after[0].result["texts"] != before[0].result["texts"], new
        seen |= {one.hash for one in after}
    recipe.write_text(text.replace("steps: 6", "steps: 7"), encoding="utf-8")
    assert [one.hash for one in measured()] == [one.hash for one in before], "steps are always asked for"
    model = open_model(folder, "m", device="cpu")
    said = SamplingSpec(
        3,
        4,
        changes={"sampler": "ancestral", "grid": "uniform", "final": "ancestral", "top_p": 1.0, "temperature": 1.0},
    )
    assert measure_samples(context, model, said).hash == before[0].hash, "the same, said aloud"
    whole = replace(said, length=model.engine.room)
    assert measure_samples(context, model, whole).hash == before[0].hash, "so is a length that fills the context"
