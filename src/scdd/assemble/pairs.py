"""From a recipe to pairs to fine-tune on, with the tokenizer and the chat template of the model that is fine-tuned."""

from __future__ import annotations

from typing import NamedTuple

from scdd.bundle import folder as bundle
from scdd.core.errors import UserError, at
from scdd.data.chat import ChatTemplate, read_template
from scdd.data.options import PairsOptions
from scdd.data.pairs import PairBlocks, Pairs, encode_pairs, read_pairs, split_pairs
from scdd.data.tokenizer import TextTokenizer
from scdd.recipe.sections import Recipe

ONE_END, FILL = 1, 32


class PairsData(NamedTuple):
    """What `corpus` is made of."""

    tokenizer: TextTokenizer
    train: PairBlocks
    valid: PairBlocks | None
    chat_template: str | None
    notices: tuple[str, ...]


def pairs(spec: Recipe, options: PairsOptions, known: TextTokenizer | None, template: str | None) -> PairsData:
    """The recipe's pairs; `known` and `template` are what the run already uses."""
    tokenizer = known or _tokenizer(spec, options)
    template = template or _template(spec, options)
    chat = None if template is None else ChatTemplate(template, tokenizer)
    fill = options.fill or (ONE_END if spec.process.kind == "ar" else FILL)
    with at("path"):
        held, kept = split_pairs(list(read_pairs(options.path, chat)), options.valid_fraction)
    train, valid = (encode_pairs(part, tokenizer, chat, options.length, fill) for part in (kept, held))
    return PairsData(
        tokenizer,
        PairBlocks(train, options.length, options.pack),
        PairBlocks(valid, options.length, options.pack) if len(valid) else None,
        template,
        _notices(train, valid, options.length),
    )


def _tokenizer(spec: Recipe, options: PairsOptions) -> TextTokenizer:
    if options.tokenizer is not None:
        return TextTokenizer.load(options.tokenizer)
    if spec.training.start_from is None:
        raise UserError(
            "tokenizer is null, and there is no training.start_from to take it from: name one of the two.", "tokenizer"
        )
    file = bundle.found(spec.training.start_from) / bundle.TOKENIZER
    if not file.is_file():
        raise UserError(f"tokenizer is null, and {file.parent} has none: name one.", "tokenizer")
    return TextTokenizer.from_file(file)


def _template(spec: Recipe, options: PairsOptions) -> str | None:
    if options.chat_template is not None:
        return read_template(options.chat_template)
    if spec.training.start_from is None:
        return None
    template = bundle.meta(bundle.found(spec.training.start_from)).get("extra", {}).get(bundle.CHAT_TEMPLATE)
    return template if isinstance(template, str) else None


def _notices(train: Pairs, valid: Pairs, length: int) -> tuple[str, ...]:
    """What became of pairs that are too long, in a sentence."""
    count, cut, skipped = len(train) + len(valid), train.cut + valid.cut, train.skipped + valid.skipped
    if not (cut or skipped):
        return ()
    return (
        f"{count} pairs; {cut} prompts lost their beginning to fit into {length} tokens, and {skipped} pairs are left "
        "out, whose response is empty or does not fit",
    )
