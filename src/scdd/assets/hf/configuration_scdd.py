"""What a model of this folder is: its network, the process that it reverses, and how it samples unless told otherwise."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

SAMPLING = {"steps": 128, "temperature": 1.0, "top_p": 1.0, "grid": {"kind": "uniform"}}  # where a recipe says nothing


class SCDDConfig(PretrainedConfig):
    """`network`, `process` and `sampling` say what scdd's meta.json and recipe.yaml say; the rest are the usual names."""

    model_type = "scdd"

    def __init__(
        self,
        network: dict[str, Any] | None = None,
        process: dict[str, Any] | None = None,
        sampling: dict[str, Any] | None = None,
        vocab_size: int = 3,
        mask_token_id: int = 2,
        max_position_embeddings: int = 512,
        **kwargs: Any,
    ) -> None:
        self.network = network or {"kind": "dit", "depth": 1, "width": 8, "heads": 2}
        self.process = process or {"kind": "scdd", "schedule": {"kind": "peaked"}}
        self.sampling = {**SAMPLING, **(sampling or {})}
        self.vocab_size = vocab_size
        self.mask_token_id = mask_token_id
        self.max_position_embeddings = max_position_embeddings
        self.hidden_size = self.network["width"]
        self.num_hidden_layers = self.network["depth"]
        self.num_attention_heads = self.network["heads"]
        kwargs.setdefault("use_cache", False)
        # A tied network has one matrix for both ends, so that there is nothing left to tie.
        kwargs["tie_word_embeddings"] = False
        super().__init__(**kwargs)
