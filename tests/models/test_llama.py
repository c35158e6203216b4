"""The Llama family: the same numbers as transformers, in both directions of reading, and what a denoiser must be."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from scdd.core import Head, UserError, Vocab
from scdd.core.denoiser import Denoiser
from scdd.models import attention
from scdd.models.compiled import compile_network
from scdd.models.llama import Llama
from scdd.models.options import DECODERS, LlamaConfig, RotaryScaling, make_network
from scdd.models.weights.hf import config_of, from_hf
from scdd.ops.elbo import elbo
from scdd.processes.mdlm import MDLM
from scdd.schedules.masked import Masked
from tests.layouts import numbers, to_hf

IDS = 50  # that the pretrained models know
VOCAB = Vocab(IDS + 1, IDS)
CONFIG = LlamaConfig(depth=2, width=32, heads=4, kv_heads=2, head_width=8, mlp_width=48)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MEMBERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, tied, one head of keys": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
    "llama, llama3": (
        "Llama",
        {"rope_theta": 5e5, "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 64}, "head_dim": 32},
    ),
    "llama, linear": ("Llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "mistral": ("Mistral", {"head_dim": 16, "sliding_window": None}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3, biases": ("Qwen3", {"head_dim": 16, "attention_bias": True}),
}


def pretrained(name: str) -> tuple[dict[str, Any], Any]:
    """A small random model of transformers', no number of it zero or one, and its config."""
    import transformers

    family, changes = MEMBERS[name]
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=IDS, **{"num_key_value_heads": 2, "rms_norm_eps": 1e-5, **sizes, **changes}
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return config.to_dict(), model


def network(seed: int = 0, vocab: Vocab = VOCAB, **changes: Any) -> Llama:
    """A small network with weights large enough for every part to matter."""
    generator = torch.Generator().manual_seed(seed)
    model = Llama(dataclasses.replace(CONFIG, **changes), vocab, generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.2, generator=generator))
    return model.eval()


def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, IDS, (batch, length), generator=torch.Generator().manual_seed(seed))


VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "qk_norm": {"qk_norm": True},
    "untied, biases": {"tied": False, "qkv_bias": True, "out_bias": True, "mlp_bias": True},
    "as many heads": {"kv_heads": 4, "rotary_scaling": RotaryScaling("linear", 2.0)},
}
variants = pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)


# -- transformers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MEMBERS)
def test_a_pretrained_model_computes_the_same_here(name: str) -> None:
    config, model = pretrained(name)
    ours = Llama(config_of(config), VOCAB)
    ours.load_weights(from_hf(config, model.state_dict(), VOCAB))
    z = tokens(2, 70)
    with torch.no_grad():
        expected = model(z).logits
        torch.testing.assert_close(ours.logits(z)[..., :IDS], expected, rtol=1e-5, atol=1e-5)
        ours.lookahead = None
        assert (ours.logits(z)[..., :IDS] - expected).abs().max() > 0.1
    # The new id begins at the mean of the others.
    for table, theirs in ((ours.embedding.weight, model.get_input_embeddings()), (ours.head.weight, model.lm_head)):
        torch.testing.assert_close(table[IDS], theirs.weight.mean(0))


@pytest.mark.parametrize("name", MEMBERS)
def test_back_to_transformers(name: str) -> None:
    import transformers

    config, model = pretrained(name)
    ours = Llama(config_of(config), VOCAB)
    ours.load_weights(from_hf(config, model.state_dict(), VOCAB))
    written, state = to_hf(ours)
    assert config_of(written) == ours.config
    again = from_hf(written, state, VOCAB)
    assert all(torch.equal(value, again[key]) for key, value in ours.state_dict().items())
    read = transformers.AutoConfig.for_model(**written)
    theirs = getattr(transformers, written["architectures"][0])(read).eval()
    assert not theirs.load_state_dict(state, strict=False).unexpected_keys
    theirs.tie_weights()
    z = tokens(2, 40)
    with torch.no_grad():
        torch.testing.assert_close(theirs(z).logits[..., :IDS], ours.logits(z)[..., :IDS], rtol=1e-5, atol=1e-5)


def test_both_spellings_of_rotary_parameters() -> None:
    config, _ = pretrained("llama, llama3")
    rope = config.pop("rope_parameters")
    old = {**config, "rope_theta": rope["rope_theta"], "rope_scaling": {k: rope[k] for k in rope if k != "rope_theta"}}
    assert config_of(old) == config_of({**config, "rope_parameters": rope})
    assert config_of(old).rotary_scaling == RotaryScaling("llama3", 8.0, 1.0, 4.0, 64)
    assert config_of(config).rotary_base == 10_000.0


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("llama", {"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ("llama", {"model_type": ["llama"]}, "model_type is"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act"),
        ("llama", {"hidden_size": "32"}, "hidden_size is '32'"),
        ("llama", {"num_hidden_layers": 10**9}, "from 1 to 1024"),
        ("llama", {"num_key_value_heads": 3}, "divisor"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, "factor is None"),
        ("llama", {"rope_parameters": [1]}, "an object"),
        ("llama", {"num_local_experts": 4}, "mixture of experts"),
        ("llama", {"attention_bias": "yes"}, "true or false"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantised"),
        ("llama", {"partial_rotary_factor": 0.5}, "whole heads"),
        ("mistral", {"sliding_window": 64}, "sliding_window is 64"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["sliding_attention"]}, "in use"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 8, "layer_types": None, "max_window_layers": 1},
            "in use",
        ),
    ],
)
def test_what_is_not_computed_is_refused(name: str, changes: dict[str, Any], told: str) -> None:
    config = {**pretrained(name)[0], **changes}
    with pytest.raises(UserError, match=told) as caught:
        config_of(config)
    assert str(caught.value).count("\n") == 0


def test_windows_that_nothing_uses_are_no_matter() -> None:
    config, _ = pretrained("qwen2")
    assert config_of({**config, "sliding_window": 8, "use_sliding_window": False}) == config_of(config)
    config, _ = pretrained("mistral")
    assert config_of({**config, "sliding_window": 64, "max_position_embeddings": 64}) == config_of(config)


def test_weights_that_do_not_fit_their_config_are_refused() -> None:
    config, model = pretrained("llama")
    state = model.state_dict()
    wanted = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(UserError, match=f"no {wanted}"):
        from_hf(config, {k: v for k, v in state.items() if k != wanted}, VOCAB)
    with pytest.raises(UserError, match=f"{wanted} is"):
        from_hf(config, {**state, wanted: state[wanted][1:]}, VOCAB)
    with pytest.raises(UserError, match="quantised"):
        from_hf(config, {**state, wanted: state[wanted].to(torch.int8)}, VOCAB)
    with pytest.raises(UserError, match=r"have model\.odd"):
        from_hf(config, {**state, "model.odd": state[wanted]}, VOCAB)
    old = {**state, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    assert from_hf(config, old, VOCAB).keys() == from_hf(config, state, VOCAB).keys()


def test_rows_that_a_model_never_trained_can_be_new() -> None:
    config, model = pretrained("llama")
    vocab = Vocab(45, 44)
    table = from_hf(config, model.state_dict(), vocab, known=44)["embedding.weight"]
    theirs = model.get_input_embeddings().weight
    assert torch.equal(table[:44], theirs[:44])
    torch.testing.assert_close(table[44], theirs[:44].mean(0))


# -- a denoiser ---------------------------------------------------------------------------------------------------------


@variants
def test_shapes_and_protocol(changes: dict[str, Any]) -> None:
    model = network(**changes)
    assert isinstance(model, Denoiser)
    assert model.hidden(tokens(3, 7)).shape == (3, 7, 32)
    assert model.logits(tokens(3, 7)).shape == (3, 7, VOCAB.size)
    assert model.head.weight.shape == (128, 32)
    assert (model.head.weight is model.embedding.weight) == model.config.tied
    assert (model.width, model.causal, model.time_conditioning) == (32, False, False)
    assert model.layers() == list(model.blocks)
    matrices = {name: model.get_parameter(name) for name in model.hidden_matrices()}
    assert len(matrices) == 4 * 2
    assert matrices["blocks.1.mlp_in.weight"].shape == (96, 32)
    again = make_network(model.description(), VOCAB)
    again.load_weights(model.state_dict())
    assert torch.equal(again.logits(tokens(2, 9)), model.logits(tokens(2, 9)))


@variants
def test_a_token_sees_both_sides_and_nothing_ahead_when_causal(changes: dict[str, Any]) -> None:
    z = tokens(1, 8)
    changed = z.clone()
    changed[0, 5] = (z[0, 5] + 1) % IDS
    for causal in (True, False):
        model = network(causal=causal, **changes)
        moved = (model.hidden(z) - model.hidden(changed)).abs().amax(-1)[0]
        assert (moved[5:] > 1e-6).all()
        assert (moved[:5] > 1e-6).all() != causal


@variants
def test_lookahead_goes_from_causal_to_the_whole_row(changes: dict[str, Any]) -> None:
    causal, whole, z = network(causal=True, **changes), network(**changes), tokens(2, 9)
    torch.testing.assert_close(whole.hidden(z, lookahead=0), causal.hidden(z))
    torch.testing.assert_close(causal.hidden(z, lookahead=None), whole.hidden(z))
    for far in (8, 9, 100):
        assert torch.equal(causal.hidden(z, lookahead=far), whole.hidden(z))
    for ahead in (1, 3, 7):
        causal.lookahead = ahead
        changed = z.clone()
        changed[:, 8] = (z[:, 8] + 1) % IDS
        moved = (causal.hidden(z) - causal.hidden(changed)).abs().amax(-1)
        reach = 8 - 2 * ahead  # two blocks see twice as far
        assert (moved[:, : max(0, reach)] == 0).all()
        assert (moved[:, max(0, reach) :] > 0).all()
        packed = causal.hidden(torch.cat((z, z), 1), documents=torch.tensor([[0] * 9 + [1] * 9] * 2))
        torch.testing.assert_close(packed[:, 9:], causal.hidden(z))
    with pytest.raises(UserError, match="lookahead is -2"):
        causal.hidden(z, lookahead=-2)


@pytest.mark.parametrize("causal", [False, True])
@variants
def test_documents_and_padding_change_nothing(causal: bool, changes: dict[str, Any]) -> None:
    model = network(causal=causal, **changes)
    first, second = tokens(1, 4, seed=1), tokens(1, 6, seed=2)
    documents = torch.tensor([[3] * 4 + [8] * 6 + [-1] * 2, [-1] * 12])
    packed = torch.cat((first, second, torch.zeros(1, 2, dtype=torch.long)), dim=1).expand(2, 12)
    together = model.hidden(packed, documents=documents)
    assert torch.isfinite(together).all()
    torch.testing.assert_close(together[:1, :4], model.hidden(first), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(together[:1, 4:10], model.hidden(second), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("chunks", [(1,) * 10, (4, 1, 1, 4), (1, 9)])
@variants
def test_cached_decoding_equals_the_full_forward(chunks: tuple[int, ...], changes: dict[str, Any]) -> None:
    model, z = network(causal=True, **changes), tokens(2, 10)
    cache = model.cache(capacity=10)
    parts = [model.hidden(part, cache=cache) for part in z.split(chunks, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model.hidden(z), atol=1e-5, rtol=1e-4)
    with pytest.raises(UserError, match="holds 10 tokens"):
        model.hidden(z[:, :1], cache=cache)
    with pytest.raises(UserError, match="lookahead=0"):
        network().hidden(z, cache=network().cache(10))


@variants
def test_a_window_shows_as_many_to_either_side_for_each_block_and_the_first_of_the_row(changes: dict[str, Any]) -> None:
    model, z = network(attention_window=3, **changes), tokens(1, 20)
    for place in (0, 12):
        changed = z.clone()
        changed[0, place] = (z[0, place] + 1) % IDS
        moved = (model.hidden(z) - model.hidden(changed)).abs().amax(-1)[0]
        within = (
            torch.arange(20) - place
        ).abs() <= 6  # two blocks see twice as far; the first of the row sees 3, and all see it
        seen = torch.ones(20, dtype=torch.bool) if place == 0 else within
        assert torch.equal(moved > 0, seen)


@variants
def test_rows_no_longer_than_a_window_are_what_they_were(changes: dict[str, Any]) -> None:
    plain, near, z = network(**changes), network(attention_window=8, **changes), tokens(2, 10)
    documents = torch.tensor([[0] * 6 + [-1] * 4, [0] * 10])
    assert torch.equal(near.hidden(z[:, :9]), plain.hidden(z[:, :9]))
    assert torch.equal(
        near.hidden(z[:, :9], documents=documents[:, :9]), plain.hidden(z[:, :9], documents=documents[:, :9])
    )
    assert not torch.equal(near.hidden(z), plain.hidden(z))


@variants
def test_windows_with_padding_lookahead_and_gradients(changes: dict[str, Any]) -> None:
    model, z = network(attention_window=4, **changes), tokens(2, 14)
    whole = model.hidden(z[:, :11])
    padded = model.hidden(z, documents=torch.tensor([[0] * 11 + [-1] * 3] * 2))
    torch.testing.assert_close(padded[:, :11], whole, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model.hidden(z, lookahead=13), model.hidden(z))
    changed = z.clone()
    changed[:, 13] = (z[:, 13] + 1) % IDS
    for ahead, reach in ((1, 11), (0, 13)):
        moved = (model.hidden(z, lookahead=ahead) - model.hidden(changed, lookahead=ahead)).abs().amax(-1)
        assert (moved[:, :reach] == 0).all()
        assert (moved[:, reach:] > 0).all()
    plain = network(**changes).hidden(z, lookahead=1)
    assert not torch.equal(model.hidden(z, lookahead=1), plain)
    eager = gradients(model, z)
    model.recompute = True
    for name, value in gradients(model, z).items():
        torch.testing.assert_close(value, eager[name])
    if "qk_norm" in changes:  # which takes its seconds
        torch._dynamo.reset()
        model.compile(fullgraph=True, backend="aot_eager")
        for name, value in gradients(model, z).items():
            torch.testing.assert_close(value, eager[name], rtol=1e-4, atol=1e-4)
    with pytest.raises(UserError, match="set no cache"):
        model.hidden(z, cache=model.cache(20), lookahead=0)


def test_a_causal_network_has_no_window() -> None:
    with pytest.raises(UserError, match="attention_window 4 is for networks that read both sides"):
        network(attention_window=4, causal=True)


def test_rows_of_the_head_beyond_the_vocabulary_do_not_matter() -> None:
    """Neither their values to the loss nor the loss to them."""
    model, z = network(), tokens(2, 8)
    z[:, ::2] = VOCAB.mask_id
    process = MDLM(VOCAB, Masked())
    x = tokens(2, 8, seed=5)
    z = torch.where(z == VOCAB.mask_id, z, x)
    rows = process.elbo_coefficients(x, z, torch.full((2, 1), 0.5, dtype=torch.float64), None).flatten(x.shape)

    def loss() -> Tensor:
        return elbo(model.hidden(z).flatten(0, 1), model.head, x.flatten(), z.flatten(), rows)[0]

    before = loss()
    with torch.no_grad():
        model.embedding.weight[VOCAB.size :] = 100.0
    after = loss()
    assert torch.equal(before, after)
    after.backward()
    grad = model.embedding.weight.grad
    assert grad is not None
    assert (grad[VOCAB.size :] == 0).all()
    assert (grad[: VOCAB.size] != 0).any()
    assert isinstance(model.head, Head)


@pytest.mark.parametrize("packed", [False, True])
def test_every_way_of_grouping_heads_is_the_same_attention(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, z = network(kv_heads=1), tokens(3, 9)
    documents = torch.tensor([[0] * 4 + [1] * 5, [0] * 9, [2] * 7 + [-1] * 2]) if packed else None
    found = {}
    for way in ("fold", "repeat", "native"):
        monkeypatch.setitem(attention.GROUPED, "cpu", way)
        found[way] = model.hidden(z, documents=documents)
        torch.testing.assert_close(found[way], found["fold"])
    model.compute_dtype = torch.bfloat16  # which goes to SDPA's own grouping
    rough = model.hidden(z, documents=documents)
    assert (rough.float() - found["fold"]).norm() < 0.02 * rough.float().norm()


def gradients(model: Llama, z: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    weight = torch.sin(torch.arange(z.numel() * 32.0)).view(*z.shape, 32)
    (model.hidden(z) * weight).sum().backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: grad.clone() for name, grad in found.items()}


@variants
def test_gradients_are_the_same_compiled_and_recomputed(changes: dict[str, Any]) -> None:
    torch._dynamo.reset()
    z, eager = tokens(2, 8), gradients(network(**changes), tokens(2, 8))
    assert all(torch.isfinite(grad).all() and grad.any() for grad in eager.values())
    compiling = ((False, True), (True, True)) if "qk_norm" in changes else ()  # which takes its seconds
    for recompute, compiled in ((True, False), *compiling):
        model = network(**changes)
        model.recompute = recompute
        if compiled:
            model.compile(fullgraph=True, backend="aot_eager")
        found = gradients(model, z)
        assert found.keys() == eager.keys()
        for name, grad in found.items():
            torch.testing.assert_close(grad, eager[name], rtol=1e-4, atol=1e-4)


def test_a_growing_lookahead_makes_no_new_graph() -> None:
    torch._dynamo.reset()
    model, eager, z = network(), network(), tokens(2, 12)
    model.compile(fullgraph=True, backend="aot_eager")
    model.hidden(z, lookahead=1)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for ahead in range(1, 11):
            torch.testing.assert_close(model.hidden(z, lookahead=ahead), eager.hidden(z, lookahead=ahead))


def test_bfloat16_stays_near_float32() -> None:
    model, z = network(), tokens(2, 16)
    exact = model.hidden(z)
    model.compute_dtype = torch.bfloat16
    rough = model.hidden(z)
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - exact).norm() / exact.norm() < 0.02
    model.compute_dtype = None
    cast = model.bfloat16().hidden(z)
    assert model.rotary.cos.dtype == torch.float32
    assert (cast.float() - exact).norm() / exact.norm() < 0.05


def test_building_draws_from_the_generator_alone() -> None:
    state = torch.get_rng_state()
    one, two = (Llama(CONFIG, VOCAB, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert one.blocks[0].qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert one.blocks[0].out.weight.std().item() == pytest.approx(0.01, rel=0.1)


def test_published_sizes() -> None:
    for name, millions in (("smollm2-135m", 134.5), ("smollm2-360m", 361.8), ("smollm2-1.7b", 1711.4)):
        with torch.device("meta"):
            model = Llama(DECODERS[name], Vocab(49_152, 0))
        assert numbers(model) / 1e6 == pytest.approx(millions, abs=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("mlp_impl", "groups", "recompute"),
    [
        ("triton", "native", False),
        ("triton", "fold", False),
        ("triton", "repeat", False),
        ("reference", "native", False),
        ("triton", "native", True),
    ],
)
def test_on_a_gpu_compiled_gradients_are_the_eager_reference_ones(
    mlp_impl: str, groups: str, recompute: bool, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels inside the compiled graph, grouped heads in flash attention."""
    torch._dynamo.reset()
    monkeypatch.setitem(attention.GROUPED, "cuda", groups)
    config = LlamaConfig(depth=2, width=576, heads=9, kv_heads=3, head_width=64, mlp_width=1536, causal=causal)
    model = Llama(config, VOCAB, torch.Generator().manual_seed(0)).cuda()
    z = tokens(16, 256).cuda()
    direction = torch.randn(16, 256, 576, generator=torch.Generator().manual_seed(1)).cuda() / 64

    def run() -> list[Tensor]:
        total = (model.hidden(z).float() * direction).sum()
        return list(torch.autograd.grad(total, list(model.parameters())))

    block, norm = type(model.blocks[0]), type(model.norm)
    monkeypatch.setattr(block, "mlp_impl", "reference")
    monkeypatch.setattr(norm, "impl", "reference")
    exact = run()
    monkeypatch.setattr(block, "mlp_impl", mlp_impl)
    monkeypatch.setattr(norm, "impl", "auto")
    model.compute_dtype, model.recompute = torch.bfloat16, recompute
    compile_network(model)
    for _ in range(2):
        for found, expected in zip(run(), exact, strict=True):
            assert (found - expected).norm() < 0.05 * expected.norm() + 1e-4


def test_queries_and_keys_turned_at_once_are_the_same_bits() -> None:
    from scdd.models.attention import rotate, rotated_heads, tables

    x = torch.randn(2, 37, 5, 24, generator=torch.Generator().manual_seed(0))[:, :, :4]
    angles = tables(0, 37, 12, torch.device("cpu"))
    assert torch.equal(rotated_heads(x, *angles), rotate(x, *angles).transpose(1, 2))


def test_states_are_the_same_with_gradients_wanted_and_without() -> None:
    """Two ways to turn queries and keys; only the one without gradients writes in place."""
    made, z = network(), tokens(2, 9)
    with torch.no_grad():
        plain = made.hidden(z)
    torch.testing.assert_close(made.hidden(z).detach(), plain, rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("changes", [{}, {"qk_norm": True}], ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_evaluation_on_a_gpu_is_the_network_with_gradients(packed: bool, changes: dict[str, Any]) -> None:
    """Kernels that only run without gradients (norms, positions) change nothing but rounding."""
    model, z = network(**changes).to("cuda", torch.bfloat16), tokens(4, 24).cuda()
    documents = torch.where(torch.arange(24, device="cuda") < 17, 0, -1).expand(4, 24) if packed else None
    wanted = model.hidden(z, documents=documents).detach()
    with torch.no_grad():
        found = model.requires_grad_(False).hidden(z, documents=documents)
    assert (found - wanted).float().norm() < 0.02 * wanted.float().norm()
