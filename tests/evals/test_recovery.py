"""Recovery: a perfect denoiser restores everything and damages nothing; typing errors are what they say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from scdd.core import UserError, Vocab
from scdd.core.rng import CounterRNG
from scdd.data.shards import MemoryTokens
from scdd.evals.measure.model import EvalModel, open_model
from scdd.evals.measure.recovery import (
    Repaired,
    corrupt,
    measure_recovery,
    measure_typos,
    recover,
    token_scores,
    word_scores,
)
from scdd.evals.measure.reference_lm import OwnReferenceLM
from scdd.evals.measure.specs import RecoverySpec, Repair, repair_name
from scdd.evals.measure.store import MeasureContext, Store
from scdd.evals.measure.texts import rows
from scdd.evals.measure.typos import KINDS, Piece, mistype, typed
from scdd.evals.measure.walk import framed_rows, repaired
from scdd.processes.scdd import SCDD
from scdd.reproduce.claims import entropy_of
from scdd.samplers.base import Model
from scdd.schedules.peaked import Peaked
from tests import tiny
from tests.evals.worlds import free_rows, uniform
from tests.samplers.tables import Table, Truth

VOCAB = Vocab(9, 3)


def test_corruption_is_exact_and_uniform() -> None:
    x = torch.full((4000, 6), 5)
    frozen = torch.zeros_like(x, dtype=torch.bool)
    frozen[:, 0] = True
    noisy, hit = corrupt(x, 2, VOCAB, CounterRNG(0, range(4000)), frozen)
    assert (hit.sum(1) == 2).all()
    assert not hit[:, 0].any()
    assert ((noisy != x) == hit).all(), "a replaced token is always another one"
    drawn = torch.bincount(noisy[hit], minlength=9)
    assert drawn[VOCAB.mask_id] == drawn[5] == 0
    others = drawn[[0, 1, 2, 4, 6, 7, 8]].double()
    assert (others - 8000 / 7).abs().max() < 5 * (8000 / 7) ** 0.5
    places = hit[:, 1:].sum(0).double()
    assert (places - 1600).abs().max() < 5 * 1600**0.5


@pytest.mark.parametrize("repair", [Repair(16, 1), Repair(16, 5), Repair(threshold=0.001)])
def test_a_perfect_denoiser_recovers_all(repair: Repair) -> None:
    process = SCDD(VOCAB, Peaked(0.2))
    x = VOCAB.token(torch.arange(30) % VOCAB.K)
    rows = free_rows(x.expand(20, -1))
    found = recover(Model(Truth(x, VOCAB), process), rows, RecoverySpec(7, repair))
    rates = token_scores(found, framed=False)
    assert {name: rates[name]["value"] for name in rates} == {"touch": 1.0, "recovery": 1.0, "damage": 0.0}


def test_outside_the_nucleus_all_is_touched_if_doubts_come_from_it() -> None:
    """x_θ gives every token 0.04 but one, which has the rest: a whole x_θ keeps a standing token of 0.04, a nucleus cannot."""
    logits = torch.full((9, 9), 0.04)
    logits[:, 0] = 0.72
    model = Model(Table(logits.log(), VOCAB), SCDD(VOCAB, Peaked(0.2)))
    z = torch.full((200, 10), 5)
    rows, stays = free_rows(z), {}
    for nucleus in (False, True):
        repair = Repair(top_p=0.7, nucleus=nucleus)
        stays[nucleus] = torch.tensor(repaired(model, repair, rows, 0, 50)) == z
    assert not stays[True].any()
    assert stays[False].double().mean() > 0.5
    known = {"steps": 128, "last": 1, "top_p": 0.9, "final": "ancestral", "threshold": None}
    assert Repair().settled(True) == known, "what older measurements are filed under"
    assert repair_name(Repair(nucleus=True).settled(True)) == "1 of 128 steps, nucleus"


def test_a_clueless_denoiser_damages() -> None:
    """x_θ = u: clean and corrupted tokens look alike to it, so they are touched alike."""
    process = SCDD(VOCAB, Peaked(0.2))
    x = VOCAB.token(torch.arange(40) % VOCAB.K)
    rows = free_rows(x.expand(150, -1))
    found = token_scores(recover(Model(uniform(VOCAB), process), rows, RecoverySpec(10, Repair(4, 2))), framed=False)
    gap = abs(found["touch"]["value"] - found["damage"]["value"])
    assert gap < 4 * (found["touch"]["error"] + found["damage"]["error"])
    assert found["damage"]["value"] > 0.1
    assert found["recovery"]["value"] < 0.5 * found["touch"]["value"]


def test_one_pass_is_what_correct_does(scdd: EvalModel) -> None:
    """The rule of `LM.correct(mode="pass")`, at a threshold where some tokens change and some do not."""
    changed = {one_pass(scdd, Repair(threshold=threshold)) for threshold in (0.9, 0.3, 1e-6)}
    assert len(changed) > 1


def test_one_pass_is_what_correct_does_at_its_strength(scdd: EvalModel, timed: EvalModel) -> None:
    """A network that looks at the time gives other repairs at another strength, and they are filed apart."""
    repairs = [Repair(threshold=0.5, strength=strength) for strength in (0.1, 0.9)]
    assert len({one_pass(timed, repair) for repair in repairs}) == 2
    assert len({one_pass(scdd, repair) for repair in repairs}) == 1
    assert [repair.settled(True)["strength"] for repair in repairs] == [0.1, 0.9]
    assert repairs[0].settled(False) == repairs[1].settled(False), "without an effect it is not in the hash"


def one_pass(model: EvalModel, repair: Repair) -> str:
    """The repaired text, the same as `LM.correct` gives."""
    tokens = model.lm.tokenizer.encode(tiny.TEXT)[: model.engine.room]
    rows = framed_rows([model.engine.framed(tokens)] * 3, range(3), model.lm.device)
    done = repaired(model.engine.model, repair, rows, batch_size=2)
    assert done == [done[0]] * 3
    text, threshold = model.lm.tokenizer.decode(tokens), repair.threshold
    assert threshold is not None
    mended = model.lm.correct(text, mode="pass", threshold=threshold, strength=repair.strength).text
    assert model.engine.text(done[0][1:-1]) == mended
    return mended


def test_scores_by_hand() -> None:
    clean = torch.tensor([[0, 1, 2, 4, 0]])
    noisy = torch.tensor([[0, 5, 6, 4, 0]])
    mended = torch.tensor([[0, 1, 7, 5, 0]])
    found = token_scores(Repaired(clean, noisy, mended, noisy != clean))
    assert found["touch"]["value"] == 1.0
    assert found["recovery"]["value"] == 0.5
    assert found["damage"]["value"] == 1.0


def test_typing_errors_are_as_described() -> None:
    text = " ".join(["alpha bravo charlie delta echoes foxtrot golfing hotels"] * 8)
    pieces = mistype(text, 12, seed=3)
    assert pieces == mistype(text, 12, seed=3)
    assert pieces != mistype(text, 12, seed=4)
    kinds = [piece.error for piece in pieces if piece.error]
    assert set(kinds) == set(KINDS)
    assert len(kinds) == 12 + kinds.count("swapped words") // 2
    assert "".join(piece.meant for piece in pieces) == text, "what was meant is the text itself"
    assert typed(pieces) != text
    for piece in pieces:
        word, meant = piece.typed.strip(), piece.meant.strip()
        if not piece.error:
            assert word == meant
        elif piece.error == "drop":
            assert len(word) == len(meant) - 1
        elif piece.error == "double":
            assert len(word) == len(meant) + 1
        elif piece.error in ("swap", "slip"):
            assert len(word) == len(meant)
            assert word != meant
        elif piece.error == "swap":
            assert sorted(word) == sorted(meant)
    assert mistype("a b c", 3) == [Piece("a", "a"), Piece(" b", " b"), Piece(" c", " c")], "nothing to mistype"


def test_words_are_scored_by_the_tokens_under_them() -> None:
    tokenizer = tiny.tokenizer()
    pieces = [
        Piece("The", "The"),
        Piece(" rievr", " river", "swap"),
        Piece(" runs", " runs"),
        Piece(" runs", "", "repeated word"),
    ]
    before = tokenizer.encode(typed(pieces))
    untouched = word_scores([pieces], [before], [before], tokenizer)
    assert (untouched["touch"]["value"], untouched["recovery"]["value"], untouched["damage"]["value"]) == (0, 0, 0)
    # every letter a token: the mended text has as many tokens, so it can be laid over the old one
    spelt = [tokenizer.encode(letter)[0] for letter in "The rievr runs runs"]
    mended = [tokenizer.encode(letter)[0] for letter in "The river runs     "]
    found = word_scores([pieces], [spelt], [mended], tokenizer)
    assert (found["touch"]["value"], found["recovery"]["value"], found["damage"]["value"]) == (1.0, 1.0, 0.0)
    assert found["recovery_by_kind"] == {"swap": 1.0, "repeated word": 1.0}
    spoilt = [tokenizer.encode(letter)[0] for letter in "Thx rievr runs runs"]
    assert word_scores([pieces], [spelt], [spoilt], tokenizer)["damage"]["value"] == 0.5


def test_measurements(tmp_path: Path, scdd: EvalModel, ar: EvalModel) -> None:
    tokenizer = scdd.lm.tokenizer
    some = rows(MemoryTokens.encoded([tiny.TEXT] * 6, tokenizer), tokenizer, 24, 5, whole=True)
    reference, context = OwnReferenceLM(ar), MeasureContext(Store(tmp_path))
    found = measure_recovery(context, scdd, some, RecoverySpec(4, Repair(8, 2)), reference).result
    assert found["rows"] == 5
    assert found["ppl_corrupted"]["ppl"] > 0
    assert all(0 < (entropy_of(name, found) or 0) <= math.log(22) for name in ("ppl_corrupted", "ppl_repaired"))
    mistyped = measure_typos(context, scdd, some, RecoverySpec(2, Repair(8, 2)), reference).result
    assert {"touch", "recovery", "damage", "errors", "ppl_clean"} <= set(mistyped)


def test_refusals(tmp_path: Path, checkpoints: dict[str, Path], scdd: EvalModel) -> None:
    with pytest.raises(UserError, match="take 1 to 8"):
        Repair(8, 9)
    with pytest.raises(UserError, match=r"in \(0, 1\)"):
        Repair(threshold=1.0)
    tokenizer = scdd.lm.tokenizer
    some = rows(MemoryTokens.encoded([tiny.TEXT], tokenizer), tokenizer, 8, 2, whole=True)
    with pytest.raises(UserError, match="smaller K"):
        measure_recovery(MeasureContext(Store(tmp_path)), scdd, some, RecoverySpec(7))
    masked = open_model(checkpoints["mdlm"], device="cpu")
    with pytest.raises(UserError, match="no uniform noise"):
        measure_recovery(MeasureContext(Store(tmp_path)), masked, some, RecoverySpec(2))
