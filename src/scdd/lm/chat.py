"""A chat with a model that was fine-tuned on chats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from typing_extensions import Unpack

from scdd.core.errors import UserError
from scdd.data.chat import ChatTemplate, Message, check_messages
from scdd.lm.rows import Row, check_whole
from scdd.lm.run import Run
from scdd.samplers.options import SamplingChanges

if TYPE_CHECKING:
    from scdd.lm.model import LM


def answer(lm: LM, messages: Sequence[Message], room: int = 64, **changes: Unpack[SamplingChanges]) -> str:
    """What the assistant says next, in at most `room` tokens; `changes` are those of `generate`.

    The chat is written by the template that the model comes with, whose special tokens a plain prompt cannot spell.
    """
    if lm.chat_template is None:
        raise UserError(f"{lm.name} comes with no chat template: fine-tune it on chats, or give it a prompt.")
    try:
        chat = check_messages(list(messages))
    except ValueError as error:
        raise UserError(f"The chat cannot be read ({error}): give [{{role, content}}, …].", "messages") from error
    check_whole("room", room)
    tokenizer = lm.tokenizer
    template = ChatTemplate(lm.chat_template, tokenizer)
    given = template.encode(template.render(chat, answer=True))
    given = given[1:] if given[:1] == [tokenizer.bos_id] else given  # rows have one of their own
    row = Row((*given, *[tokenizer.mask_id] * room), (*[True] * len(given), *[False] * room))
    changes["stop"] = False  # earlier turns may hold an end-of-text: the answer is cut at its own
    (sample,) = Run(lm.engine, [row], lm.plan(**changes)).results
    said = list(sample.tokens[len(given) :])
    ends = {tokenizer.eos_id, template.end_of_turn(chat)}  # of the text, and of the assistant's turn
    end = next((i for i, token in enumerate(said) if token in ends), len(said))
    return tokenizer.decode(said[:end]).strip()
