"""[MASK:4-12]: which lengths are tried, and how their fillings are ranked."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import scdd
import scdd.lm.gaps as gaps
from scdd.core.errors import UserError
from scdd.lm.gaps import NEAR
from scdd.lm.model import LM
from scdd.lm.rows import MOST_LENGTHS, MOST_TRIES, Row, with_gaps
from scdd.lm.run import windows, windows_of
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked
from tests import tiny
from tests.test_lm import TOKENIZER, VOCAB, Knows


def model(process: object = None) -> LM:
    return LM(tiny.network(), process or SCDD(VOCAB, Peaked(p_u=0.2)), TOKENIZER, 40)  # type: ignore[arg-type]


def test_the_lengths_of_a_span() -> None:
    def sizes(span: str) -> tuple[tuple[int, ...], ...]:
        return with_gaps(TOKENIZER, f"The {span} sea").sizes

    assert sizes("[MASK]") == ((1,),)
    assert sizes("[MASK:7]") == ((7,),)
    assert sizes("[MASK:7-7]") == ((7,),)
    assert sizes("[MASK:4-12]") == (tuple(range(4, 13)),)
    [wide] = sizes("[MASK:1-100]")
    assert len(wide) == MOST_LENGTHS == len(set(wide))
    assert (wide[0], wide[-1]) == (1, 100)
    two = with_gaps(TOKENIZER, "A [MASK:1-2] and [MASK:2-4] sea")
    assert two.tries == list(product((1, 2), (2, 3, 4)))
    for lengths in two.tries:
        row = two.row(lengths)
        assert row.frozen.count(False) == sum(lengths) == row.tokens.count(VOCAB.mask_id)
        assert len(row) == sum(lengths) + sum(map(len, two.given))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("The [MASK:9-4]", r"write \[MASK:4-9\]"),
        ("The [MASK:0-4]", "asks for no token"),
        ("The [MASK:1-99999999999999]", "asks for too much"),
        ("[MASK:1-16] a [MASK:1-16]", f"256 ways and at most {MOST_TRIES}"),
    ],
)
def test_ranges_that_nobody_can_mean(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        model().infill(text)


@pytest.mark.parametrize(
    "nearly",
    [
        *("[mask]", "[Mask:4]", "[MASK: 4]", "[MASK :4]", "[MASK ]", "[ MASK]", "[MASK:]", "[MASK:4-]", "[MASK:-1]"),
        *("[MASK:4 - 12]", "[MASK:4–12]", "[MASK4]", "[MASK_4]", "[MASK 4]", "[MASK:four]", "[MASK:\n4]"),
    ],
)
def test_what_is_nearly_a_span_is_refused_and_not_left_in_the_text(nearly: str) -> None:
    for text in (f"Dear [MASK:3], it is {nearly} today", f"{nearly} [MASK]", f"[MASK]{nearly}[mask]", f"The {nearly}"):
        with pytest.raises(UserError) as caught:
            with_gaps(TOKENIZER, text)
        assert str(caught.value).startswith(f"The text has {nearly!r}, ")
        assert all(right in str(caught.value) for right in ("[MASK]", "[MASK:4]", "[MASK:4-12]"))
    with pytest.raises(UserError, match=r"^.{,200}$"):
        with_gaps(TOKENIZER, f"[MASK] [MASK:{'x' * 5000}]")


@pytest.mark.parametrize(
    "text", ["[masked]", "[Maskell 2009]", "mask", "[a mask]", "mask]", "[", "[1] [MASK:2]", "[[MASK]]"]
)
def test_other_words_in_brackets_stay(text: str) -> None:
    whole = f"The [MASK] sea {text}"
    assert sum(map(len, with_gaps(TOKENIZER, whole).sizes)) == whole.count("[MASK")


def test_the_bound_of_a_filling_is_that_of_its_tokens_given_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under masking a token's NELBO is the cross-entropy of x_θ, averaged over the masks around it; where x_θ looks at none of
    them, it is −log x_θ(x), and that of a filling is the sum over its free tokens, whatever is frozen."""
    text, tokens = "The sea.", TOKENIZER.encode("The sea.")
    known = Knows(text)
    lm = LM(known, MDLM(VOCAB, Masked()), TOKENIZER, 80)  # type: ignore[arg-type]
    log_p = (known.head.weight[: VOCAB.size, :].T).log_softmax(-1)  # of what is known, everything
    log_p = log_p - torch.log1p(-log_p[:, VOCAB.mask_id].exp())[:, None]  # x_θ never says [MASK]
    monkeypatch.setattr(gaps, "LOOKS", 1024)
    wrong = (tokens[0], (tokens[1] + 1) % VOCAB.mask_id, *tokens[2:])
    for row, free in ((tuple(tokens), (0, 1)), (wrong, (0,)), (wrong, (1,)), (wrong, range(len(tokens)))):
        frozen = tuple(i not in free for i in range(len(tokens)))
        want = -sum(float(log_p[tokens[i], row[i]]) for i in free)
        assert gaps.bound(lm.engine, Row(row, frozen)) == pytest.approx(want, rel=0.2), free


class KnowsLength(Knows):
    """It knows its text where the row is as long as it, and nothing elsewhere."""

    def hidden(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        if z_t.shape[1] == len(self.row):
            return super().hidden(z_t, t, documents)
        return torch.zeros(*z_t.shape, VOCAB.size)


def test_the_length_that_the_model_knows_wins() -> None:
    text = "The river runs to the sea."
    lm = LM(KnowsLength(text), SCDD(VOCAB, Peaked(p_u=0.2)), TOKENIZER, 80)  # type: ignore[arg-type]
    tokens = TOKENIZER.encode(text)
    inside = len(tokens) - 1 - len(TOKENIZER.encode("The"))
    [best] = lm.infill(f"The[MASK:{inside - 2}-{inside + 2}].", steps=20, top_k=1)
    assert best.text == text
    assert best.tried[0].lengths == (inside,)
    assert {len(each.lengths) for each in best.tried} == {1}
    assert [each.score for each in best.tried] == sorted(each.score for each in best.tried)


def test_the_best_few_of_all_lengths() -> None:
    lm = model()
    found = lm.infill("The [MASK:2-4] sea", num=3, steps=4, temperature=3.0)
    assert len(found) == 3
    assert len({sample.tokens for sample in found}) == 3
    shown = found[0].tried
    assert [sample.index for sample in found] == [each.index for each in shown[:3]]
    assert 3 <= len(shown) <= 9
    assert all(math.isfinite(each.nats) for each in shown)
    for sample, one in zip(found, shown, strict=False):
        assert len(sample.tokens) == sum(one.lengths) + len(TOKENIZER.encode("The")) + len(TOKENIZER.encode(" sea"))
        assert sample.json()["tried"][0]["lengths"] == list(shown[0].lengths)


def test_a_list_is_answered_as_each_text_alone() -> None:
    lm = model()
    texts = ["The [MASK:2-4] sea", "A [MASK] river", "The [MASK:2-4] sea"]
    alone = [sample for text in texts for sample in lm.infill(text, num=2, steps=4, seed=3)]
    for size in (1, 5, 64):
        assert [each.json() for each in lm.infill(texts, num=2, steps=4, seed=3, batch_size=size)] == [
            each.json() for each in alone
        ]


def test_texts_beyond_the_context() -> None:
    lm = model()
    long = "The river runs to the sea. " * 8
    [sample] = lm.infill(f"{long}The [MASK:1-3] sea", blocks=True, steps=3)
    assert sample.tried
    assert all(math.isfinite(each.nats) for each in sample.tried)
    [unfinished] = lm.infill("The [MASK:1-3] sea", steps=2, final="none")
    assert math.isinf(unfinished.tried[-1].nats) or VOCAB.mask_id not in unfinished.tokens


def test_what_is_drawn_stands_in_the_middle_of_its_window() -> None:
    def parts(length: int, free: range, room: int = 20) -> list[tuple[int, int, int]]:
        return [tuple(window) for window in windows_of([i not in free for i in range(length)], room)]  # type: ignore[misc]

    assert parts(20, range(3, 9)) == [(0, 20, 0)]
    assert parts(60, range(30, 34)) == [(22, 42, 22)]
    assert parts(60, range(2, 6)) == [(0, 20, 0)]
    assert parts(60, range(57, 60)) == [(40, 60, 40)]
    assert parts(60, range(30, 41)) == [tuple(each) for each in windows(60, 20)]  # too wide for a middle
    assert parts(60, range(0)) == [tuple(each) for each in windows(60, 20)]
    for first in range(55):
        [(start, stop, fresh)] = parts(60, range(first, first + 5))
        assert (stop - start, fresh) == (20, start)
        assert start <= first
        assert first + 5 <= stop
        assert start in (0, 40) or abs((first - start) - (stop - first - 5)) <= 1


def test_lengths_are_compared_around_the_gap_however_long_the_text() -> None:
    """Evaluations of a range in a long text have the tokens of a short one; what stands around the gap stays."""
    lm = scdd.load(device="cpu")
    words = "The river runs to the sea, and the town lies on its northern bank. " * 9
    text = words + "It has a population of [MASK:1-2] people." + f" {words}"
    seen: list[int] = []
    hidden = type(lm.network).hidden

    def counted(network: Any, z: torch.Tensor, *given: Any, **more: Any) -> torch.Tensor:
        seen.append(z.shape[1])
        return hidden(network, z, *given, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(lm.network), "hidden", counted)
        [found] = lm.infill(text, steps=2)
        assert max(seen) == NEAR + 2 < len(found.tokens)
        seen.clear()
        [fixed] = lm.infill(text.replace("1-2", "2"), steps=2)
        assert max(seen) == len(fixed.tokens) + 2
    for sample in (found, fixed):
        assert sample.text.startswith(words)
        assert sample.text.endswith(words)
    assert lm.infill([text, "The [MASK] runs."], steps=2)[0] == found  # in company as alone
