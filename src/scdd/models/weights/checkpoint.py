"""A checkpoint file of the authors of SCDD, MDLM or GIDD: which of the layouts it has, and the network in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load_file
from torch import Tensor

from scdd.core.errors import UserError
from scdd.core.files import check_header
from scdd.core.types import Vocab
from scdd.models.dit import DiT
from scdd.models.weights.authors import Loadable, from_gidd, from_reference, with_averages
from scdd.models.weights.inert import find
from scdd.models.weights.unpickle import StoredTensor, read_checkpoint


@dataclass(frozen=True)
class NetworkFile:
    """A file of theirs, opened: tensors of a pickle are still on disk."""

    file: Path
    tree: Mapping[str, Any]
    state: Mapping[str, Loadable]

    @classmethod
    def open(cls, file: Path) -> NetworkFile:
        """A Lightning checkpoint keeps its weights under "state_dict"; the others are nothing else."""
        tree = _safetensors(file) if file.suffix == ".safetensors" else read_checkpoint(file)
        state = tree.get("state_dict", tree) if isinstance(tree, dict) else None
        if not isinstance(state, dict):
            raise UserError(f"{file} holds no weights: name a file that has a state_dict.")
        tensors = {k: v for k, v in state.items() if isinstance(k, str) and isinstance(v, (Tensor, StoredTensor))}
        return cls(file, tree, tensors)

    @property
    def readable(self) -> bool:
        """Whether it is one of their networks."""
        return any(name.endswith("vocab_embed.embedding") for name in self.state)

    @property
    def gidd(self) -> bool:
        """Whether it is GIDD's, by what only that one has."""
        return any(name.endswith(("logit_bias", "rotary_emb.cos_cached")) for name in self.state)

    @property
    def shows_heads(self) -> bool:
        """Whether a rotary buffer shows how wide a head is."""
        return any(name.endswith(("rotary_emb.inv_freq", "rotary_emb.cos_cached")) for name in self.state)

    @property
    def step(self) -> int:
        """When it was saved; 0 when it does not say."""
        step = self.tree.get("global_step", 0)
        return step if isinstance(step, int) and 0 <= step < 1 << 63 else 0

    @property
    def hyper_parameters(self) -> Any:
        """The configuration that Lightning saved, as the unpickler left it; None where there is none."""
        return self.tree.get("hyper_parameters")

    def network(
        self,
        vocab: Vocab | None = None,
        *,
        heads: int | None = None,
        time_conditioning: bool | None = None,
        ema: bool = True,
    ) -> DiT:
        """The network; what the file itself shows (sizes, heads, time conditioning) need not be told."""
        state = self.state
        if self.gidd:
            if vocab is None:
                raise UserError(
                    f"{self.file} is a GIDD checkpoint, which does not show its vocabulary: put its tokenizer.json "
                    "beside it, or name the tokenizer.",
                    "tokenizer",
                )
            return from_gidd(state, vocab, heads=heads)
        shadow = find(self.tree, "shadow_params") if ema else None
        if isinstance(shadow, list):
            state = with_averages(state, shadow)
        if time_conditioning is None:
            time_conditioning = find(self.hyper_parameters, "time_conditioning") is True
        return from_reference(state, vocab, heads=heads, time_conditioning=time_conditioning)


def _safetensors(file: Path) -> dict[str, Any]:
    try:
        check_header(file)
        return dict(load_file(file))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, safetensors.SafetensorError) as error:
        raise UserError(f"{file} is missing or damaged ({error}): fetch it again.") from error


def gidd_length(state: Mapping[str, Loadable]) -> int | None:
    """Positions that GIDD's rotary buffer was made for; None where there is no such buffer."""
    shapes = [value.shape for name, value in state.items() if name.endswith("rotary_emb.cos_cached")]
    return shapes[0][1] if shapes and len(shapes[0]) > 1 else None
