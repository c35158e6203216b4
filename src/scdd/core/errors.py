"""The one exception that means "the user can mend this"."""

from __future__ import annotations


class UserError(Exception):
    """A mistake of the caller's: one sentence that names it, where it is, and the cure.

    The command line prints the sentence and exits with 2; anything else is a bug and keeps its traceback.
    """
