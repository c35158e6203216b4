"""A byte-pair tokenizer cut down to the tokens that a text uses: fewer ids, the same rules.

A token is made of two others, and those of two others again, so what is kept must be closed: how often a token takes part in
making the text's tokens never grows from a part to the whole, and the tokens of the highest counts are such a set. Where a
token is gone, the text has the parts that it was made of.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

from scdd.core.errors import UserError
from scdd.data.tokenizer import TextTokenizer

TEXTS = 256  # encoded together


def trimmed(tokenizer: TextTokenizer, texts: Iterable[str], size: int) -> tuple[TextTokenizer, list[int]]:
    """(A tokenizer of `size` ids, which ids of the old one they were): the tokens that `texts` use most.

    Special tokens and the alphabet stay, whatever they are used for, and all keep their order.
    """
    document = json.loads(tokenizer.to_str())
    model = document["model"]
    if not isinstance(model.get("merges"), list) or not isinstance(model.get("vocab"), dict):
        raise UserError("vocab_size: only a byte-pair tokenizer has tokens that can be left out; use the whole one.")
    ids = {**model["vocab"], **{token["content"]: token["id"] for token in document["added_tokens"]}}
    merges = [tuple(merge) for merge in model["merges"]]
    first = {a + b: place for place, (a, b) in reversed(list(enumerate(merges)))}  # who makes a token: its first merge
    special = {token["content"] for token in document["added_tokens"]}
    made = [token for token in first if token not in special]
    room = size - (len(ids) - len(made))
    if room < 0 or size > tokenizer.size:
        least = len(ids) - len(made)
        raise UserError(
            f"vocab_size is {size}: choose from {least} to {tokenizer.size}, all that there are.", "vocab_size"
        )
    uses = _uses(tokenizer, texts, ids, {token: merges[first[token]] for token in made}, first)
    gone = set(sorted(made, key=lambda token: (-uses[token], first[token]))[room:])
    kept = sorted((token for token in ids if token not in gone), key=ids.__getitem__)
    model["vocab"] = {token: i for i, token in enumerate(kept) if token in model["vocab"]}
    model["merges"] = [[a, b] for a, b in merges if not {a, b, a + b} & gone]
    _renumber(document, {token: i for i, token in enumerate(kept)})
    smaller = TextTokenizer(json.dumps(document, ensure_ascii=False), "the trimmed tokenizer")
    if smaller.size != size or any(smaller._id(token) != i for i, token in enumerate(kept) if token in special):
        raise UserError("vocab_size: this tokenizer's special tokens cannot be numbered anew; use the whole one.")
    return smaller, [ids[token] for token in kept]


def _uses(
    tokenizer: TextTokenizer,
    texts: Iterable[str],
    ids: dict[str, int],
    parts: dict[str, tuple[Any, ...]],
    order: dict[str, int],
) -> Counter[str]:
    """How often each token is used, by itself or in the making of others."""
    found: Counter[int] = Counter()
    waiting = iter(texts)
    while some := list(islice(waiting, TEXTS)):
        for row in tokenizer.encode_batch(some):
            found.update(row)
    names = {i: token for token, i in ids.items()}
    uses: Counter[str] = Counter({names[i]: count for i, count in found.items() if i in names})
    for token in sorted(parts, key=order.__getitem__, reverse=True):  # the whole before its parts
        for part in parts[token]:
            uses[part] += uses[token]
    return uses


def _renumber(document: dict[str, Any], ids: dict[str, int]) -> None:
    """Special tokens' new ids, wherever the document says them."""
    for token in document["added_tokens"]:
        token["id"] = ids[token["content"]]
    named: dict[str, Any] = (document.get("post_processor") or {}).get("special_tokens") or {}
    for name, entry in named.items():
        entry["ids"] = [ids[name]]
