"""`training.recompute` and `training.micro_batch_size` change memory, and no gradient: alone, compiled and on ranks."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

from scdd.assemble import training as build
from scdd.core import Vocab
from scdd.core.errors import UserError
from scdd.core.types import Head
from scdd.models.dit import DiT
from scdd.models.llama import Llama
from scdd.models.network import Network
from scdd.models.options import DiTConfig, LlamaConfig
from scdd.recipe.load import load
from scdd.training.parallel import World

from .conftest import Launch, said
from .on_ranks import LLAMA, NEAR, Live, close, gradients

VOCAB = Vocab(30, 29)
NETWORKS = {
    "dit": lambda depth: DiT(DiTConfig(depth, 32, 2, cond_width=8, time_conditioning=True), VOCAB, seeded()),
    "llama": lambda depth: Llama(
        LlamaConfig(depth=depth, width=32, heads=2, kv_heads=1, head_width=16, mlp_width=96), VOCAB, seeded()
    ),
    "near": lambda depth: Llama(
        LlamaConfig(depth=depth, width=32, heads=2, kv_heads=1, head_width=16, mlp_width=96, attention_window=5),
        VOCAB,
        seeded(),
    ),
}


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(4)


def built(kind: str, depth: int, recompute: bool) -> Network:
    network, generator = NETWORKS[kind](depth), seeded()
    for p in network.parameters():  # nothing is zero, or half of it would learn nothing
        torch.nn.init.normal_(p, std=0.2, generator=generator)
    network.recompute = recompute  # type: ignore[assignment]
    return network


def learnt(network: Network, live: Live | None = None) -> tuple[dict[str, torch.Tensor], int]:
    """(Gradients by name, the bytes that were there between the passes, if `live` looks on)."""
    length = 32 if network.attention_window is None else 160  # more than are taken at a time
    z_t, t = torch.randint(29, (3, length), generator=seeded()), torch.linspace(0.1, 0.9, 3)
    with live or nullcontext():  # the compiler wants nobody to look on
        states = network.hidden(z_t, t)
    kept = 0 if live is None else live.now
    (states * torch.sin(torch.arange(states.numel())).view_as(states)).sum().backward()  # type: ignore[no-untyped-call]
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}, kept


@pytest.mark.parametrize("kind", NETWORKS)
def test_it_keeps_a_quarter_at_most_and_gives_the_same_gradients(kind: str) -> None:
    """Counted are all the bytes that the forward pass has made and that are still there after it."""
    plain, kept = learnt(built(kind, 4, False), Live())
    again, less = learnt(built(kind, 4, True), Live())
    assert 0 < less < 0.25 * kept
    assert plain.keys() == again.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(again[name], gradient, msg=lambda text, n=name: f"{n}: {text}")


def test_compiled_it_gives_the_same_gradients() -> None:
    """The DiT; tests/models/test_llama.py does so for the other."""
    torch._dynamo.reset()
    (plain, _), network = learnt(built("dit", 1, False)), built("dit", 1, True)
    network.compile(fullgraph=True, backend="aot_eager")
    for name, gradient in learnt(network)[0].items():
        torch.testing.assert_close(gradient, plain[name], atol=1e-5, rtol=1e-4, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("model", [(), (LLAMA,), NEAR], ids=["dit", "llama", "near"])
def test_pieces_of_any_size_give_the_gradient_of_the_whole(model: tuple[str, ...], recipe_file: Path) -> None:
    whole = gradients(str(recipe_file), World(), *model)
    for rows in (1, 2, 4):
        close(gradients(str(recipe_file), World(), *model, f"training.micro_batch_size={rows}"), whole)


@pytest.mark.dist
def test_ranks_recompute_and_accumulate_to_the_gradient_of_one_process(
    launch: Launch, recipe_file: Path, tmp_path: Path
) -> None:
    """DDP and FSDP, DiT and llama, that also with a window (`on_ranks`)."""
    out = tmp_path / "gradients"
    assert launch(out, 2, call="gradients_on_ranks", recipe=str(recipe_file)) == [0, 0], said(tmp_path, out)


class Own(nn.Module):
    """Somebody's own, which knows nothing of it."""

    def __init__(self, vocab: Vocab) -> None:
        super().__init__()
        self.vocab, self.inner = vocab, DiT(DiTConfig(1, 8, 2), vocab)

    @property
    def head(self) -> Head:
        return self.inner.head

    def hidden(self, z_t: torch.Tensor, t: torch.Tensor | None, documents: torch.Tensor | None) -> torch.Tensor:
        return self.inner.hidden(z_t, t, documents)


@pytest.mark.parametrize(
    ("option", "told"), [("recompute", "needs a network of kind dit or llama"), ("keep_products", "gated MLPs")]
)
def test_a_network_that_cannot_is_refused(option: str, told: str, recipe_file: Path, tmp_path: Path) -> None:
    spec = load(recipe_file, [f"training.{option}=true"])
    with pytest.raises(UserError, match=rf"training\.{option} .*{told}"):
        build.trainer(spec, tmp_path / "run", World(), build.corpus(spec), own_network=Own)


@pytest.mark.parametrize(
    ("changes", "kept"), [((), False), (("keep_products",), True), (("keep_products", "recompute"), False)]
)
def test_gated_products_are_kept_where_a_recipe_says_so(
    changes: tuple[str, ...], kept: bool, recipe_file: Path, tmp_path: Path
) -> None:
    llama = "model={kind: llama, size: custom, depth: 2, width: 32, heads: 2, kv_heads: 1, mlp_width: 96}"
    spec = load(recipe_file, [llama, *(f"training.{option}=true" for option in changes)])
    trainer = build.trainer(spec, tmp_path / "run", World(), build.corpus(spec))
    assert [layer.keeps_product for layer in trainer.module.network.layers()] == [kept, kept]
