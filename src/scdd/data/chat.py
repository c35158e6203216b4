"""Chats as text: a model's own chat template, a small Jinja program, rendered where it can do nothing else.

A template comes with a model, so it is somebody else's code: Jinja's sandbox runs it, with the operators, methods, filters and
tests that chats need and no others, and each of them pays for its time and memory out of one budget, which grows with the chat.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scdd.core.errors import UserError, reason
from scdd.data.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from scdd.data.sandbox import Sandbox

LONGEST_TEMPLATE = 1 << 16  # characters
LONGEST_REASON = 300  # characters of an error's, which can show what a template computed
MOST_MESSAGES = 1024
BUDGET = 1 << 24  # of a rendering, in units of about a byte and ten nanoseconds (`sandbox_values`)
BUDGET_OF_MESSAGE = 1 << 14
BUDGET_OF_BYTE = 16
ASSISTANT = "assistant"
# A template may mark what the assistant says; prefixes tell us that as well, so the marks become blocks that do nothing.
_MARK = re.compile(r"\{%(-?)\s*generation\s*(-?)%\}")
_END_MARK = re.compile(r"\{%(-?)\s*endgeneration\s*(-?)%\}")
_ESCAPE = "\ue000"  # private use: stands before the number of a special token's name that a message spells out
_ANSWER = "\ue002"  # private use: stands for an answer that is not known yet
_ESCAPED = re.compile("\ue000(\\d+)\ue001")

Message = Mapping[str, str]


def read_template(path: str | Path) -> str:
    """A template from a file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"chat_template {path} cannot be read ({reason(error)}): give a file with a Jinja template.",
            "chat_template",
        ) from error


def check_messages(value: Any) -> list[Message]:
    """Messages from outside as [{role, content}, …]; ValueError says in a few words what is wrong with them."""
    if not isinstance(value, list) or not value:
        raise ValueError("messages is no list of messages")
    if len(value) > MOST_MESSAGES:
        raise ValueError(f"a chat of {len(value)} messages, at most {MOST_MESSAGES} are read")
    for message in value:
        for key in ("role", "content"):
            if not isinstance(message, dict) or not isinstance(message.get(key), str):
                raise ValueError(f"a message without a text as its {key}")
    return [{"role": message["role"], "content": message["content"]} for message in value]


class ChatTemplate:
    """A chat template with the tokenizer whose special tokens it writes."""

    def __init__(self, text: str, tokenizer: TextTokenizer) -> None:
        if len(text) > LONGEST_TEMPLATE:
            raise UserError(
                f"chat_template has {len(text)} characters, at most {LONGEST_TEMPLATE} are read: shorten it.",
                "chat_template",
            )
        self.text, self.tokenizer = text, tokenizer
        # The mask is a state of the process: no template writes it, and no message either.
        self._names = [name for name in tokenizer.special_tokens if name != tokenizer.mask]
        self._special = re.compile("|".join(map(re.escape, sorted(self._names, key=len, reverse=True))))
        self._spelt = [*tokenizer.special_tokens, _ESCAPE]
        self._spelling = re.compile("|".join(map(re.escape, sorted(self._spelt, key=len, reverse=True))))

    @cached_property
    def _template(self) -> tuple[Sandbox, Any]:
        from scdd.data.sandbox import Sandbox

        plain = _END_MARK.sub(r"{%\1 endif \2%}", _MARK.sub(r"{%\1 if true \2%}", self.text))
        try:
            sandbox = Sandbox()
            return sandbox, sandbox.template(plain)
        # Parsers and compilers fail in many ways at odd programs: too deep, too long a number.
        except Exception as error:
            raise UserError(
                f"chat_template is not a Jinja template ({reason(error)[:LONGEST_REASON]}): mend it.", "chat_template"
            ) from error

    def render(self, messages: Sequence[Message], answer: bool = False) -> str:
        """The chat as the template writes it; `answer` also begins the assistant's next turn.

        Names of special tokens that a message spells out are escaped: `encode` reads them as the letters that they are.
        """
        escaped = [{"role": m["role"], "content": self._spelling.sub(self._escape, m["content"])} for m in messages]
        characters = sum(len(m["content"]) for m in escaped)
        limit = (1 << 16) + 16 * (characters + 1024 * len(escaped))
        budget = BUDGET + BUDGET_OF_MESSAGE * len(escaped) + BUDGET_OF_BYTE * 4 * characters
        values = {"bos_token": self.tokenizer.bos, "eos_token": self.tokenizer.eos, "tools": None, "documents": None}
        parts: list[str] = []
        size = 0
        sandbox, template = self._template
        try:
            with sandbox.rendering(budget):
                for part in template.generate(messages=escaped, add_generation_prompt=answer, **values):
                    parts.append(part)
                    size += len(part)
                    if size > limit:
                        raise ValueError(f"it writes more than {limit} characters")
        except Exception as error:  # somebody else's program: whatever it raises, it did not render
            raise UserError(
                f"chat_template does not render a chat ({reason(error)[:LONGEST_REASON]}): mend the template or the messages.",
                "chat_template",
            ) from error
        return "".join(parts)

    def turns(self, messages: Sequence[Message]) -> list[tuple[str, bool]]:
        """The rendered chat in pieces, (text, whether the assistant says it), what ends its turn included.

        What the assistant says is what its message adds to the chat before it with its turn begun; a template that
        writes earlier turns otherwise later on is refused.
        """
        pieces: list[tuple[str, bool]] = []
        done = ""
        for number, message in enumerate(messages):
            if message["role"] != ASSISTANT:
                continue
            before, after = self.render(messages[:number], answer=True), self.render(messages[: number + 1])
            if not (before.startswith(done) and after.startswith(before)):
                raise UserError(
                    "chat_template writes earlier turns otherwise once there are later ones, so that what the assistant "
                    "says cannot be told from the rest: use another template, or chats of one answer.",
                    "chat_template",
                )
            pieces += [(before[len(done) :], False), (after[len(before) :], True)]
            done = after
        return pieces

    def end_of_turn(self, messages: Sequence[Message]) -> int | None:
        """The special token that the template writes after the assistant's answer to this chat; None if it writes none."""
        _, there, rest = self.render([*messages, {"role": ASSISTANT, "content": _ANSWER}]).rpartition(_ANSWER)
        match = self._special.search(rest) if there else None
        return None if match is None else self.tokenizer.special_tokens[match[0]]

    def encode(self, text: str) -> list[int]:
        """Ids of a rendered text (or piece of one), the template's special tokens recognised."""
        ids: list[int] = []
        end = 0
        for match in self._special.finditer(text):
            ids += [*self._plain(text[end : match.start()]), self.tokenizer.special_tokens[match[0]]]
            end = match.end()
        return [*ids, *self._plain(text[end:])]

    def _plain(self, text: str) -> list[int]:
        return self.tokenizer.encode(_ESCAPED.sub(lambda m: self._spelt[int(m[1])], text)) if text else []

    def _escape(self, match: re.Match[str]) -> str:
        return f"{_ESCAPE}{self._spelt.index(match[0])}\ue001"
