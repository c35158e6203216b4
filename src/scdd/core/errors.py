"""The exceptions that mean "the user can mend this"."""

from __future__ import annotations

import re


class UserError(Exception):
    """A mistake of the caller's: one sentence that names it, where it is, and the cure.

    The command line prints the sentence and exits with 2; anything else is a bug and keeps its traceback. `option` is
    the name of the argument at fault, if it is one: whoever knows how it was spelt (a flag, a recipe's key, a field of
    a request) says so.
    """

    def __init__(self, message: str, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option

    def at(self, place: str) -> UserError:
        """The same sentence with the option spelt as the user knows it: a flag, a recipe's key."""
        return UserError(re.sub(rf"\b{self.option}\b", lambda _: place, str(self), count=1))


class OptionError(UserError, ValueError):
    """An option out of range, or one that does not fit another; pydantic takes it for a finding about its section."""
