"""`scdd`: finds the verb, imports its file, and turns a user's mistake into one sentence.

How to add a verb. Write `scdd/cli/<verb>.py` with either

- a function of the verb's name, annotated as typer wants it (`def train(recipe: str, out: Path = ...) -> None`), which may
  be a command of a class of its own (`COMMAND`), or
- `app`, a `typer.Typer`, where the verb has verbs of its own (`scdd recipe show`);

and give it a line in `VERBS`. The line is the verb's help in `scdd --help`, which therefore imports no verb, and no
torch. A line whose file does not exist is not shown. Inside a verb, raise `UserError` for whatever the user can mend:
it is printed as `error: …` and the exit status is 2. Anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from scdd import __version__
from scdd.core.errors import UserError, missing_extra, reason

# What the machine refuses and its user can mend, with the cure.
CURES = {
    errno.ENOSPC: "make room, or write elsewhere",
    errno.EDQUOT: "make room, or write elsewhere",
    errno.EFBIG: "make room, or write elsewhere",
    errno.EACCES: "change its permissions, or choose another place",
    errno.EPERM: "change its permissions, or choose another place",
    errno.EROFS: "choose another place",
    errno.ENOTDIR: "choose another place",
    errno.EISDIR: "name a file",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOENT: "check the path, or choose another place",
    errno.EEXIST: "choose another place",
    errno.ENOTEMPTY: "choose another place",
    errno.ELOOP: "check where its links lead",
    errno.EINVAL: "choose another place",
    errno.EBUSY: "choose another place",
    errno.EXDEV: "choose another place",
    errno.ENXIO: "name a file",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files (ulimit -n)",
}


LESS = {"train": "lower training.micro_batch_size, or data.length"}
NO_MEMORY = ("out of memory", "can't allocate memory")  # what torch says, on a GPU and on a CPU


class Verb(NamedTuple):
    """A line of help, and the optional dependencies that the verb may lack."""

    help: str
    extra: str | None = None


VERBS: dict[str, Verb] = {
    "demo": Verb("Write a text that corrects itself, repair a paragraph, fill a gap, and leave a page to play."),
    "prepare": Verb("Turn text into packed token shards.", "train"),
    "plan": Verb("Say what a recipe will cost: parameters, memory, time; and what would fit."),
    "train": Verb("Train a model from a recipe, or resume it.", "train"),
    "sample": Verb("Draw text from a model."),
    "infill": Verb("Fill the [MASK] spans of a text."),
    "correct": Verb("Find and repair what a model doubts in a text."),
    "score": Verb("Show how likely a model finds each token of a text."),
    "convert": Verb("Turn a model from elsewhere into a folder of ours: Hugging Face, GGUF, the authors' checkpoints."),
    "export": Verb("Write a model as a small folder to share, in bfloat16 or 8 bits."),
    "push": Verb("Upload a model to the Hugging Face Hub, for scdd and for transformers."),
    "eval": Verb("Measure a model: likelihood, generative perplexity, diversity, correction, zero-shot.", "eval"),
    "report": Verb("Gather measurements into tables and figures.", "eval"),
    "reproduce": Verb("Train, tune and measure everything, and say which of the paper's claims hold.", "eval"),
    "serve": Verb("Serve a model over HTTP.", "serve"),
    "bench": Verb("Measure speed and memory."),
    "recipe": Verb("Show, check and list recipes."),
}


class LazyGroup(TyperGroup):
    """Knows its verbs by the table, and imports only the one that is called."""

    running: Any = None  # the verb's own command, once it is known
    verb: str = ""  # its name

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, verb in VERBS.items():
            if find_spec(f"scdd.cli.{name}") is not None:
                self.commands[name] = TyperCommand(name, help=verb.help)  # for listing; the real one comes below

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb itself, imported now."""
        name, command, rest = super().resolve_command(ctx, args)
        self.verb = name or ""
        self.running = command if name is None else import_verb(name)
        return name, self.running, rest


def import_verb(name: str) -> Any:
    """The command that a verb's file defines."""
    module = import_module(f"scdd.cli.{name}")
    if isinstance(getattr(module, "app", None), typer.Typer):
        return typer.main.get_command(module.app)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, cls=getattr(module, "COMMAND", None))(getattr(module, name))
    return typer.main.get_command(app)


def missing(error: ModuleNotFoundError, verb: str) -> UserError | None:
    """What to install, where a verb lacks one of its optional packages, at its import or as it runs; None for a bug."""
    extra = VERBS[verb].extra if verb in VERBS else None
    if extra is None or (error.name or "scdd").partition(".")[0] == "scdd":
        return None
    return UserError(missing_extra(f"scdd {verb} needs {error.name}", extra))


def as_typed(error: UserError, command: Any, words: Sequence[str]) -> UserError:
    """The mistake with its option spelt as the flag among `words`: `top_p is 2: …` becomes `--top-p is 2: …`.

    What was not typed stays as it is (the recipe may have said it), unless it is the cure.
    """
    parts = [command, *getattr(command, "commands", {}).values()]
    flags = {
        parameter.name: parameter.opts
        for part in parts
        for parameter in getattr(part, "params", ())
        if parameter.param_type_name == "option"
    }
    spellings = flags.get(error.option, ())
    typed = next((f for f in spellings if any(word == f or word.startswith(f"{f}=") for word in words)), None)
    if typed is None and error.offers:
        typed = next(iter(spellings), None)
    return error if typed is None else error.spelt(typed)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"scdd {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Self-Correcting Discrete Diffusion language models."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `scdd` with these arguments (default: the process's) and return the exit status."""
    try:
        return _run(argv)
    finally:
        if argv is None:
            end_quickly()


def _run(argv: Sequence[str] | None) -> int:
    given = sys.argv[1:] if argv is None else argv
    collect_rarely()
    show_every_character()
    # Plain help text: rich's markup would swallow words in square brackets such as [MASK].
    app = typer.Typer(cls=LazyGroup, rich_markup_mode=None, no_args_is_help=True)
    app.callback()(_root)
    group = typer.main.get_command(app)
    try:
        try:
            group(args=argv, prog_name="scdd")
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else 0
        except ModuleNotFoundError as error:
            lacking = missing(error, getattr(group, "verb", ""))
            if lacking is None:
                raise
            raise lacking from error
        finally:
            flush()
    except UserError as error:
        for line in str(as_typed(error, getattr(group, "running", None), given)).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in CURES:
            raise
        nameless = "The current folder" if error.errno == errno.ENOENT else "the output"
        place = nameless if error.filename is None else error.filename
        print(f"error: {place} cannot be used ({error.strerror}): {CURES[error.errno]}.", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in NO_MEMORY):
            raise
        cure = LESS.get(getattr(group, "verb", ""), "ask for less at a time")
        print(f"error: There is not enough memory ({reason(error)}): {cure}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


# -- how the process gets on with its machine --------------------------------------------------------------------------


def collect_rarely() -> None:
    """Importing torch makes very many objects that stay; looking through them again and again is a tenth of its time."""
    gc.set_threshold(50_000, 20, 20)


def end_quickly() -> None:
    """As the interpreter ends it looks through every object again, a fifth of what importing torch takes: nothing is left to free."""
    gc.freeze()


def show_every_character() -> None:
    """Characters that the output's encoding lacks are written as escapes, where Python would give up."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def flush() -> None:
    """Write what is still held back, so that a full disk is noticed here and not by the interpreter as it ends."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # what is left would fail again at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno != errno.EPIPE:
            raise
