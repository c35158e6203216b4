"""A model of scdd for transformers, with nothing else to install: the network, its losses, and a sampler.

The names of the weights are scdd's own, so that one model.safetensors serves both. B batch, L length, D width, V ids.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput, MaskedLMOutput

from .configuration_scdd import SCDDConfig
from .sampling_scdd import CLEAN, filtered, levels, start, step, times, transition

ALIGNMENT = 128  # the head has its rows in multiples of this; those from V on are padding
FREQUENCIES, MAX_PERIOD = 256, 10_000.0  # of the time's features
SIGMA_EPS = 1e-3  # the total noise at t = 1 stays finite


def padded(size: int) -> int:
    """`size` rounded up to the head's alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def exact(layer: nn.Linear, x: Tensor) -> Tensor:
    """The layer in float32: for the few rows of conditioning, where it costs nothing."""
    return F.linear(x.float(), layer.weight.float(), layer.bias.float())


def gated(layer: nn.Linear, x: Tensor, gate: Tensor) -> Tensor:
    """gate · layer(x), gate [R, 1, D]; one row for the whole batch goes into the weights, as scdd has it."""
    if gate.shape[0] != 1:
        return gate.to(x.dtype) * layer(x)
    row = gate.flatten()
    bias = None if layer.bias is None else (layer.bias * row).to(x.dtype)
    return F.linear(x, (layer.weight * row[:, None]).to(x.dtype), bias)


# -- attention ----------------------------------------------------------------------------------------------------------


def angles(length: int, network: dict[str, Any], device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of the rotary angles, each [L, Dh/2], float32."""
    pairs = (network.get("head_width") or network["width"] // network["heads"]) // 2
    exponents = torch.arange(pairs, dtype=torch.float32, device=device) / pairs
    frequencies = network.get("rotary_base", 10_000.0) ** (-exponents)
    if (scaling := network.get("rotary_scaling")) is not None:
        frequencies = stretched(frequencies, scaling)
    turned = torch.arange(length, dtype=torch.float32, device=device)[:, None] * frequencies
    return turned.cos(), turned.sin()


def stretched(frequencies: Tensor, scaling: dict[str, Any]) -> Tensor:
    """Frequencies for longer texts; "llama3" leaves short waves as they are."""
    slow = frequencies / scaling["factor"]
    if scaling["kind"] == "linear":
        return slow
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_length"] * frequencies / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - share) * slow + share * frequencies


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the channel pairs (i, i + Dh/2) of x [B, L, H, Dh], in float32."""
    cos, sin = (table[:, None, :] for table in rotary)
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None) -> Tensor:
    """Softmax attention of [B, L, H, Dh], heads of keys and values repeated where there are fewer: [B, L, H·Dh]."""
    groups = q.shape[2] // k.shape[2]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=2), v.repeat_interleave(groups, dim=2)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal and mask is None)
    return mixed.transpose(1, 2).flatten(2)


def seen(attention_mask: Tensor | None, causal: bool) -> Tensor | None:
    """True where query i may look at key j, [B, 1, L, L]; padding sees padding, so that no softmax is empty."""
    if attention_mask is None:
        return None
    real = attention_mask.bool()
    same = real[:, :, None] == real[:, None, :]
    return (same.tril() if causal else same)[:, None]


# -- the DiT: adaptive layer norms --------------------------------------------------------------------------------------


class AdaptiveNorm(nn.Module):
    """Layer norm · (1 + scale) + shift, with a weight and no bias, in float32 inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """x [B, L, D]; shift and scale [R, 1, D], R = 1 or B."""
        normal = F.layer_norm(x.float(), x.shape[-1:])
        return (normal * (self.weight.float() * (1 + scale)) + shift).to(x.dtype)


class TimeEmbedding(nn.Module):
    """One row of conditioning for each time, [R] → [R, C], float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(FREQUENCIES, width)
        self.second = nn.Linear(width, width)

    def forward(self, time: Tensor) -> Tensor:
        """Cosine and sine features through two layers."""
        half = FREQUENCIES // 2
        exponents = torch.arange(half, dtype=torch.float32, device=time.device) / half
        turned = time.float()[:, None] * torch.exp(-math.log(MAX_PERIOD) * exponents)
        features = torch.cat((turned.cos(), turned.sin()), dim=-1)
        return F.silu(exact(self.second, F.silu(exact(self.first, features))))


class DiTBlock(nn.Module):
    """Attention and MLP, each behind an adaptive norm and a gate."""

    def __init__(self, network: dict[str, Any]) -> None:
        super().__init__()
        width, cond = network["width"], network.get("cond_width", 128)
        self.heads, self.causal = network["heads"], network.get("causal", False)
        self.norm1, self.norm2 = AdaptiveNorm(width), AdaptiveNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)
        self.modulation = nn.Linear(cond, 6 * width)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None, c: Tensor) -> Tensor:
        """x [B, L, D], c [R, C]."""
        shift1, scale1, gate1, shift2, scale2, gate2 = exact(self.modulation, c)[:, None].chunk(6, dim=-1)
        q, k, v = self.qkv(self.norm1(x, shift1, scale1)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        x = x + gated(self.out, attend(rotate(q, rotary), rotate(k, rotary), v, self.causal, mask), gate1)
        hidden = F.gelu(self.mlp_in(self.norm2(x, shift2, scale2)), approximate="tanh")
        return x + gated(self.mlp_out, hidden, gate2)


class Output(nn.Module):
    """The head of a DiT: weight [Vp, D], bias [Vp], and GIDD's bias towards the input token, where there is one."""

    def __init__(self, width: int, rows: int, input_bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))
        self.bias = nn.Parameter(torch.empty(rows))
        self.register_parameter("input_bias", nn.Parameter(torch.empty(1)) if input_bias else None)


# -- the model ----------------------------------------------------------------------------------------------------------


class SCDDPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """Tokens to logits, the same for both tasks; `forward` of the classes below adds what the task wants."""

    config_class = SCDDConfig
    _keys_to_ignore_on_load_unexpected = [r"^quality\."]  # noqa: RUF012 (a head that only scdd's sampler prism asks)
    _no_split_modules = ["DiTBlock", "LlamaBlock"]  # noqa: RUF012
    _supports_sdpa = True

    def __init__(self, config: SCDDConfig) -> None:
        super().__init__(config)
        network, rows = config.network, padded(config.vocab_size)
        self.kind = network.get("kind", "dit")
        if self.kind != "dit":
            raise ValueError(f"There is no network of kind {self.kind!r} in this file: load the model with scdd.")
        width, cond = network["width"], network.get("cond_width", 128)
        self.embedding = nn.Embedding(config.vocab_size, width)
        self.time = TimeEmbedding(cond)
        self.blocks = nn.ModuleList(DiTBlock(network) for _ in range(network["depth"]))
        self.norm = AdaptiveNorm(width)
        self.modulation = nn.Linear(cond, 2 * width)
        self.output = Output(width, rows, network.get("input_bias", False))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Small normal matrices, norms of one, all else zero. Training belongs to scdd, which draws its own."""
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, AdaptiveNorm):
                nn.init.ones_(parameter)
            elif name == "weight" and isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(parameter, std=0.02)
            else:
                nn.init.zeros_(parameter)

    def get_input_embeddings(self) -> nn.Module:
        """The table of token vectors."""
        return self.embedding

    def get_output_embeddings(self) -> None:
        """None: the head's tensors are no layer of their own, and nothing is to be tied."""

    def states(self, input_ids: Tensor, attention_mask: Tensor | None = None, t: Tensor | None = None) -> Tensor:
        """What the head multiplies, [B, L, D], for tokens [B, L] at times t [B] (networks that are told the time)."""
        network = self.config.network
        x = self.embedding(input_ids)
        rotary = angles(input_ids.shape[1], network, x.device)
        mask = seen(attention_mask, network.get("causal", False))
        c = self.time(self._time(t, x.device))
        for block in self.blocks:
            x = block(x, rotary, mask, c)
        return self.norm(x, *exact(self.modulation, c)[:, None].chunk(2, dim=-1))  # type: ignore[no-any-return]

    def _time(self, t: Tensor | None, device: torch.device) -> Tensor:
        """What the time embedding reads, [R]; one zero where the network is not told the time."""
        network = self.config.network
        if not network.get("time_conditioning", False):
            return torch.zeros(1, device=device)
        if t is None:
            raise ValueError("This network is conditioned on time: pass t, one number in [0, 1] for each row.")
        t = t.to(device).reshape(-1)
        return -torch.log1p(-(1 - SIGMA_EPS) * t) if network.get("time_input", "sigma") == "sigma" else t

    def logits(self, states: Tensor, input_ids: Tensor) -> Tensor:
        """[B, L, V] float32 with −inf at the mask."""
        size, head = self.config.vocab_size, self.output
        logits = F.linear(states.float(), head.weight[:size].float(), head.bias[:size].float())
        if head.input_bias is not None:
            bonus = head.input_bias.float().expand(*input_ids.shape, 1)
            logits = logits.scatter_add(-1, input_ids[..., None], bonus)
        forbidden = torch.arange(size, device=logits.device) == self.config.mask_token_id
        return logits.masked_fill(forbidden, float("-inf"))


class SCDDForMaskedLM(SCDDPreTrainedModel):
    """The denoiser x_θ(z_t, t): what every position's clean token may be."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        t: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> MaskedLMOutput | tuple[Tensor, ...]:
        """Logits [B, L, V]; with labels [B, L] (−100 is left out) their cross-entropy, which is not the model's bound."""
        logits = self.logits(self.states(input_ids, attention_mask, t), input_ids)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        if return_dict is False:
            return (logits,) if loss is None else (loss, logits)
        return MaskedLMOutput(loss=loss, logits=logits)

    @torch.no_grad()
    def sample(
        self,
        length: int | None = None,
        steps: int | None = None,
        *,
        num: int = 1,
        input_ids: Tensor | None = None,
        generator: torch.Generator | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
    ) -> Tensor:
        """Texts [num, length + 2] with their [BOS] and [EOS], drawn by the reverse process in `steps` evaluations.

        In `input_ids` [B, L] masks are drawn and every other token stays. What is left out is as the model's recipe has it.
        """
        config, vocab = self.config, (self.config.vocab_size, self.config.mask_token_id)
        process, given = config.process, config.sampling
        if process["kind"] not in ("scdd", "mdlm", "gidd"):
            raise ValueError(f"The process of this model is {process['kind']}, which is not in this file: use scdd.")
        if generator is None:
            generator = torch.Generator(self.device)
            generator.seed()
        if input_ids is None:
            inside = torch.full((num, length or given.get("length", 128)), config.mask_token_id, device=self.device)
            input_ids = F.pad(F.pad(inside, (1, 0), value=config.bos_token_id), (0, 1), value=config.eos_token_id)
        drawn = input_ids == config.mask_token_id
        z = torch.where(drawn, start(process["schedule"], input_ids.shape, vocab, generator), input_ids)
        grid = times(given.get("grid", {}).get("kind", "uniform"), steps or given.get("steps", 128))
        filters = (temperature or given.get("temperature", 1.0), top_p or given.get("top_p", 1.0), given.get("top_k"))
        at_t = levels(process["schedule"], grid[0])
        for t, s in zip(grid, grid[1:], strict=False):
            at_s = levels(process["schedule"], s) if s > 0 else CLEAN
            now = torch.full((len(z),), t, dtype=torch.float64, device=self.device)
            p = filtered(self.logits(self.states(z, t=now), z), *filters)
            p_z = p.gather(-1, z[..., None])[..., 0]
            move = transition(process["kind"], z, p_z, (at_s, at_t), vocab)
            z = torch.where(drawn, step(z, move, p, config.mask_token_id, generator), z)
            at_t = at_s
        return z


class SCDDForCausalLM(SCDDPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """The autoregressive baseline: logits of the next token. Without a cache, so that `generate` reads each text anew."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> CausalLMOutput | tuple[Tensor, ...]:
        """Logits [B, L, V]; with labels [B, L], which are input_ids with −100 for what is left out, the mean loss."""
        logits = self.logits(self.states(input_ids, attention_mask), input_ids)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        if return_dict is False:
            return (logits,) if loss is None else (loss, logits)
        return CausalLMOutput(loss=loss, logits=logits)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> dict[str, Any]:
        """All tokens so far, as there is no cache."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}


# What `save_pretrained` then writes has this file beside it.
SCDDConfig.register_for_auto_class()
SCDDForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
SCDDForCausalLM.register_for_auto_class("AutoModelForCausalLM")
