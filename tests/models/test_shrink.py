"""Networks with fewer blocks and fewer ids: what is kept computes what it computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from scdd.core.errors import OptionError, UserError
from scdd.core.types import Vocab
from scdd.models.options import DiTConfig, LlamaConfig, PretrainedOptions, make_network
from scdd.models.shrink import fewer_ids, fewer_layers

VOCAB = Vocab(40, 39)
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"kind": "llama", **vars(LlamaConfig(depth=5, width=16, heads=2, kv_heads=1, head_width=8, mlp_width=24))},
    "untied": {
        "kind": "llama",
        **vars(LlamaConfig(depth=3, width=16, heads=2, kv_heads=1, head_width=8, mlp_width=24, tied=False)),
    },
    "dit": vars(DiTConfig(depth=4, width=16, heads=2, cond_width=8, input_bias=True)),
}


def built(shape: dict[str, Any], vocab: Vocab = VOCAB) -> Any:
    generator = torch.Generator().manual_seed(0)
    network = make_network(shape, vocab, generator)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    return network.eval()


@pytest.mark.parametrize("kind", list(SHAPES))
def test_the_kept_blocks_compute_what_the_whole_network_does_without_the_others(kind: str) -> None:
    whole, tokens = built(SHAPES[kind]), torch.randint(0, 39, (2, 9), generator=torch.Generator().manual_seed(1))
    kept = (0, 2)
    description, weights = fewer_layers(SHAPES[kind], whole.state_dict(), kept)
    small = make_network(description, VOCAB).eval()
    small.load_weights(weights)
    with torch.no_grad():
        before = whole.logits(tokens)
        whole.blocks = nn.ModuleList(whole.blocks[i] for i in kept)
        assert torch.equal(small.logits(tokens), whole.logits(tokens))
    assert not torch.equal(before, small.logits(tokens))


@pytest.mark.parametrize("kind", list(SHAPES))
def test_fewer_ids_leave_the_logits_of_those_that_stay(kind: str) -> None:
    kept, after = [1, 2, 5, 30, 39], Vocab(5, 4)
    whole = built(SHAPES[kind])
    small = make_network(SHAPES[kind], after).eval()
    small.load_weights(fewer_ids(SHAPES[kind], whole.state_dict(), VOCAB, after, kept))
    tokens = torch.tensor([[0, 1, 4, 3, 2, 0]])
    with torch.no_grad():
        ours, theirs = small.logits(tokens), whole.logits(torch.tensor(kept)[tokens])[..., kept]
    torch.testing.assert_close(ours, theirs)
    assert all(bool((row == 0).all()) for row in small.head.weight[5:])


@pytest.mark.parametrize(
    ("depth", "keep", "kept"),
    [(30, 4, (0, 10, 19, 29)), (6, 2, (0, 5)), (5, 1, (0,)), (4, 4, (0, 1, 2, 3)), (7, 3, (0, 3, 6))],
)
def test_an_even_choice_has_the_first_and_the_last(depth: int, keep: int, kept: tuple[int, ...]) -> None:
    assert PretrainedOptions(depth=keep).kept(depth) == kept
    assert PretrainedOptions().kept(depth) == tuple(range(depth))


def test_every_even_choice_is_ascending_and_complete() -> None:
    for depth in range(1, 40):
        for keep in range(1, depth + 1):
            kept = PretrainedOptions(depth=keep).kept(depth)
            assert len(set(kept)) == keep
            assert list(kept) == sorted(kept)
            assert kept[0] == 0
            assert keep == 1 or kept[-1] == depth - 1


def test_wrong_choices_are_refused() -> None:
    for layers in ((), (1, 1), (2, 1)):
        with pytest.raises(OptionError, match="in ascending order"):
            PretrainedOptions(layers=layers)
    with pytest.raises(OptionError, match="set one to null"):
        PretrainedOptions(depth=2, layers=(0, 1))
    with pytest.raises(OptionError, match="names block 9, and the model has 0 to 4"):
        PretrainedOptions(layers=(0, 9)).kept(5)
    with pytest.raises(OptionError, match="depth is 6, and the model has 5 blocks"):
        PretrainedOptions(depth=6).kept(5)
    with pytest.raises(UserError, match="of kind import: leave them out"):
        fewer_layers({"kind": "import", "target": "a:b"}, {}, (0,))


@pytest.mark.parametrize("kind", SHAPES)
def test_weights_that_lack_rows_are_refused_in_a_sentence(kind: str) -> None:
    weights = built(SHAPES[kind]).state_dict()
    short = {**weights, "embedding.weight": weights["embedding.weight"][:7]}
    none = {name: each for name, each in weights.items() if name != "embedding.weight"}
    for damaged in (short, none):
        with pytest.raises(UserError, match=r"embedding\.weight is missing, or has no row for each of 40 ids"):
            fewer_ids(SHAPES[kind], damaged, VOCAB, Vocab(9, 8), range(31, 40))
    _, left = fewer_layers(SHAPES[kind], {**weights, "blocks.odd": weights["embedding.weight"]}, (0,))
    assert "blocks.odd" in left
