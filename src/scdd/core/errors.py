"""The exceptions that mean "the user can mend this"."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """A mistake of the caller's: one sentence that names it, where it is, and the cure.

    The command line prints the sentence and exits with 2; anything else is a bug and keeps its traceback. `option` is
    the name of the argument at fault, if it is one: whoever knows how it was spelt (a flag, a recipe's key, a field of
    a request) says so, with `spelt`.
    """

    def __init__(self, message: str, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option

    @property
    def offers(self) -> bool:
        """Whether the option is the cure and not the mistake: the sentence has it in brackets, `… in blocks (blocks).`"""
        return self.option is not None and f"({self.option})" in str(self)

    def spelt(self, name: str) -> UserError:
        """The same mistake with its option called `name`: where it is offered, in place of the sentence's first word, or before it."""
        message, option = str(self), self.option or ""
        if self.offers:
            return type(self)(offered(message, option, name), name)
        rest = message.removeprefix(option)
        leads = rest != message and not (rest[:1].isalnum() or rest[:1] == "_")
        return type(self)(name + rest if leads else f"{name}: {message}", name)


class OptionError(UserError, ValueError):
    """An option out of range, or one that does not fit another; pydantic takes it for a finding about its section."""


def offered(sentence: str, option: str, name: str) -> str:
    """A sentence that offers an option in brackets, with the option called `name`."""
    return sentence.replace(f"({option})", f"({name})")


@contextmanager
def at(place: str) -> Iterator[None]:
    """Mistakes in this block are about `place` or an option of it: at "data", `path …` is told as `data.path …`."""
    try:
        yield
    except UserError as error:
        raise error.spelt(place if error.option is None else f"{place}.{error.option}") from error


def missing_extra(what: str, extra: str, instead: str = "") -> str:
    """The sentence for a package of an extra that is not installed: `what` needs it. No index has scdd, a checkout does."""
    return f"{what}: in a checkout of scdd, pip install -e '.[{extra}]'{instead}."


def reason(error: BaseException) -> str:
    """The first line of what an exception says, or its name if it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
