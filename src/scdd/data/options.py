"""What to train on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from annotated_types import Ge
from pydantic import Discriminator

from scdd.core.options import Count, Inside, Options, Text

Separator = Literal["auto", "blank-line", "line", "file", "wikitext"]
"""What ends a document of a text file; auto is wikitext (its headings) in .tokens files and blank-line in others."""
SEPARATORS: tuple[Separator, ...] = get_args(Separator)


@dataclass(frozen=True)
class ShardsOptions(Options):
    """Token shards that `scdd prepare` wrote."""

    kind: Literal["shards"] = field(default="shards", kw_only=True, repr=False)
    path: Text
    """Folder of the shards."""
    length: Count = 512
    """Tokens in a sequence."""
    documents: bool = False
    """Keep attention inside each document of a packed sequence."""


@dataclass(frozen=True)
class TextOptions(Options):
    """Plain text, tokenised when the run starts: for small texts and demonstrations."""

    kind: Literal["text"] = field(default="text", kw_only=True, repr=False)
    path: Text = "bundled"
    """What `scdd prepare` reads too: a text or JSONL file, a folder of them, hf:NAME; bundled is the package's own."""
    tokenizer: Text | None = None
    """A tokenizer.json or a name on the hub; null trains a byte-level BPE on the text itself."""
    vocab_size: Annotated[int, Ge(259)] = 2048
    """Tokens of the BPE when it is trained here, special ones included."""
    length: Count = 128
    """Tokens in a sequence."""
    documents: bool = False
    """Keep attention inside each document of a packed sequence."""
    valid_fraction: Inside = 0.05
    """Share of the text kept for validation."""
    separator: Separator = "file"
    """What ends a document: the end of its file here, where `scdd prepare` and `scdd eval` take auto, which is WikiText's
    headings in .tokens files and a blank-line in others. JSON lines always hold one document each."""


DataOptions = Annotated[ShardsOptions | TextOptions, Discriminator("kind")]
