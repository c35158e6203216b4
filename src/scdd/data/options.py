"""What to train on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from pydantic import Discriminator

from scdd.core.errors import OptionError
from scdd.core.options import Count, Inside, Options, Text, VocabSize
from scdd.data.address import has_secrets

Separator = Literal["auto", "blank-line", "line", "file", "wikitext"]
"""What ends a document of a text file; auto is wikitext (its headings) in .tokens files and blank-line in others."""
SEPARATORS: tuple[Separator, ...] = get_args(Separator)
CACHE, CACHE_BYTES = "~/.cache/scdd/shards", 16 << 30


def _require_no_secrets(path: str) -> None:
    """Recipes travel with every checkpoint."""
    if has_secrets(path):
        raise OptionError(
            "path holds a password or a query, which every checkpoint would carry: give credentials as the store's own "
            "tools take them (environment, configuration file).",
            "path",
        )


@dataclass(frozen=True)
class ShardsOptions(Options):
    """Token shards that `scdd prepare` wrote."""

    kind: Literal["shards"] = field(default="shards", kw_only=True, repr=False)
    path: Text
    """Folder of the shards, or its address: s3://, gs://, hf:// or another that fsspec knows."""
    length: Count = 512
    """Tokens in a sequence."""
    documents: bool = False
    """Keep attention inside each document of a packed sequence."""
    window: Count | None = None
    """Shards that are mixed with each other at a time, drawn anew in every epoch, so that no more of them need to be at hand;
    sequences then end with their shard. null mixes the whole corpus."""
    cache: Text = CACHE
    """Folder of this machine in which shards of an address are kept."""
    cache_bytes: Count = CACHE_BYTES
    """Bytes that it may hold; what was used longest ago goes first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_no_secrets(self.path)


@dataclass(frozen=True)
class TextOptions(Options):
    """Plain text, tokenised when the run starts: for small texts and demonstrations."""

    kind: Literal["text"] = field(default="text", kw_only=True, repr=False)
    path: Text = "bundled"
    """What `scdd prepare` reads too: a file of text, JSON lines or a table, a folder of them, an address of either,
    hf:NAME; bundled is the package's own."""
    tokenizer: Text | None = None
    """A tokenizer.json or a name on the hub; null takes that of training.start_from, or without one trains a byte-level BPE on
    the text itself."""
    vocab_size: VocabSize = 2048
    """Tokens of the BPE when it is trained here, special ones included."""
    length: Count = 128
    """Tokens in a sequence."""
    documents: bool = False
    """Keep attention inside each document of a packed sequence."""
    valid_fraction: Inside = 0.05
    """Share of the text kept for validation."""
    separator: Separator = "file"
    """What ends a document: file is the end of its file; blank-line; line; wikitext is a heading of WikiText's; auto, the default
    of `scdd prepare` and `scdd eval`, is wikitext in .tokens files and blank-line in others. A line of JSON lines is always one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_no_secrets(self.path)


@dataclass(frozen=True)
class PairsOptions(Options):
    """Prompts and responses to fine-tune on: responses are noised and learnt, prompts are given."""

    kind: Literal["pairs"] = field(default="pairs", kw_only=True, repr=False)
    path: Text
    """A file of JSON lines, maybe with .gz, .xz or .zst, a folder of them, or an address of either: each line has prompt and response, or
    messages, a list of role and content, of which the assistant's are responses."""
    tokenizer: Text | None = None
    """A tokenizer.json or a name on the hub; null takes that of training.start_from."""
    chat_template: Text | None = None
    """A file with the Jinja template that writes messages as text; null takes that of training.start_from."""
    length: Count = 512
    """Tokens in a row. A prompt that is too long loses its beginning; a pair whose response does not fit is left out."""
    pack: bool = True
    """Put several pairs into a row, each with attention inside itself; false gives every pair a row of its own."""
    fill: Count | None = None
    """[EOS] after a response, learnt too, fills it up to a multiple of this many tokens, so that a model given more room
    than it needs learns to leave the rest empty; 1 is a single [EOS]. null is 32, and 1 for the process ar."""
    valid_fraction: Inside = 0.05
    """Share of the pairs kept for validation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_no_secrets(self.path)


DataOptions = Annotated[ShardsOptions | TextOptions | PairsOptions, Discriminator("kind")]
