"""The tokenizer inside a GGUF file, as a tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from scdd.core.errors import UserError

NORMAL, CONTROL, USER, UNUSED = 1, 3, 4, 5  # token types
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = f"{_CONTRACTIONS}|{_WORDS}|\\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = f"{_CONTRACTIONS}|{_WORDS}|\\p{{N}}|{_REST}"
READABLE = ("default", "gpt-2", "smollm", "llama-bpe", "llama3", "qwen2")


def document(facts: Mapping[str, Any], place: str) -> str:
    """The tokenizer.json of a file's metadata: byte-level BPE only."""
    kind, before = facts.get("tokenizer.ggml.model"), facts.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise UserError(
            f"{place} has a tokenizer of kind {kind!s:.60}, and byte-level BPE (gpt2) can be read: take the model's Hugging "
            "Face folder, which has a tokenizer.json."
        )
    if before not in READABLE:
        raise UserError(
            f"{place} splits words in the way {before!s:.60}, and {', '.join(READABLE)} are known: take the model's Hugging "
            "Face folder, which has a tokenizer.json."
        )
    tokens, types = _tokens(facts, place)
    merged = facts.get("tokenizer.ggml.merges", [])
    if not isinstance(merged, list):
        raise UserError(f"{place} has merges that are no list: fetch it again.")
    parts = (str(merge).partition(" ") for merge in merged)
    merges = [(first, second) for first, _, second in parts]
    vocab = {token: i for i, token in enumerate(tokens)}
    try:
        model = models.BPE(vocab=vocab, merges=merges, ignore_merges=before in ("llama-bpe", "llama3"))
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"{place} has a damaged tokenizer ({error}): fetch it again.") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _pre_tokenizer(before)
    tokenizer.decoder = decoders.ByteLevel()
    if before == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    special = [t for t, role in zip(tokens, types, strict=True) if role == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    own = [t for t, role in zip(tokens, types, strict=True) if role == USER]
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in own])
    return str(tokenizer.to_str())


def ends(facts: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """(beginning, end) of a text by the names that the file gives them."""
    tokens = facts.get("tokenizer.ggml.tokens", ())

    def name(role: str) -> str | None:
        i = facts.get(f"tokenizer.ggml.{role}_token_id")
        return str(tokens[i]) if isinstance(i, int) and 0 <= i < len(tokens) else None

    return name("bos"), name("eos")


def read(file: Path) -> tuple[str, tuple[str | None, str | None]]:
    """(tokenizer.json, ends) of a file."""
    from scdd.models.weights.gguf import metadata

    facts = metadata(file)
    return document(facts, str(file)), ends(facts)


def _tokens(facts: Mapping[str, Any], place: str) -> tuple[list[str], list[int]]:
    """Tokens and their types; the unused ones at the end, which only fill the embedding's rows, are left out."""
    tokens = facts.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or len(set(tokens)) != len(tokens):
        raise UserError(f"{place} has no tokens, or one of them twice: fetch it again.")
    types = facts.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise UserError(f"{place} has {len(tokens)} tokens and not as many types: fetch it again.")
    last = max((i for i, role in enumerate(types) if role != UNUSED), default=-1)
    return [str(token) for token in tokens[: last + 1]], types[: last + 1]


def _pre_tokenizer(kind: str) -> Any:
    if kind == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if kind in ("default", "gpt-2"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    pattern = Regex(_QWEN2 if kind == "qwen2" else _LLAMA3)
    split = pre_tokenizers.Split(pattern, behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
