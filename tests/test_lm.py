"""The front door: what goes in comes out, prompts survive, windows join, and texts are repaired where they are wrong."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import scdd
from scdd.bundle import folder as bundle
from scdd.bundle.folder import ASSETS
from scdd.core import UserError
from scdd.core.types import padded
from scdd.data.tokenizer import TextTokenizer
from scdd.lm.edits.words import cut
from scdd.lm.model import LM
from scdd.lm.rows import Ranges, Row, continued, frozen_ranges, whole, with_gaps
from scdd.lm.run import windows
from scdd.models.dit import DiT
from scdd.models.options import DiTConfig
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.samplers.ancestral import Ancestral
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked

from . import tiny

TOKENIZER = tiny.tokenizer()
VOCAB = TOKENIZER.vocab


@cache
def bundled() -> TextTokenizer:
    return TextTokenizer.load("bundled")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("lm") / "model")


@pytest.fixture(scope="module")
def lm(folder: Path) -> LM:
    return scdd.load(folder, device="cpu")


class Knows:
    """A denoiser that knows one text: x_θ puts 0.99 on its token, wherever the row is, and little on every other."""

    def __init__(self, text: str) -> None:
        self.vocab = VOCAB
        self.row = [TOKENIZER.bos_id, *TOKENIZER.encode(text), TOKENIZER.eos_id]
        weight = torch.zeros(padded(VOCAB.size), VOCAB.size)
        weight[: VOCAB.size] = torch.eye(VOCAB.size) * 10.0
        self.head = scdd.core.Head(weight=weight, vocab=VOCAB)

    def hidden(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        known = torch.tensor(self.row)[None, : z_t.shape[1]].expand_as(z_t)
        return torch.nn.functional.one_hot(known, VOCAB.size).to(torch.float32)


def knows(text: str, p_u: float = 0.2) -> LM:
    return LM(Knows(text), SCDD(VOCAB, Peaked(p_u=p_u)), TOKENIZER, 80)  # type: ignore[arg-type]


def test_import_scdd_does_not_import_torch() -> None:
    code = "import sys, scdd; assert 'torch' not in sys.modules; assert 'load' in dir(scdd) or scdd.load"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_generate(lm: LM) -> None:
    samples = lm.generate(3, seed=4, stop=False)
    assert [sample.index for sample in samples] == [0, 1, 2]
    assert all(len(sample.tokens) == lm.engine.room == 38 for sample in samples)
    assert all(sample.nfe == sample.steps == 6 for sample in samples), "the recipe says 6 steps"
    assert all(sample.unmasked == 38 and sample.remasked == 0 for sample in samples)
    assert len({sample.text for sample in samples}) == 3
    assert all(VOCAB.mask_id not in sample.tokens for sample in samples)
    fields = samples[0].json()
    assert {"text", "tokens", "seed", "steps", "nfe", "corrections", "sampler", "final", "process"} <= set(fields)
    assert (fields["sampler"], fields["final"], fields["process"]) == ("ancestral", "ancestral", "scdd")


def test_samples_do_not_depend_on_the_batch(lm: LM) -> None:
    together = lm.generate(5, seed=9)
    for size in (1, 2, 3):
        assert [s.tokens for s in lm.generate(5, seed=9, batch_size=size)] == [s.tokens for s in together]
    assert lm.generate(1, seed=9)[0].tokens == together[0].tokens
    mixed = lm.generate(2, prompt=["The", "The river runs to"], length=12, seed=2)
    assert lm.generate(2, prompt="The", length=12, seed=2) == mixed[:2]


def test_prompts_and_suffixes_survive_token_by_token(lm: LM) -> None:
    prompt, suffix = TOKENIZER.encode("The quick brown"), TOKENIZER.encode(" the sea.")
    for sample in lm.generate(4, prompt="The quick brown", suffix=" the sea.", length=20, temperature=3.0):
        assert list(sample.tokens[: len(prompt)]) == prompt
        assert list(sample.tokens[-len(suffix) :]) == suffix
        assert len(sample.tokens) == 20


def test_infill_keeps_everything_but_the_spans(lm: LM) -> None:
    texts = ["The [MASK:5] over the lazy [MASK].", "[MASK] river"]
    results = lm.infill(texts, num=2, temperature=3.0)
    rows = [with_spans(TOKENIZER, text) for text in texts for _ in range(2)]
    for sample, row in zip(results, rows, strict=True):
        assert len(sample.tokens) == len(row)
        assert all(a == b for a, b, given in zip(sample.tokens, row.tokens, row.frozen, strict=True) if given)
        assert VOCAB.mask_id not in sample.tokens
        assert sample.unmasked == row.frozen.count(False)
    assert results[0].text.startswith("The")
    assert lm.infill(texts[1], num=2, temperature=3.0)[0].tokens == lm.infill(texts[1], temperature=3.0)[0].tokens


def test_a_knowing_model_fills_in_the_truth() -> None:
    text = "The river runs to the sea."
    tokens = TOKENIZER.encode(text)
    model = knows(text)
    assert model.generate(1, length=len(tokens), steps=30, stop=False, top_k=1)[0].text == text
    row = with_spans(TOKENIZER, f"The[MASK:{len(tokens) - len(TOKENIZER.encode('The'))}]")
    assert len(row) == len(tokens)


def test_masks_stay_visible_when_no_final_step_is_asked_for(lm: LM) -> None:
    sample = lm.generate(1, steps=2, final="none", stop=False)[0]
    assert sample.text.count("[MASK]") == sample.tokens.count(VOCAB.mask_id) > 0
    assert sample.nfe == 1


def test_text_beyond_the_context_is_written_in_windows(lm: LM) -> None:
    assert windows(10, 38) == [(0, 10, 0)]
    made = windows(100, 38)
    assert made == [(0, 38, 0), (19, 57, 38), (38, 76, 57), (57, 95, 76), (76, 100, 95)]
    sample = lm.generate(1, length=100, prompt="The river", stop=False, record=True)[0]
    assert len(sample.tokens) == 100
    assert VOCAB.mask_id not in sample.tokens
    assert sample.nfe == 6 * len(made)
    way = sample.trajectory
    assert way is not None
    assert way.tokens.shape == (6 * len(made), 100)
    for frame in range(1, len(way.moments)):  # a settled window never changes again
        settled = [w.fresh for w in made][frame // 6]
        assert way.tokens[frame, :settled].tolist() == list(sample.tokens[:settled])
    first = sample.tokens[len(TOKENIZER.encode("The river")) : 38]
    assert first[:19] != sample.tokens[57:76], "each window has random numbers of its own"
    assert (
        lm.generate(3, length=100, stop=False)[2].tokens
        == lm.generate(3, length=100, stop=False, batch_size=1)[2].tokens
    )


def test_text_stops_at_end_of_text() -> None:
    model = knows(tiny.TEXT * 3)
    eos = TOKENIZER.eos_id
    model.network.row[9] = eos  # type: ignore[attr-defined]
    sample = model.generate(1, length=20, steps=12, top_k=1)[0]
    assert sample.ended
    assert len(sample.tokens) == 8
    assert eos not in sample.tokens
    whole_row = model.generate(1, length=20, steps=12, top_k=1, stop=False)[0]
    assert not whole_row.ended
    assert whole_row.tokens[8] == eos
    longer = model.generate(1, length=200, steps=12, top_k=1)[0]
    assert longer.nfe == 12, "no further window is written after the end"


@pytest.mark.parametrize("mode", ["reverse", "pass"])
def test_correct_repairs_what_is_wrong_and_nothing_else(mode: str) -> None:
    text = "The quick brown fox jumps over the lazy dog, and the falcon flies over the river."
    model, tokens = knows(text), TOKENIZER.encode(text)
    wrong = tokens.copy()
    wrong[2], wrong[6], wrong[-3] = tokens[0], 40, 41
    broken = TOKENIZER.decode(wrong)
    assert TOKENIZER.encode(broken) == wrong, "the corruption must survive the tokenizer"
    found = model.correct(broken, mode=mode)
    assert found.text == text
    assert [change.position for change in found.changes] == [2, 6, len(tokens) - 3]
    for change in found.changes:
        assert change.before == TOKENIZER.token(wrong[change.position])
        assert change.after == TOKENIZER.token(tokens[change.position])
        assert change.p_before < 1e-3 < 0.9 < change.p_after
        assert change.doubt > 0.9
    assert found.nfe == (1 if mode == "pass" else 17)
    kept = model.correct(broken, mode=mode, freeze=[TOKENIZER.token(41)])
    assert [change.position for change in kept.changes] == [2, 6]
    clean = model.correct(text, mode=mode)
    assert clean.text == text
    assert not clean.changes


def test_score_is_the_posterior_doubt() -> None:
    text = "The river runs to the sea."
    model = knows(text)
    tokens = TOKENIZER.encode(text)
    wrong = tokens.copy()
    wrong[3] = 40
    score = model.score(TOKENIZER.decode(wrong), strength=0.2)
    assert [token.token for token in score.tokens] == wrong
    levels = SCDD(VOCAB, Peaked(p_u=0.2)).levels(0.2)
    rho, floor = float(levels.rho), float(levels.one_minus_rho) / VOCAB.K
    for token in score.tokens:
        right = (rho + floor) * token.p / (rho * token.p + floor)
        assert token.doubt == pytest.approx(1 - right, abs=1e-6)
    assert score.tokens[3].doubt > 0.9 > 0.1 > max(t.doubt for t in score.tokens if t.position != 3)
    assert score.tokens[3].best == TOKENIZER.token(tokens[3])
    with pytest.raises(UserError, match="blocks"):
        model.score("The river runs. " * 40)


def test_scores_in_blocks_cover_every_token_once(lm: LM) -> None:
    text = "The river runs to the sea. " * 8
    score = lm.score(text, blocks=True)
    assert [token.position for token in score.tokens] == list(range(len(TOKENIZER.encode(text))))
    assert score.nfe == len(windows(len(score.tokens), lm.engine.room))


def test_freeze_covers_pieces_and_ranges() -> None:
    text = "The river runs to the sea."
    row = whole(TOKENIZER, text, ["river"])
    covered = "".join(TOKENIZER.token(t) for t, f in zip(row.tokens, row.frozen, strict=True) if f)
    assert "river" in covered
    assert len(covered) < len("river") + 4
    assert whole(TOKENIZER, text, [(0, len(text))]).frozen.count(False) == 0
    for bad in (["ocean"], [(5, 4)], [(0, 99)]):
        with pytest.raises(UserError, match="freeze"):
            whole(TOKENIZER, text, bad)


RANGES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), max_size=6)


@given(RANGES, st.integers(0, 20), st.integers(0, 6))
def test_ranges_are_met_where_one_of_them_is(chosen: list[tuple[int, int]], start: int, length: int) -> None:
    ranges, end = [(low, low + size) for low, size in chosen], start + length
    found = Ranges(ranges)
    assert found.meet(start, end) == any(low < end and start < high for low, high in ranges)
    assert all(high <= low for high, low in zip(found.highs, found.lows[1:], strict=False))


@settings(max_examples=200, deadline=None)
@given(
    st.text(
        st.sampled_from("ab \n🙂👩\u200d👩\u0301é中\ufffd[MSK]") | st.characters(codec="utf-8"), min_size=1, max_size=30
    ),
    st.lists(st.tuples(st.integers(0, 29), st.integers(1, 5)), max_size=4),
)
def test_frozen_tokens_are_those_that_decoding_every_beginning_finds(text: str, chosen: list[tuple[int, int]]) -> None:
    assume(text.strip())
    ranges = [(low, min(low + size, len(text))) for low, size in chosen if low < len(text)]
    for tokenizer in (TOKENIZER, bundled()):
        tokens, start, frozen = tokenizer.encode(text), 0, []
        for i in range(len(tokens)):
            stop = len(tokenizer.decode(tokens[: i + 1], skip_special=False))
            frozen.append(any(low < max(stop, start + 1) and start < high for low, high in ranges))
            start = stop
        assert whole(tokenizer, text, ranges) == Row(tuple(tokens), tuple(frozen))


def test_what_a_freeze_names_twice_is_there_once() -> None:
    text = "ab ab ab"
    assert frozen_ranges(text, ["ab", "ab", "b", (1, 4)]) == [(0, 5), (6, 8)]
    assert frozen_ranges(text, ["a", "b"]) == [(at + i, at + i + 1) for at in (0, 3, 6) for i in (0, 1)]
    with pytest.raises(UserError, match="freeze names 'c'"):
        frozen_ranges(text, ["a", "c", (9, 1)])


def test_frozen_pieces_cost_what_the_text_is_long() -> None:
    """Half a minute where each token decodes all before it and asks every range."""
    text, start = ("a b 🙂 " * 3000).strip(), time.perf_counter()
    row = whole(bundled(), text, ["a", "b"] * 32)
    ranges = frozen_ranges(text, ["a", "b"] * 32)
    assert (len(ranges), len([word for word in cut(text, ranges) if word.frozen])) == (6000, 6000)
    assert row.frozen.count(True) == 6000
    assert time.perf_counter() - start < 8


def test_a_freeze_of_one_piece_is_that_piece_and_not_its_letters() -> None:
    assert whole(TOKENIZER, "The river runs.", "river") == whole(TOKENIZER, "The river runs.", ["river"])


def test_watching_a_run_gives_the_same_result(lm: LM) -> None:
    run = lm.start(2, plan=lm.plan(seed=3, record=True))
    seen = [progress.frame.step for progress in run]
    assert seen == [1, 2, 3, 4, 5, 6]
    assert [s.tokens for s in run.results] == [s.tokens for s in lm.generate(2, seed=3)]
    partly = lm.start(2, plan=lm.plan(seed=3, record=True))
    next(iter(partly))
    assert [s.tokens for s in partly.results] == [s.tokens for s in run.results]


def test_trajectory_ends_at_the_sample(lm: LM) -> None:
    sample = lm.generate(1, record=True, stop=False)[0]
    way = sample.trajectory
    assert way is not None
    assert bool((way.start == VOCAB.mask_id).all())
    assert tuple(way.tokens[-1].tolist()) == sample.tokens
    assert int((way.moved == 2).sum()) == sample.corrections


SAMPLERS = ["remdm-cap", "remdm-rescale", "remdm-conf", "remdm-loop", "remdm", "informed", "prism", "p2", "threshold"]


def test_every_sampler_by_name(tmp_path: Path) -> None:
    masked = scdd.load(tiny.checkpoint(tmp_path / "mdlm", *tiny.MASKED, quality=True), device="cpu")
    for name in (*SAMPLERS, "ancestral"):
        sample = masked.generate(1, sampler=name, stop=False)[0]
        assert VOCAB.mask_id not in sample.tokens
        assert sample.sampler == name.partition("-")[0]
    plain = scdd.load(tiny.checkpoint(tmp_path / "plain", *tiny.MASKED), device="cpu")
    with pytest.raises(UserError, match="quality head"):
        plain.generate(1, sampler="prism")
    with pytest.raises(UserError, match="mode pass"):
        plain.correct("The river")


def test_any_weights_with_any_process_of_their_marginals(tmp_path: Path, lm: LM) -> None:
    gidd = tiny.checkpoint(tmp_path / "gidd", "process.kind=gidd", "process.schedule.p_u=0.4")
    own, other = scdd.load(gidd, device="cpu"), scdd.load(gidd, process="scdd", device="cpu")
    assert isinstance(other.process, SCDD)
    assert own.process is not None
    assert other.process.schedule.p_u == own.process.schedule.p_u == 0.4  # type: ignore[attr-defined]
    assert sum(s.remasked for s in own.generate(8, steps=12)) > 0
    assert sum(s.remasked for s in other.generate(8, steps=12)) == 0
    assert other.generate(1)[0].process == "scdd"
    with pytest.raises(UserError, match="ρ ≡ 1"):
        scdd.load(gidd, process="mdlm")
    with pytest.raises(UserError, match="no process"):
        scdd.load(gidd, process="ddpm")


def test_autoregressive_models(tmp_path: Path) -> None:
    folder = tiny.checkpoint(
        *(tmp_path / "ar", "process.kind=ar", "objective.kind=ar", "sampling.sampler.kind=ar"), causal=True
    )
    model = scdd.load(folder, device="cpu")
    samples = model.generate(2, prompt="The river", length=12, stop=False)
    prompt = TOKENIZER.encode("The river")
    assert all(list(s.tokens[: len(prompt)]) == prompt and s.process == "ar" for s in samples)
    assert all(VOCAB.mask_id not in s.tokens for s in samples)
    assert samples == model.generate(2, prompt="The river", length=12, stop=False, batch_size=1)
    for refused in (lambda: model.infill("The [MASK]"), lambda: model.score("The river")):
        with pytest.raises(UserError, match="diffusion model"):
            refused()


def test_converted_checkpoints_ask_for_their_process(tmp_path: Path, folder: Path) -> None:
    found = bundle.read(folder)
    identity = replace(found, recipe="model:\n  kind: dit\n", extra={"converted_from": "model.pt"})
    converted = bundle.write(tmp_path / "converted", identity, found.weights)
    with pytest.raises(UserError, match="does not say its process"):
        scdd.load(converted)
    for unsaid in ("scdd", "gidd", "scdd:2", "gidd:much", "mdlm:0.1"):
        with pytest.raises(UserError, match="p_u"):
            scdd.load(converted, process=unsaid)
    named = scdd.load(converted, process="scdd:0.3", device="cpu").process
    assert isinstance(named, SCDD)
    assert named.schedule.p_u == 0.3  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="its own p_u"):
        scdd.load(folder, process="scdd:0.3")
    assert isinstance(scdd.load(converted, process="mdlm", device="cpu").process, MDLM)
    custom = SCDD(VOCAB, Peaked(p_u=0.5))
    assert scdd.load(converted, process=custom, device="cpu", context=20).generate(1)[0].nfe == 128


def test_a_run_folder_means_its_newest_checkpoint(tmp_path: Path) -> None:
    for step in (9, 10):
        tiny.checkpoint(tmp_path / "run" / "checkpoints" / f"step-{step:08d}", f"sampling.steps={step}")
    assert scdd.load(tmp_path / "run", device="cpu").sampling.steps == 10
    assert scdd.load(tmp_path / "run", device="cpu", overrides=["sampling.steps=3"]).generate(1)[0].nfe == 3


def test_mistakes_are_named(lm: LM, tmp_path: Path) -> None:
    for action, reason in [
        (lambda: lm.generate(0), "num"),
        (lambda: lm.generate("The river"), "prompt="),
        (lambda: lm.generate(True), "whole number"),
        (lambda: lm.generate(1, length=8.0), "length is 8.0: give a whole number"),
        (lambda: lm.generate(1, steps="2"), "steps is '2'"),
        (lambda: lm.generate(1, temperature="hot"), "temperature is 'hot'"),
        (lambda: lm.generate(1, seed=0.5), "seed"),
        (lambda: lm.generate(1, prompt=b"The"), "bytes"),
        (lambda: lm.generate(1, prompt=[]), "empty list"),
        (lambda: lm.generate(1, suffix=["a"]), "suffix"),
        (lambda: lm.generate(1, sampler={"kind": "p2"}), "no sampler"),
        (lambda: lm.infill(None), "NoneType"),
        (lambda: lm.infill("The [MASK]", 0), "num is 0"),
        (lambda: lm.correct([["The river"]]), "list"),
        (lambda: lm.correct("The river", steps="3"), "steps"),
        (lambda: lm.score("caf\udce9"), "Unicode"),
        (lambda: lm.score("The river", strength="much"), "strength"),
        (lambda: lm.to("meta"), "meta"),
        (lambda: scdd.load(context=0), "context"),
        (lambda: scdd.load(overrides="model.size=small"), "only sampling"),
        (lambda: lm.generate(1, steps=0), "steps is 0"),
        (lambda: lm.generate(1, length=0), "length is 0"),
        (lambda: lm.generate(1, sampler="ancestrel"), "did you mean ancestral"),
        (lambda: lm.generate(1, final="argmax"), "final is"),
        (lambda: lm.generate(1, top_p=1.5), "top_p"),
        (lambda: lm.generate(1, grid="spiral"), "grid"),
        (lambda: lm.plan(colour=3), "colour"),
        (lambda: lm.generate(1, batch_size=0), "batch_size"),
        (lambda: lm.generate(1, prompt="The river runs to the sea.", length=3), "raise length"),
        (lambda: lm.infill(""), "empty"),
        (lambda: lm.infill("The river"), "nothing to fill in"),
        (lambda: lm.infill("The [MASK:0]"), "no token"),
        (lambda: lm.infill("The [MASK:500]"), "blocks"),
        (lambda: lm.correct("  "), "empty"),
        (lambda: lm.correct("The river", strength=0.0), "strength"),
        (lambda: lm.correct("The river", mode="argmax"), "edit, reverse, pass"),
        (lambda: lm.correct("The river", mode="pass", threshold=2.0), "threshold"),
        (lambda: lm.score(""), "empty"),
        (lambda: lm.to("cuda") if not torch.cuda.is_available() else lm.to("gpu"), "device"),
        (lambda: scdd.load(tmp_path / "nowhere"), "no checkpoint folder"),
    ]:
        with pytest.raises(UserError, match=reason):
            action()
    if not (ASSETS / "model" / "model.safetensors").is_file():
        with pytest.raises(UserError, match="scdd demo"):
            scdd.load()


def test_damaged_checkpoints_are_named(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "model")
    weights = folder / "model.safetensors"
    whole_file = weights.read_bytes()
    weights.write_bytes(whole_file[:-100])
    with pytest.raises(UserError, match="damaged"):
        scdd.load(folder)
    weights.write_bytes(whole_file)
    (folder / "meta.json").unlink()
    with pytest.raises(UserError, match=r"meta\.json"):
        scdd.load(folder)


def with_spans(tokenizer: TextTokenizer, text: str) -> Row:
    gaps = with_gaps(tokenizer, text)
    [lengths] = gaps.tries
    return gaps.row(lengths)


def test_settings_reach_the_sampler(lm: LM) -> None:
    cool = {s.tokens for s in lm.generate(4, top_k=1, steps=1, length=10, seed=1, stop=False)}
    assert len(cool) == 1, "one step of argmax draws is the same for every sample"
    assert lm.generate(1, grid=(1.0, 0.3, 0.0))[0].nfe == 2
    assert lm.generate(1, grid="cosine", steps=5)[0].nfe == 5
    assert lm.generate(1, sampler=Ancestral(), seed=4)[0].tokens == lm.generate(1, seed=4)[0].tokens
    model = LM(tiny.network(), MDLM(VOCAB, Masked()), TOKENIZER, 40)
    assert model.generate(1, steps=40, tolerance=0.5, length=5, stop=False)[0].nfe < 40


def test_rows() -> None:
    row = continued(TOKENIZER, "The", " sea", 8)
    assert row.tokens.count(VOCAB.mask_id) == row.frozen.count(False) == 8 - row.frozen.count(True)
    one, space = with_spans(TOKENIZER, "The [MASK] sea"), with_spans(TOKENIZER, "The[MASK] sea")
    assert one == space, "the space before a span is the model's to write"


class Clocked(DiT):
    """A time-conditioned network that notes the times at which it is asked."""

    def hidden(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        assert t is not None
        self.times = [*getattr(self, "times", []), *t.tolist()]
        return super().hidden(z_t, t, documents)


def test_a_time_conditioned_model_is_asked_at_the_noise_level_that_the_text_is_taken_for() -> None:
    """The one-pass repair, the score and the first step of the walk all take the text for z_t at t = strength."""
    config = DiTConfig(2, 32, 2, time_conditioning=True)
    network = Clocked(config, VOCAB, torch.Generator().manual_seed(0)).eval().requires_grad_(False)
    model = LM(network, SCDD(VOCAB, Peaked(p_u=0.3)), TOKENIZER, 80)
    text = "The river runs to the sea."
    model.score(text, strength=0.3)
    model.correct(text, strength=0.4, mode="pass")
    assert network.times == [0.3, 0.4]
    network.times = []
    model.correct(text, strength=0.5, steps=2)
    assert network.times == [0.5, 0.25, 0.5], "two steps of the walk, then the doubts about the text as it was given"


def test_a_bar_changes_nothing(lm: LM) -> None:
    assert lm.generate(3, seed=2, steps=3, batch_size=2, progress=True) == lm.generate(3, seed=2, steps=3, batch_size=2)


def test_a_model_brings_its_own_repair_options(tmp_path: Path, folder: Path) -> None:
    checkpoint = bundle.read(folder)
    own = bundle.write(tmp_path / "own", replace(checkpoint, extra={"repair": {"threshold": 0.01}}), checkpoint.weights)
    assert scdd.load(own, device="cpu").repair.threshold == 0.01
    wrong = bundle.write(tmp_path / "bad", replace(checkpoint, extra={"repair": {"threshold": 7}}), checkpoint.weights)
    with pytest.raises(UserError, match=r"meta\.json has wrong repair options"):
        scdd.load(wrong)


@pytest.mark.parametrize("mode", ["edit", "reverse", "pass"])
def test_a_list_is_scored_and_repaired_as_each_text_alone(lm: LM, mode: str) -> None:
    """Also where texts of several windows come among short ones."""
    given = ["The river runs.", "The quick brown fox jumps over the dog. " * 6, "A sea.", "The river runs."]
    assert lm.score(given, blocks=True) == tuple(lm.score(text, blocks=True) for text in given)
    assert lm.score([]) == ()
    how = {"mode": mode, "strength": 0.3, "seed": 4, "blocks": True} | ({"steps": 3} if mode == "reverse" else {})
    together = lm.correct(given, **how)  # type: ignore[call-overload]
    assert [each.json() for each in together] == [lm.correct(text, **how).json() for text in given]  # type: ignore[call-overload]
    assert lm.correct([], mode=mode) == ()


def test_what_was_captured_of_weights_is_let_go_with_them(folder: Path) -> None:
    """A graph has the addresses of weights in it: moved or cast, the model must not replay it."""
    model = scdd.load(folder).compile()
    before = model.engine.model.denoiser
    model.to("cpu", "bfloat16")
    assert model.engine.model.denoiser is not before
    assert type(model.engine.model.denoiser) is type(before)


@pytest.mark.parametrize("wrong", [5, (1, 2, 3), (0, 1.5), ("a", 2), None, (True, 2)])
def test_what_freezes_nothing_is_told(wrong: object) -> None:
    with pytest.raises(UserError, match=r"freeze has .*give pieces of the text, or pairs"):
        frozen_ranges("The river runs.", [wrong])  # type: ignore[list-item]
