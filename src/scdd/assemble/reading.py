"""Which tokenizer and which template of chats a run reads its texts with."""

from __future__ import annotations

from scdd.bundle.convert import Reading, reading
from scdd.core.errors import UserError, at
from scdd.data.chat import read_template
from scdd.data.options import PairsOptions, TextOptions
from scdd.data.tokenizer import TextTokenizer
from scdd.recipe.sections import Recipe


def settled(spec: Recipe, options: TextOptions | PairsOptions, used: Reading) -> Reading:
    """What the run already uses; else what the recipe names; else what the model that it starts from comes with.

    Only a text that no model waits for may have no tokenizer: it trains one.
    """
    start, pairs = spec.training.start_from, isinstance(options, PairsOptions)
    own, template = used
    with at("data"):
        if own is None and options.tokenizer is not None:
            own = TextTokenizer.load(options.tokenizer)
        if template is None and isinstance(options, PairsOptions) and options.chat_template is not None:
            template = read_template(options.chat_template)
    # A run that goes on has settled both, and does not need what it started from.
    if used.tokenizer is None and start is not None and (own is None or (pairs and template is None)):
        with at("training.start_from"):
            parent = reading(start)
        own, template = own or parent.tokenizer, template or parent.chat_template
    if own is None and (pairs or start is not None):
        lacking = "there is no training.start_from to take it from" if start is None else f"{start} has none"
        cure = "name one of the two" if start is None else "name one"
        with at("data"):
            raise UserError(f"tokenizer is null, and {lacking}: {cure}.", "tokenizer")
    return Reading(own, template)
