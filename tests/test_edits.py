"""Repair by edits: words and their places, neighbours in spelling, what the model is asked, and what is done to a text."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import scdd
from scdd.bundle import folder as bundle
from scdd.core import UserError
from scdd.evals.measure.slips import SHARES, spoil
from scdd.lm.edits import grammar
from scdd.lm.edits.candidates import Candidate, deletions, for_word, may_insert, swaps
from scdd.lm.edits.channel import FEATURES, GROUPS, KINDS, Channel, distance, easy, features, shift, usual_channel
from scdd.lm.edits.draft import Draft
from scdd.lm.edits.fills import drawn
from scdd.lm.edits.lexicon import Lexicon, english, packed, unpacked
from scdd.lm.edits.near import within_one
from scdd.lm.edits.reading import Query, Reader
from scdd.lm.edits.search import Editor, windows
from scdd.lm.edits.survey import doubts
from scdd.lm.edits.words import cut
from scdd.lm.model import LM
from scdd.lm.options import OF_MODE
from scdd.lm.rows import Ranges
from scdd.processes.mdlm import MDLM
from scdd.schedules.masked import Masked

from . import tiny

SMALL = Lexicon(
    dict.fromkeys(
        [
            "the",
            "river",
            "runs",
            "to",
            "sea",
            "quick",
            "brown",
            "fox",
            "jumps",
            "over",
            "lazy",
            "dog",
            "and",
            "falcon",
            "flies",
            "a",
            "lot",
            "run",
            "there",
        ],
        12.0,
    )
    | {"London": 12.0}
)
BY_SPELLING = Channel({}, {kind: 5.0 if kind in ("spelling", "repeat") else -50.0 for kind in KINDS}, 0.0)


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> LM:
    return scdd.load(tiny.checkpoint(tmp_path_factory.mktemp("edits") / "model"), device="cpu")


@cache
def osa(a: str, b: str) -> int:
    """Optimal string alignment from its definition."""
    if not a or not b:
        return len(a) + len(b)
    ways = [osa(a[1:], b) + 1, osa(a, b[1:]) + 1, osa(a[1:], b[1:]) + (a[0] != b[0])]
    if len(a) > 1 and len(b) > 1 and a[:2] == b[1::-1]:
        ways.append(osa(a[2:], b[2:]) + 1)
    return min(ways)


def test_distance_and_neighbours_are_those_of_the_definition() -> None:
    rng = Random(0)
    words = ["".join(rng.choices("abc", k=rng.randrange(0, 6))) for _ in range(60)]
    for a, b in itertools.product(words, words[:20]):
        assert distance(a, b) == osa(a, b)
        assert within_one(a, b) == (osa(a, b) <= 1)
    lexicon = Lexicon({word: 1.0 for word in words if word})
    for word in words[:20]:
        assert set(lexicon.near(word)) == {w for w in words if w and osa(word, w) == 1}
        two = lexicon.near(word, 2)
        assert {w for w in words if w and 0 < osa(word, w) <= 2} <= set(two)
        assert all(osa(word, w) == 1 for w, d in two.items() if d == 1)
        # two steps, one after the other, may do what an alignment may not: insert between two letters that were swapped
        assert all(osa(word, w) <= 3 for w in two)


def test_easy_slips() -> None:
    assert all(easy(a, b) for a, b in (("teh", "the"), ("runing", "running"), ("becouse", "because"), ("rhe", "the")))
    assert easy("importand", "important")
    assert not any(easy(a, b) for a, b in (("the", "the"), ("zhe", "the"), ("abc", "xyz"), ("thex", "the")))


def test_words_survive_packing() -> None:
    counts = {"the": 1 << 20, "river": 700, "London": 40}
    assert unpacked(packed(counts)).counts == {"the": 20.0, "river": 9.0, "London": 5.0}
    assert all(english().knows(word) for word in ("the", "The", "river's", "don’t", "London", "because"))
    assert not any(map(english().knows, ("becouse", "siences", "tecnologies")))


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab'n tI.,\n-’é9@\u2003", max_size=40))
def test_words_and_gaps_are_the_text(text: str) -> None:
    words = cut(text)
    assert "".join(word.gap + word.text for word in words) == text[: len(text.rstrip())]
    assert all(text[word.start : word.end] == word.text for word in words)


def test_names_numbers_and_frozen_words_are_not_free() -> None:
    text = "Here Pasteur met 42 men at a@b.org in the USA . He said mRNA is n't it , i think."
    free = {word.text: word.free for word in cut(text, [(text.index("think"), text.index("think") + 2)])}
    assert not any(free[name] for name in ("Pasteur", "42", "USA", "mRNA", "think"))
    assert all(free[name] for name in ("Here", "met", "men", "He", "said", "i", ","))
    read = "".join(word.read for word in cut(text))
    assert read == "Here Pasteur met 42 men at a@b.org in the USA. He said mRNA isn't it, i think."


def test_candidates_of_words() -> None:
    def of(text: str, i: int) -> set[tuple[tuple[str, ...], str]]:
        return {(each.new, each.kind) for each in for_word(cut(text), i, SMALL)}

    assert (("The",), "spelling") in of("Teh river", 0)
    assert (("a", "lot"), "split") in of("alot", 0)
    assert (("London",), "case") in of("in london", 1)
    assert (("runs",), "form") in of("it run", 1)
    assert (("the",), "confusion") in of("to a river", 1)
    assert (("there",), "join") in for_join("the re")
    assert of("he met Pasteur", 2) == set()
    assert (("runs",), "form") in of("the run", 1)  # but parts of a compound have forms of their own
    assert {kind for text, i in (("the sea-run", 3), ("run-river", 0)) for _, kind in of(text, i)} <= {"near", "slip"}
    assert (("river",), "spelling") in of("the run-rivr", 3)
    assert of("it ca n't", 1) == of("it ca n't", 2) == set()  # written apart as corpora do, not by mistake
    common = Lexicon({"good": 14.0, "goo": 4.0, "wood": 12.0, "goods": 9.0})
    assert {each.new[0]: each.kind for each in for_word(cut("a goo reputation"), 1, common)} == {"good": "slip"}
    assert {each.new[0]: each.kind for each in for_word(cut("a wood one"), 1, common)} == {"good": "near"}
    assert [each.kind for each in deletions(cut("run run"), 1)] == ["repeat"]
    assert [each.kind for each in deletions(cut("run to"), 1)] == ["delete"]
    for mark in "\t\n":  # columns and lines stay
        assert not deletions(cut(f"run{mark}to sea"), 1)
        assert not deletions(cut(f"run{mark}run"), 1)
        assert not may_insert(cut(f"run{mark}sea"), 1)
    assert swaps(cut("river The"), 0) == []
    assert [each.new for each in swaps(cut("River the sea"), 0)] == [("The", "river")]
    held = cut("run to sea", [(0, 10)])
    assert not may_insert(held, 1)
    assert may_insert(cut("run to sea"), 1)
    assert grammar.forms("studies", Lexicon({"study": 1, "studied": 1, "studying": 1})) == [
        "studied",
        "study",
        "studying",
    ]


SPOILT = ("the", "teh", "the", "run", "alot", "river", "to", "a", ",", "wood", "there", "the re", "runing")


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(SPOILT), st.sampled_from((" ", "  ", " ", "\t"))), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 6)), max_size=4),
)
def test_frozen_characters_stay_whatever_is_done_beside_them(
    pieces: list[tuple[str, str]], lengths: list[tuple[int, int]]
) -> None:
    text = "".join(word + gap for word, gap in pieces)
    frozen = [(low, min(low + length, len(text))) for low, length in lengths if low < len(text)]
    words, kept = cut(text, frozen), Ranges(frozen)
    every = [each for i in range(len(words)) for each in for_word(words, i, SMALL) + deletions(words, i)]
    every += [each for i in range(len(words)) for each in swaps(words, i)]
    every += [
        Candidate(i, i, (new,), "insert") for i in range(len(words)) if may_insert(words, i) for new in ("a", ",")
    ]
    assert frozen or all(each.spares(words, kept) for each in every)
    for each in every:
        start, end, new = each.written(words)
        held = [place for low, high in frozen for place in range(low, high)]
        # an insertion parts what is frozen as one piece if both its neighbours are of it
        parted = any(low < start < high for low, high in frozen) if start == end else False
        assert each.spares(words, kept) == (not parted and not any(start <= place < end for place in held))
        if each.spares(words, kept):
            made = text[:start] + new + text[end:]
            moved = len(made) - len(text)
            for low, high in frozen:
                shift = moved if low >= end else 0
                assert made[low + shift : high + shift] == text[low:high]


def test_a_word_is_not_taken_away_with_a_frozen_gap() -> None:
    model, waited = scdd.load(device="cpu"), "I waited for the the, and then I left."
    for text, freeze in ((waited, "I waited for the "), (waited, (16, 17)), ("The  the cat sat on the mat.", "The  ")):
        [edit] = model.correct(text, mode="edit").edits
        assert edit.kind == "repeat"
        assert model.correct(text, mode="edit", freeze=[freeze]).edits == ()
        assert model.correct(text, mode="edit", freeze=[(edit.start - 1, edit.start)]).edits == (edit,)


def test_nothing_is_put_between_frozen_characters(lm: LM) -> None:
    words = cut("the river runs", [(0, 4)])
    inserted = Candidate(1, 1, ("quick",), "insert")
    assert may_insert(words, 1)
    assert not inserted.spares(words, Ranges([(0, 4)]))
    for beside in ([(0, 3)], [(3, 4)], [(0, 3), (3, 4)], []):
        assert inserted.spares(words, Ranges(beside))
    assert not inserted.spares(words, Ranges([(0, 3), (2, 4)])), "pieces that overlap are one"


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_where_frozen_ranges_are_now(seed: int) -> None:
    rng = Random(seed)
    draft = Draft("".join(rng.choices("abcdef", k=30)))
    ranges = [(5 * k, 5 * k + 2) for k in range(1, 6)]
    for k in rng.sample(range(6), rng.randrange(6)):  # edits between them
        [low, high] = draft.now([(5 * k + 2, 5 * k + 3)])[0]
        draft.put(low, high + rng.randrange(2), "XYZ"[: rng.randrange(4)], 1.0, "fill")
    shown = [draft.original[low:high] for low, high in ranges]
    assert [draft.text[low:high] for low, high in draft.now(ranges)] == shown


def test_words_that_are_formed_by_rule() -> None:
    some = Lexicon(
        dict.fromkeys(["locksmith", "night", "paddle", "boat", "new", "rinse", "grit", "lord"], 5.0) | {"rare": 2.0}
    )
    for word in (
        "locksmiths",
        "overnight",
        "paddleboat",
        "newish",
        "rinses",
        "gritted",
        "nightly",
        "rinser",
        "paddleboat's",
    ):
        assert grammar.formed(word, some), word
    for word in ("becouse", "locksmihts", "rares", "newboat", "x", ""):  # of a rare word, of halves that are too short
        assert not grammar.formed(word, some), word


def for_join(text: str) -> set[tuple[tuple[str, ...], str]]:
    return {(each.new, each.kind) for each in for_word(cut(text), 0, SMALL)}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_a_draft_is_the_original_with_its_edits(seed: int) -> None:
    rng = Random(seed)
    draft = Draft("".join(rng.choices("abcdef", k=12)))
    for _ in range(4):
        start = rng.randrange(len(draft.text) + 1)
        end = rng.randrange(start, min(len(draft.text), start + 3) + 1)
        expected = draft.text[:start] + "XY"[: rng.randrange(3)] + draft.text[end:]
        draft.put(start, end, expected[start : len(expected) - (len(draft.text) - end)], 1.0, "fill")
        assert draft.text == expected
        edits, made, place = draft.edits, "", 0
        for edit in edits:
            assert place <= edit.start
            assert draft.original[edit.start : edit.end] == edit.before != edit.after
            made += draft.original[place : edit.start] + edit.after
            place = edit.end
        assert made + draft.original[place:] == expected


def test_answers_are_the_networks_and_equal_rows_are_evaluated_once(lm: LM) -> None:
    reader, mask = Reader(lm.engine), lm.tokenizer.mask_id
    rows = [(5, mask, 7), (5, mask, 7), (9, 8, mask), (4, mask)]
    places = (1, 0, 2, 1)
    answers = reader.ask([Query(row, place, (3, 6), 2) for row, place in zip(rows, places, strict=True)])
    assert reader.nfe == 3
    for row, place, answer in zip(rows, places, answers, strict=True):
        z = torch.tensor([lm.engine.framed(row)])
        with torch.no_grad():
            expected = lm.network.logits(z, torch.tensor([0.1], dtype=torch.float64))[0, 1 + place].log_softmax(-1)
        assert answer.log_p == pytest.approx(expected[[3, 6]].tolist(), abs=1e-5)
        assert [token for token, _ in answer.top] == expected.topk(2).indices.tolist()


def test_features_are_log_likelihood_ratios(lm: LM) -> None:
    """Chain rule over the span, its rest masked, and each neighbour behind a mask of its own place: token by token here."""
    words = cut("The river runs to the sea.")
    reader, doubt = Reader(lm.engine), [0.5] * 7
    candidates = [
        Candidate(1, 2, ("falcon",), "near"),
        Candidate(3, 3, ("quick",), "insert"),
        Candidate(3, 4, (), "delete"),
    ]
    found = features(reader, words, candidates, SMALL, doubt)
    encode, mask = lm.tokenizer.encode, lm.tokenizer.mask_id

    def log_p(row: list[int], place: int, token: int) -> float:
        z = torch.tensor([lm.engine.framed(row)])
        with torch.no_grad():
            return float(
                lm.network.logits(z, torch.tensor([0.1], dtype=torch.float64)).log_softmax(-1)[0, 1 + place, token]
            )

    def parts(left: list[int], span: list[int], right: list[int]) -> tuple[float, float]:
        inside = 0.0
        for j, token in enumerate(span):
            inside += log_p([*left, *span[:j], *[mask] * (len(span) - j), *right], len(left) + j, token)
        on_left, on_right = [*left[:-1], mask, *span, *right], [*left, *span, mask, *right[1:]]
        if span:  # both at once
            on_left[len(left) + len(span)] = on_right[len(left) - 1] = mask
        beside = log_p(on_left, len(left) - 1, left[-1]) + log_p(on_right, len(left) + len(span), right[0])
        return inside, beside

    pieces = [encode(word.read) for word in words]
    flat = [
        [token for piece in part for token in piece]
        for part in (pieces[:1], pieces[2:], pieces[:3], pieces[3:], pieces[4:])
    ]
    cases = [
        (flat[0], pieces[1], encode(" falcon"), flat[1]),
        (flat[2], [], encode(" quick"), flat[3]),
        (flat[2], pieces[3], [], flat[4]),
    ]
    for values, (left, old, new, right) in zip(found, cases, strict=True):
        before, after = parts(left, old, right), parts(left, new, right)
        assert values["span"] == pytest.approx(after[0] - before[0], abs=1e-4)
        assert values["beside"] == pytest.approx(after[1] - before[1], abs=1e-4)
        assert values["tokens"] == len(new) - len(old)
        assert set(values) == set(FEATURES)
    assert found[0]["distance"] == osa("river", "falcon")
    assert found[0]["letters"] == pytest.approx(math.log(5))
    assert found[0]["around"] == pytest.approx(math.log(1.5))


def test_features_of_a_word_that_is_in_no_list(lm: LM) -> None:
    words = cut("The rivers and the rivr: the rivr runs.")
    spellings = [Candidate(i, i + 1, ("river",), "spelling") for i in (1, 4, 7)]
    assert [words[each.first].text for each in spellings] == ["rivers", "rivr", "rivr"]
    doubt = [float(i) for i in range(len(words))]
    found = features(Reader(lm.engine), words, spellings, SMALL, doubt)
    assert [each["formed"] for each in found] == [1.0, 0.0, 0.0]
    assert [each["again"] for each in found] == [0.0, 1.0, 1.0]  # who writes a word twice means it
    assert [each["rare"] for each in found] == [0.0] * 3
    few = Lexicon(SMALL.counts | {"river": 3.0, "River": 12.0})  # a name that is as common says nothing
    assert features(Reader(lm.engine), words, spellings[:1], few, doubt)[0]["rare"] == 1.0
    others = [value for i, value in enumerate(doubt) if words[i].is_word and i != 4]
    assert found[1]["around"] == pytest.approx(math.log1p(sum(others) / len(others)))


def test_doubts_are_those_of_the_visible_text(lm: LM) -> None:
    words = cut("The river runs.")
    row = [token for word in words for token in lm.tokenizer.encode(word.read)]
    z = torch.tensor([lm.engine.framed(row)])
    with torch.no_grad():
        log_p = lm.network.logits(z, torch.tensor([0.1], dtype=torch.float64)).log_softmax(-1)[0, 1:-1]
    assert sum(doubts(Reader(lm.engine), words)) == pytest.approx(-float(log_p[range(len(row)), row].sum()), abs=1e-4)


def test_windows_look_at_every_word_once_and_fit(lm: LM) -> None:
    words = cut("The river runs to the sea. " * 12)
    reader, seen = Reader(lm.engine), []
    for window, core in windows(reader, words, set(range(len(words)))):
        assert sum(len(reader.tokens(word.read)) for word in window.words) <= lm.engine.room
        seen += [window.start + i for i in core]
    assert seen == list(range(len(words)))


def test_edits_of_a_text(lm: LM) -> None:
    text = "  Teh river runs runs to teh sea ,\tand teh Pasteur 42 flies.\n"
    editor = Editor(lm.engine, SMALL, BY_SPELLING, 0.1)
    made = editor.edit(text)
    assert made.text == "  The river runs to the sea ,\tand the Pasteur 42 flies.\n"
    assert [(edit.before, edit.after, edit.kind) for edit in made.edits] == [
        ("Teh", "The", "spelling"), (" runs", "", "repeat"), ("teh", "the", "spelling"), ("teh", "the", "spelling"),
    ]  # fmt: skip
    assert all(edit.log_odds == pytest.approx(5.0) for edit in made.edits)
    first = text.index("teh")
    kept = editor.edit(text, [(first, first + 1)])
    assert kept.text == made.text.replace("to the", "to teh")
    assert replace(editor, strength=1e-4).edit(text).edits == ()  # the same evidence against a smaller prior
    assert shift(0.1) == 0
    assert editor.edit("Teh sea. " * 9).text == "The sea. " * 9  # in several windows


def test_correct_in_mode_edit(lm: LM) -> None:
    text = "Becouse the river runs. " * 3  # longer than the context
    lm.channel = BY_SPELLING
    try:
        found = lm.correct(text, mode="edit", freeze=["Becouse"])
        assert (found.text, found.edits, found.corrections) == (text, (), 0)
        found = lm.correct(text, mode="edit")
        editing = Editor(lm.engine, english(), BY_SPELLING, 0.1)
    finally:
        del lm.channel
    assert found.text == text.replace("Becouse", "Because")
    assert found.edits[:1] == editing.edit("Becouse the river").edits
    assert found.tokens == tuple(lm.tokenizer.encode(found.text))
    assert [edit.start for edit in found.edits] == [24 * i for i in range(3)]
    assert len(found.json()["edits"]) == found.corrections == 3
    assert "<del" in found._repr_html_()
    assert "spelling, log-odds 5.0" in found._repr_html_()
    masked = LM(lm.network, MDLM(lm.tokenizer.vocab, Masked()), lm.tokenizer, 40)  # needs no uniform noise
    assert masked.correct("The river", mode="edit").before == "The river"


def test_the_models_own_fillings_follow_from_the_seed(lm: LM) -> None:
    words = cut("The river runs to the sea.")
    known = Lexicon({piece: 9.0 for piece in map(lm.tokenizer.token, range(300)) if piece.strip().isalpha()})
    every = [drawn(Reader(lm.engine), words, 2, known, seed) for seed in range(3)]
    assert every == [drawn(Reader(lm.engine), words, 2, known, seed) for seed in range(3)]
    assert all(each.kind == "fill" and (each.first, each.last) == (2, 3) for found in every for each in found)
    assert any(every)
    assert all(len(each.new) == 1 and known.knows(each.new[0]) for found in every for each in found)


def test_parameters_are_checked_and_a_model_brings_its_own(lm: LM, tmp_path: Path) -> None:
    usual = usual_channel()
    assert set(usual.bias) == set(KINDS)
    assert set(usual.weights) == set(GROUPS.values())
    assert usual.margin > 0
    checkpoint = bundle.read(tiny.checkpoint(tmp_path / "plain"))
    own = bundle.write(tmp_path / "own", replace(checkpoint, extra={"edits": BY_SPELLING.json()}), checkpoint.weights)
    assert scdd.load(own, device="cpu").channel == BY_SPELLING
    for wrong in (
        {},
        {"weights": {}, "bias": {"spell": 1.0}, "margin": 0},
        {"weights": {"x": {}}, "bias": {}, "margin": 0},
    ):
        bad = bundle.write(tmp_path / "bad", replace(checkpoint, extra={"edits": wrong}), checkpoint.weights)
        with pytest.raises(UserError, match=r"meta\.json has wrong edit parameters"):
            scdd.load(bad, device="cpu")


def test_slips_can_be_undone() -> None:
    text = "The quick brown fox jumps over the lazy dog, and the falcon flies to London over the river there."
    kinds = set()
    for seed in range(300):
        spoilt, made = spoil(text, 0.2, Random(seed), SMALL)
        for slip in reversed(made):
            kinds.add(slip.kind)
            spoilt = spoilt[: slip.start] + slip.meant + spoilt[slip.end :]
        assert spoilt == text
    assert {"character", "missing", "extra", "swapped words", "repeated word", "capital"} <= kinds <= set(SHARES)


def test_who_watches_hears_of_every_word(lm: LM) -> None:
    text, heard = "The river runs to the sea, and the falcon flies over it. " * 4, list[tuple[int, int]]()
    correction = lm.to_repair(text, {"mode": "edit"}).at_once(lambda done, total: heard.append((done, total)))
    words = len(cut(text))
    assert len(heard) > 1
    assert {total for _, total in heard} == {words}
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)
    assert heard[-1][0] == words
    assert correction.before == text


@pytest.mark.parametrize(("name", "mode"), OF_MODE.items())
def test_options_of_another_mode_are_refused(name: str, mode: str, lm: LM) -> None:
    wishes: dict[str, Any] = {name: {"steps": 3, "final": "greedy"}.get(name, 0.5)}
    for other in ("edit", "reverse", "pass"):
        if other == mode:
            assert lm.correct("The river", mode=other, **wishes).mode == mode
        else:
            with pytest.raises(UserError, match=f"{name} is of mode {mode}, and the mode is {other}"):
                lm.correct("The river", mode=other, **wishes)
