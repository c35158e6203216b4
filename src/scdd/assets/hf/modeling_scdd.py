"""A model of scdd for transformers, with nothing else to install: the network, its losses, and a sampler.

The names of the weights are scdd's own, so that one model.safetensors serves both. B batch, L length, D width, V ids.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput, MaskedLMOutput

from .configuration_scdd import SCDDConfig
from .network_scdd import (
    AdaptiveNorm,
    DiTBlock,
    LlamaBlock,
    Output,
    RMSNorm,
    TimeEmbedding,
    angles,
    exact,
    padded,
    seen,
)
from .sampling_scdd import CLEAN, filtered, levels, start, step, times, transition

SIGMA_EPS = 1e-3  # the total noise at t = 1 stays finite


class SCDDPreTrainedModel(PreTrainedModel):
    """Tokens to logits, the same for both tasks; `forward` of the classes below adds what the task wants."""

    config_class = SCDDConfig
    _keys_to_ignore_on_load_unexpected = [r"^quality\."]  # noqa: RUF012 (a head that only scdd's sampler prism asks)
    _no_split_modules = ["DiTBlock", "LlamaBlock"]  # noqa: RUF012
    _supports_sdpa = True

    def __init__(self, config: SCDDConfig) -> None:
        super().__init__(config)
        network, rows = config.network, padded(config.vocab_size)
        width, cond, kind = network["width"], network.get("cond_width", 128), network.get("kind", "dit")
        if kind == "dit":
            self.embedding = nn.Embedding(config.vocab_size, width)
            self.time = TimeEmbedding(cond)
            self.blocks = nn.ModuleList(DiTBlock(network) for _ in range(network["depth"]))
            self.norm = AdaptiveNorm(width)
            self.modulation = nn.Linear(cond, 2 * width)
            self.output = Output(width, rows, bias=True, input_bias=network.get("input_bias", False))
        elif kind == "llama":
            tied = network.get("tied", True)
            self.embedding = nn.Embedding(rows if tied else config.vocab_size, width)
            self.time = None
            self.blocks = nn.ModuleList(LlamaBlock(network) for _ in range(network["depth"]))
            self.norm = RMSNorm(width, network["eps"])
            self.output = None if tied else Output(width, rows)
        else:
            raise ValueError(f"There is no network of kind {kind!r} in this folder's code: load the model with scdd.")
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Small normal matrices, norms of one, all else zero. Training belongs to scdd, which draws its own."""
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, AdaptiveNorm | RMSNorm):
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
        network, length, context = self.config.network, input_ids.shape[1], self.config.max_position_embeddings
        if length > context:
            raise ValueError(
                f"A row has {length} tokens and the model's context holds {context} (max_position_embeddings): "
                "shorten it, or go through it in pieces."
            )
        x = self.embedding(input_ids)
        rotary = angles(length, network, x.device)
        mask = seen(attention_mask, network.get("causal", False), network.get("attention_window"), input_ids)
        if self.time is None:
            for block in self.blocks:
                x = block(x, rotary, mask)
            return self.norm(x)
        c = self.time(self._time(t, x.device))
        for block in self.blocks:
            x = block(x, rotary, mask, c)
        return self.norm(x, *exact(self.modulation, c)[:, None].chunk(2, dim=-1))

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
        size, head = self.config.vocab_size, self.output if self.output is not None else self.embedding
        bias, towards_input = getattr(head, "bias", None), getattr(head, "input_bias", None)
        logits = F.linear(states.float(), head.weight[:size].float(), None if bias is None else bias[:size].float())
        if towards_input is not None:
            logits = logits.scatter_add(-1, input_ids[..., None], towards_input.float().expand(*input_ids.shape, 1))
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
        config, process, given = self.config, self.config.process, self.config.sampling
        if process["kind"] not in ("scdd", "mdlm", "gidd"):
            raise ValueError(f"The process of this model is {process['kind']}, which is not in this file: use scdd.")
        chosen = {"length": length, "steps": steps, "temperature": temperature, "top_p": top_p}
        own = {"length": config.max_position_embeddings - 2, **{k: v for k, v in given.items() if v is not None}}
        length, steps, temperature, top_p = (own[name] if value is None else value for name, value in chosen.items())
        if min(length, steps, temperature, top_p) <= 0:
            raise ValueError(f"length, steps, temperature and top_p must be positive; they are {chosen}.")
        if generator is None:
            generator = torch.Generator(self.device)
            generator.seed()
        if input_ids is None:
            inside = torch.full((num, length), config.mask_token_id, device=self.device)
            input_ids = F.pad(F.pad(inside, (1, 0), value=config.bos_token_id), (0, 1), value=config.eos_token_id)
        vocab, drawn = (config.vocab_size, config.mask_token_id), input_ids == config.mask_token_id
        z = torch.where(drawn, start(process["schedule"], tuple(input_ids.shape), vocab, generator), input_ids)
        grid = times(given["grid"]["kind"], steps)
        at_t = levels(process["schedule"], grid[0])
        for t, s in pairwise(grid):
            at_s = levels(process["schedule"], s) if s > 0 else CLEAN
            now = torch.full((len(z),), t, device=z.device)
            p = filtered(self.logits(self.states(z, t=now), z), temperature, top_p, given.get("top_k"))
            # A few numbers a position: on the CPU, which has float64 everywhere.
            p_z = p.gather(-1, z[..., None])[..., 0].cpu()
            move = transition(process["kind"], z.cpu(), p_z, (at_s, at_t), vocab).to(z.device)
            z = torch.where(drawn, step(z, move, p, config.mask_token_id, generator), z)
            at_t = at_s
        return z


class SCDDForCausalLM(SCDDPreTrainedModel, GenerationMixin):
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
