"""The tokenizer of an autoregressive model: a prompt begins as texts of training do, and has no end, which is the model's to write."""

from __future__ import annotations

from typing import Any

from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast


class Prompts:
    """What is before a text, and nothing behind it."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        tokenizer: Any = self
        begin = str(tokenizer.bos_token)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=[begin, "$A"], pair=[begin, "$A", "$B"], special_tokens=[(begin, tokenizer.bos_token_id)]
        )


class SCDDTokenizer(Prompts, PreTrainedTokenizerFast):
    """tokenizer.json as it is, but for the end of a text. An `__init__` in this very class would make transformers build it anew."""


# What `save_pretrained` then writes has this file beside it.
SCDDTokenizer.register_for_auto_class()
