"""From a recipe's section to pairs to fine-tune on, in rows."""

from __future__ import annotations

from typing import NamedTuple

from scdd.core.errors import UserError
from scdd.data.chat import ChatTemplate
from scdd.data.options import PairsOptions
from scdd.data.pairs import PairBlocks, Pairs, encode_pairs, read_pairs, split_pairs
from scdd.data.tokenizer import TextTokenizer

ONE_END, FILL = 1, 32


class PairsData(NamedTuple):
    """Rows to train on and to validate on, and what the user should know of them."""

    train: PairBlocks
    valid: PairBlocks | None
    notices: tuple[str, ...]


def pairs(options: PairsOptions, tokenizer: TextTokenizer, template: str | None, one_end: bool) -> PairsData:
    """The pairs; with `one_end` a single [EOS] ends each if the options do not say otherwise."""
    chat = None if template is None else ChatTemplate(template, tokenizer)
    fill = options.fill or (ONE_END if one_end else FILL)
    try:
        found = list(read_pairs(options.path, chat))
    except UserError as error:  # of the template, or of the files
        raise error if error.option is not None else error.spelt("path") from error
    if not found:
        raise UserError(f"path {options.path} holds no pairs: give JSON lines with prompt and response.", "path")
    held, kept = split_pairs(found, options.valid_fraction)
    train, valid = (encode_pairs(part, tokenizer, chat, options.length, fill) for part in (kept, held))
    return PairsData(
        PairBlocks(train, options.length, options.pack),
        PairBlocks(valid, options.length, options.pack) if len(valid) else None,
        _notices(train, valid, options.length),
    )


def _notices(train: Pairs, valid: Pairs, length: int) -> tuple[str, ...]:
    """What became of pairs that are too long, in a sentence."""
    count, cut, skipped = len(train) + len(valid), train.cut + valid.cut, train.skipped + valid.skipped
    if not (cut or skipped):
        return ()
    return (
        f"{count} pairs; {cut} prompts lost their beginning to fit into {length} tokens, and {skipped} pairs are left "
        "out, whose response is empty or does not fit",
    )
