"""A chat with a model that was fine-tuned on chats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from typing_extensions import Unpack

from scdd.core.errors import UserError
from scdd.data.chat import ChatTemplate, Message, check_messages
from scdd.lm.results import Sample
from scdd.lm.rows import Row, check_whole
from scdd.lm.run import Run
from scdd.samplers.options import SamplingChanges
from scdd.samplers.plan import SamplingPlan

if TYPE_CHECKING:
    from scdd.lm.model import LM


def answer(lm: LM, messages: Sequence[Message], room: int = 64, **changes: Unpack[SamplingChanges]) -> str:
    """What the assistant says next, in at most `room` tokens; `changes` are those of `generate`.

    The chat is written by the template that the model comes with, whose special tokens a plain prompt cannot spell.
    """
    given = written(lm, messages)
    changes["stop"] = False  # earlier turns may hold an end-of-text: the answer is cut at its own
    (sample,) = start(lm, given, room, lm.plan(**changes)).results
    return said(lm, sample, len(given))[0]


def written(lm: LM, messages: Sequence[Message]) -> list[int]:
    """The tokens of a chat, with the assistant's next turn begun."""
    if lm.chat_template is None:
        raise UserError(f"{lm.name} comes with no chat template: fine-tune it on chats, or give it a prompt.")
    try:
        chat = check_messages(list(messages))
    except ValueError as error:
        raise UserError(f"The chat cannot be read ({error}): give [{{role, content}}, …].", "messages") from error
    template = ChatTemplate(lm.chat_template, lm.tokenizer)
    given = template.encode(template.render(chat, answer=True))
    return given[1:] if given[:1] == [lm.tokenizer.bos_id] else given  # rows have one of their own


def start(lm: LM, given: Sequence[int], room: int, plan: SamplingPlan, num: int = 1) -> Run:
    """`num` answers of at most `room` tokens to a chat's tokens, to be watched; the plan cuts nothing (`stop`)."""
    check_whole("room", room)
    row = Row((*given, *[lm.tokenizer.mask_id] * room), (*[True] * len(given), *[False] * room))
    return Run(lm.engine, [row] * num, plan)


def said(lm: LM, sample: Sample, given: int) -> tuple[str, list[int]]:
    """(The answer in a row whose first `given` tokens are the chat, its tokens); it ends at its end-of-text, if it has one."""
    tokens = list(sample.tokens[given:])
    end = tokens.index(lm.tokenizer.eos_id) if lm.tokenizer.eos_id in tokens else len(tokens)
    return lm.tokenizer.decode(tokens[:end]).strip(), tokens[:end]
