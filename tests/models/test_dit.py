"""The network's laws: shapes, masks, time, dtype, compilation, decoding."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from scdd.core.denoiser import Denoiser
from scdd.core.errors import UserError
from scdd.core.types import Vocab
from scdd.models.blocks import gelu_of
from scdd.models.compiled import compile_network
from scdd.models.dit import DiT
from scdd.models.options import SIZES, DiTConfig
from tests.layouts import numbers

VOCAB = Vocab(size=50, mask_id=49)
CONFIG = DiTConfig(depth=2, width=32, heads=2, cond_width=16)


def network(vocab: Vocab = VOCAB, seed: int = 0, **changes: object) -> DiT:
    """A small network with nothing left at zero, so that every part takes part."""
    generator = torch.Generator().manual_seed(seed)
    model = DiT(dataclasses.replace(CONFIG, **changes), vocab, generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                torch.empty_like(parameter).normal_(0, 0.3 / parameter.shape[-1] ** 0.5, generator=generator)
            )
    return model.eval()


def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB.size, (batch, length), generator=torch.Generator().manual_seed(seed))


def times(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_shapes_and_protocol() -> None:
    model = network()
    assert isinstance(model, Denoiser)
    assert model.hidden(tokens(3, 7)).shape == (3, 7, 32)
    assert model.logits(tokens(3, 7)).shape == (3, 7, 50)
    assert model.logits(tokens(3, 7)).dtype == torch.float32
    assert model.head.weight.shape == (128, 32)
    assert model.head.bias is not None
    assert model.head.bias.shape == (128,)


@pytest.mark.parametrize("mask_id", [0, 17, 49])
def test_the_mask_and_the_padding_are_never_sampled(mask_id: int) -> None:
    model = network(Vocab(50, mask_id))
    with torch.no_grad():
        model.output.bias[50:] = 1e3  # whatever the padding holds
    logits = model.logits(tokens(2, 5))
    assert (logits[..., mask_id] == -math.inf).all()
    assert torch.isfinite(logits).sum() == 2 * 5 * VOCAB.K
    assert torch.allclose(logits.softmax(-1).sum(-1), torch.ones(2, 5))


def test_logits_are_hidden_times_head() -> None:
    model = network(input_bias=True)
    assert model.output.input_bias is not None
    model.output.input_bias.data.fill_(2.5)
    z = tokens(2, 6).clamp(max=VOCAB.mask_id - 1)
    plain = model.hidden(z) @ model.head.weight[:50].T + model.head.bias[:50]
    moved = model.logits(z) - plain
    at_input = moved.gather(-1, z[..., None])
    assert torch.allclose(at_input, torch.full_like(at_input, 2.5), atol=1e-5)
    assert moved[..., :49].sum().item() == pytest.approx(2.5 * z.numel(), abs=1e-2)


def test_what_training_treats_apart() -> None:
    model = network()
    assert model.layers() == list(model.blocks)
    matrices = [model.get_parameter(name) for name in model.hidden_matrices()]
    assert len(matrices) == 4 * CONFIG.depth
    assert sum(p.numel() for p in matrices) == CONFIG.depth * 12 * CONFIG.width**2


@pytest.mark.parametrize("size", SIZES)
def test_every_size_builds_on_the_meta_device(size: str) -> None:
    with torch.device("meta"):
        model = DiT(SIZES[size], Vocab(50_258, 50_257))
    assert all(p.is_meta for p in model.parameters())
    w, d = model.config.width, model.config.depth
    block = 12 * w**2 + 5 * w + 2 * w + 6 * w * 129  # matrices, MLP biases, norms, modulation
    outside = 256 * 128 + 128 + 128 * 128 + 128 + w + 2 * w * 129  # time embedding, final norm and modulation
    assert numbers(model) == d * block + outside + 50_258 * w + 50_304 * (w + 1)
    if size == "small":  # the paper counts 166 M
        assert 166e6 <= numbers(model) <= 170e6


def test_a_network_from_the_meta_device_is_whole_after_loading() -> None:
    model = network()
    with torch.device("meta"):
        other = DiT(CONFIG, VOCAB)
    other.to_empty(device="cpu")
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.logits(tokens(2, 9)), model.logits(tokens(2, 9)))


def test_it_starts_where_the_papers_code_does() -> None:
    model = DiT(CONFIG, VOCAB, torch.Generator().manual_seed(1))
    z = tokens(2, 6)
    ordinary = model.logits(z)[..., : VOCAB.mask_id]
    assert (ordinary == 0).all()  # uniform over ordinary tokens
    normal = torch.nn.functional.layer_norm(model.embedding(z), (32,))
    assert torch.allclose(model.hidden(z), normal, atol=1e-6)  # every block is the identity
    assert model.embedding.weight.abs().max() <= 32**-0.5
    assert model.embedding.weight.std().item() == pytest.approx(32**-0.5 / 3**0.5, rel=0.05)


def test_building_is_repeatable_and_leaves_global_randomness_alone() -> None:
    state = torch.get_rng_state()
    one = DiT(CONFIG, VOCAB, torch.Generator().manual_seed(5))
    two = DiT(CONFIG, VOCAB, torch.Generator().manual_seed(5))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_a_padded_batch_equals_its_members_alone() -> None:
    model = network()
    rows = [tokens(1, n, seed=n)[0] for n in (3, 7, 5)]
    z = torch.full((4, 9), 11)  # the last row is padding all through
    documents = torch.full((4, 9), -1)
    offsets = (0, 2, 4)  # padding may also come first
    for i, (row, at) in enumerate(zip(rows, offsets, strict=True)):
        z[i, at : at + len(row)] = row
        documents[i, at : at + len(row)] = 0
    together = model.hidden(z, documents=documents)
    assert torch.isfinite(together).all()
    for i, (row, at) in enumerate(zip(rows, offsets, strict=True)):
        alone = model.hidden(row[None])[0]
        assert torch.allclose(together[i, at : at + len(row)], alone, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_documents_do_not_see_each_other(causal: bool) -> None:
    model = network(causal=causal)
    first, second = tokens(1, 4, seed=1), tokens(1, 6, seed=2)
    documents = torch.tensor([[3] * 4 + [8] * 6 + [-1] * 2])
    packed = torch.cat((first, second, torch.zeros(1, 2, dtype=torch.long)), dim=1)
    together = model.hidden(packed, documents=documents)
    assert torch.allclose(together[:, :4], model.hidden(first), atol=1e-5)
    assert torch.allclose(together[:, 4:10], model.hidden(second), atol=1e-5)


def test_one_document_per_row_is_no_mask_at_all() -> None:
    model = network()
    z = tokens(2, 8)
    assert torch.allclose(model.hidden(z, documents=torch.zeros_like(z)), model.hidden(z), atol=1e-6)


@pytest.mark.parametrize("documents", [None, torch.zeros(1, 8, dtype=torch.long)])
def test_a_causal_network_does_not_see_the_future(documents: Tensor | None) -> None:
    z = tokens(1, 8)
    changed = z.clone()
    changed[0, 5] = (z[0, 5] + 1) % 49
    for causal in (True, False):
        model = network(causal=causal)
        moved = (model.hidden(z, documents=documents) - model.hidden(changed, documents=documents)).abs().amax(-1)[0]
        assert (moved[5:] > 1e-6).all()
        assert (moved[:5] > 1e-6).all() != causal


@pytest.mark.parametrize("chunks", [(1,) * 10, (4, 1, 1, 4), (10,), (1, 9)])
def test_cached_decoding_equals_the_full_forward(chunks: tuple[int, ...]) -> None:
    model = network(causal=True)
    z = tokens(2, 10)
    cache = model.cache(capacity=10)
    parts = [model.hidden(part, cache=cache) for part in z.split(chunks, dim=1)]
    assert torch.allclose(torch.cat(parts, dim=1), model.hidden(z), atol=1e-5)
    assert cache.length == 10
    with pytest.raises(UserError, match="holds 10 tokens"):
        model.hidden(z[:, :1], cache=cache)


def test_a_cache_is_refused_where_it_makes_no_sense() -> None:
    with pytest.raises(UserError, match="causal=True"):
        network().hidden(tokens(1, 1), cache=network().cache(4))


def test_without_time_conditioning_the_time_changes_nothing() -> None:
    model = network()
    z = tokens(2, 5)
    assert torch.equal(model.hidden(z, times(0.1, 0.9)), model.hidden(z))


@pytest.mark.parametrize("time_input", ["sigma", "t"])
def test_time_conditioning_acts_row_by_row(time_input: str) -> None:
    model = network(time_conditioning=True, time_input=time_input)
    z = tokens(1, 5).expand(3, 5)
    h = model.hidden(z, times(0.2, 0.8, 0.2))
    assert torch.allclose(h[0], h[2], atol=1e-6)
    assert (h[0] - h[1]).abs().max() > 1e-3
    # One row alone folds its gates into the weights; both ways are the same function.
    assert torch.allclose(model.hidden(z[:1], times(0.8))[0], h[1], atol=1e-5)
    assert torch.isfinite(model.hidden(z, times(0.0, 1.0, 0.5))).all()
    with pytest.raises(UserError, match="pass t"):
        model.hidden(z)


def test_sigma_is_the_log_linear_one() -> None:
    by_sigma, by_t = network(time_conditioning=True), network(time_conditioning=True, time_input="t")
    z, t = tokens(2, 4), times(0.3, 0.95)
    sigma = -(1 - (1 - 1e-3) * t).log()
    assert torch.allclose(by_sigma.hidden(z, t), by_t.hidden(z, sigma), atol=1e-6)


def test_constant_gates_folded_into_weights_have_the_same_gradients() -> None:
    """One row of conditioning for all (folded) against the same row repeated (not folded)."""
    folded, repeated = network(time_conditioning=True), network(time_conditioning=True)
    z = tokens(3, 5)
    weight = torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(0))
    (folded.hidden(z, times(0.4)) * weight).sum().backward()
    (repeated.hidden(z, times(0.4, 0.4, 0.4)) * weight).sum().backward()
    for (name, a), b in zip(folded.named_parameters(), repeated.parameters(), strict=True):
        if name.startswith("output"):
            continue
        assert a.grad is not None
        assert b.grad is not None
        assert torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-4), name


def test_bfloat16_autocast_stays_near_float32() -> None:
    model = network()
    z = tokens(2, 16)
    exact = model.hidden(z)
    model.compute_dtype = torch.bfloat16
    rough = model.hidden(z)
    assert rough.dtype == torch.bfloat16
    assert model.embedding.weight.dtype == torch.float32
    assert (rough.float() - exact).norm() / exact.norm() < 0.02
    model.compute_dtype = None
    assert torch.equal(model.hidden(z), exact)


def test_a_network_cast_to_bfloat16_keeps_its_positions() -> None:
    model = network()
    z = tokens(1, 900)
    exact = model.hidden(z)
    rough = model.bfloat16().hidden(z)
    assert rough.dtype == torch.bfloat16
    assert model.rotary.cos.dtype == torch.float32
    assert (rough.float() - exact).norm() / exact.norm() < 0.03


def test_rows_longer_than_the_tables() -> None:
    model = network()
    z = tokens(1, 1500)
    h = model.hidden(z)
    assert model.rotary.cos.shape[0] == 2048
    fresh = network()
    assert torch.allclose(fresh(z), h, atol=1e-5)  # `forward` alone computes the angles itself


def test_the_modes_of_calling_hidden_under_compile_make_one_graph() -> None:
    """`model.compile` and `torch.compile(model.hidden)`: no break, and no new graph from step to step."""
    torch._dynamo.reset()
    for conditioned in (False, True):
        model = network(time_conditioning=conditioned)
        eager = network(time_conditioning=conditioned)
        model.compile(fullgraph=True, backend="aot_eager")
        z = tokens(4, 8)
        model.hidden(z, times(0.1, 0.2, 0.3, 0.4))
        with torch._dynamo.config.patch(error_on_recompile=True):
            for step in range(3):
                z, t = tokens(4, 8, seed=step), times(0.9, 0.5, 0.2, 0.1 * step)
                assert torch.allclose(model.hidden(z, t), eager.hidden(z, t), atol=1e-5)
        whole = torch.compile(eager.hidden, fullgraph=True, backend="aot_eager")
        assert torch.allclose(whole(z, t), eager.hidden(z, t), atol=1e-5)


@pytest.mark.slow
def test_the_compiler_proper_trains_it() -> None:
    """Inductor: values and gradients under autocast, one graph for all steps."""
    torch._dynamo.reset()
    model, eager = network(), network()
    model.compute_dtype = eager.compute_dtype = torch.bfloat16
    compile_network(model)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(3):
            z = tokens(4, 16, seed=step)
            losses = []
            for each in (model, eager):
                each.zero_grad()
                loss = each.hidden(z, times(0.1, 0.2, 0.3, 0.4)).float().square().mean()
                loss.backward()
                losses.append(loss)
            assert torch.allclose(losses[0], losses[1], rtol=2e-2)
            a, b = model.blocks[0].qkv.weight.grad, eager.blocks[0].qkv.weight.grad
            assert (a - b).norm() / b.norm() < 0.1


@pytest.mark.parametrize(
    ("changes", "cure"),
    [
        ({"heads": 5}, "multiple of 10"),
        ({"depth": 0}, "one in .1, 4,096"),
        ({"time_input": "beta"}, "sigma, t"),
        ({"causal": True, "time_conditioning": True}, "switch it off"),
    ],
)
def test_impossible_shapes_are_refused(changes: dict[str, object], cure: str) -> None:
    with pytest.raises(UserError, match=cure):
        dataclasses.replace(CONFIG, **changes)


@pytest.mark.gpu
@pytest.mark.parametrize("time_conditioning", [False, True])
def test_compiled_gradients_are_the_eager_ones(time_conditioning: bool) -> None:
    """Enough tokens for the compiler's large reductions, which once left modulation gradients unwritten (pytorch#193061)."""
    config = DiTConfig(depth=2, width=256, heads=4, time_conditioning=time_conditioning)
    model = DiT(config, Vocab(65, 64), torch.Generator().manual_seed(0)).cuda()
    model.compute_dtype = torch.bfloat16
    generator = torch.Generator("cuda").manual_seed(0)
    for parameter in model.parameters():
        if not parameter.detach().any():
            torch.nn.init.normal_(parameter, std=0.1, generator=generator)
    tokens = torch.randint(65, (64, 512), device="cuda", generator=generator)
    times = torch.rand(64, dtype=torch.float64, device="cuda", generator=generator)
    direction = torch.randn(64, 512, 256, device="cuda", generator=generator) / 512

    def gradients() -> list[torch.Tensor]:
        trained = [p for name, p in model.named_parameters() if not name.startswith("output")]
        total = (model.hidden(tokens, times).float() * direction).sum()
        return list(torch.autograd.grad(total, trained))

    eager = gradients()
    compile_network(model)
    for _ in range(3):
        for found, expected in zip(gradients(), eager, strict=True):
            assert (found - expected).norm() < 0.05 * expected.norm() + 1e-4


def test_folded_weights_are_kept_only_while_they_are_right() -> None:
    """Without time conditioning gates are folded into weights; frozen ones once, until anything about them changes."""
    model, z = network(), tokens(2, 8)
    layer, modulation = model.blocks[0].mlp_out, model.blocks[0].modulation
    assert model.hidden(z).requires_grad
    assert layer._kept is None
    with torch.no_grad():
        fresh = model.hidden(z)
        model.requires_grad_(False)
        assert torch.equal(model.hidden(z), fresh)
        kept = layer._kept
        assert torch.equal(model.hidden(z), fresh)
        assert layer._kept is kept is not None
        changes = [
            lambda: layer.weight.mul_(2.0),
            lambda: layer.bias.add_(1.0),
            lambda: modulation.bias.add_(0.5),
            lambda: model.load_state_dict({k: v * 1.5 for k, v in model.state_dict().items()}),
            lambda: model.double(),
        ]
        for change in changes:
            change()
            found = model.hidden(z)
            model.requires_grad_(True)
            assert torch.equal(found, model.hidden(z))
            model.requires_grad_(False)


def test_conditioning_that_never_changes_may_be_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does without time: the same numbers, and only of weights that nobody trains or adapts."""
    generator = torch.Generator().manual_seed(3)
    network = DiT(DiTConfig(2, 16, 2), Vocab(20, 19), generator)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    network.eval().requires_grad_(False)
    z = torch.randint(20, (3, 7), generator=generator)
    with torch.no_grad():
        wanted = network.hidden(z)
        assert network._known(None, z.device) is None, "a GPU's alone"
        made = network.known(z.device)
        assert made is not None
        monkeypatch.setattr(DiT, "_known", lambda *_: made)
        assert torch.equal(network.hidden(z), wanted)
        network.blocks[0].out = torch.nn.Sequential(network.blocks[0].out)  # something stands in its place
        assert network.known(z.device) is None


def test_gelu_is_a_pass_of_its_own_where_the_product_cannot_have_it() -> None:
    """On CPUs, whose fused one is another GELU; with gradients; behind an adapter."""
    layer = network().blocks[0].mlp_in
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))
    wanted = F.gelu(layer(x), approximate="tanh")
    assert torch.equal(gelu_of(layer, x), wanted)
    assert gelu_of(layer, x).requires_grad
    with torch.no_grad():
        assert torch.equal(gelu_of(layer, x), wanted)


@pytest.mark.gpu
def test_gelu_inside_the_product_is_gelu_after_it() -> None:
    """As near to the exact value as the two passes are, whatever the number of rows."""
    layer = network(width=64).blocks[0].mlp_in.to("cuda", torch.bfloat16)
    for rows in (1, 7, 512):
        x = 3 * torch.randn(2, rows, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(rows))
        x = x.bfloat16()
        with torch.no_grad():
            found = gelu_of(layer, x)
            plain = F.gelu(layer(x), approximate="tanh")
            exact = F.gelu(F.linear(x.double(), layer.weight.double(), layer.bias.double()), approximate="tanh")
            assert gelu_of(torch.nn.Sequential(layer), x).equal(plain), "an adapter in its place"
        assert found.shape == plain.shape
        assert found.dtype == plain.dtype
        assert (found.double() - exact).norm() <= 1.1 * (plain.double() - exact).norm() + 1e-3


@pytest.mark.gpu
def test_evaluation_on_a_gpu_is_the_network_with_gradients() -> None:
    """Kernels that only run without gradients (norms, positions, GELU) change nothing but rounding."""
    model, z = network(width=64, heads=2).to("cuda", torch.bfloat16), tokens(4, 24).cuda()
    wanted = model.hidden(z).detach()
    with torch.no_grad():
        found = model.requires_grad_(False).hidden(z)
    assert (found - wanted).float().norm() < 0.02 * wanted.float().norm()
