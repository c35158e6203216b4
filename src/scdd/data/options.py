"""What to train on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from pydantic import Discriminator

from scdd.core.options import Count, Inside, Options, Text, VocabSize

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
    """What ends a document: the end of its file here, where `scdd prepare` and `scdd eval` take auto, which is WikiText's
    headings in .tokens files and a blank-line in others. JSON lines always hold one document each."""


@dataclass(frozen=True)
class PairsOptions(Options):
    """Prompts and responses to fine-tune on: responses are noised and learnt, prompts are given."""

    kind: Literal["pairs"] = field(default="pairs", kw_only=True, repr=False)
    path: Text
    """A file of JSON lines, maybe with .gz, .xz or .zst, or a folder of them: each line has prompt and response, or
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


DataOptions = Annotated[ShardsOptions | TextOptions | PairsOptions, Discriminator("kind")]
