"""Where the answers to many texts go, and how far they have come: written lines stay, and belong to the texts they were made of.

A line of JSON holds the object that it answers. A plain line does not, so that what was answered is known by hashes in
`OUT.settings.json`, which are put there before the lines that they are of: a kill leaves both, or hashes too many.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

from scdd.core.errors import UserError

SHORT = 16  # letters of a line's own hash
ANSWERED = "answered"  # the key of the hashes
CURE = "give the texts that it was made from, choose another --out, or delete it."


class Entry(NamedTuple):
    """A line of the source."""

    number: int
    text: str
    given: dict[str, Any] | None  # the object that it came in


class Printed:
    """Answers that go to standard output, all of them anew."""

    done = 0
    """Lines that were there before."""

    def rest(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """The entries that have no answer yet."""
        return entries

    def begin(self, entries: Sequence[Entry]) -> None:
        """Answers to these come next."""

    def write(self, line: str) -> None:
        """The next answer."""
        print(line)


@dataclass
class Same:
    """Whether the lines of JSON that are there hold the objects of the source."""

    verb: str
    source: str
    out: Path
    known = 0  # entries whose hash is kept

    def check(self, entry: Entry, line: bytes) -> None:
        """Refuse an entry that is not the one that `line` answers."""
        given = {"text": entry.text} if entry.given is None else entry.given
        try:
            answer = json.loads(line)
            *_, added = answer
            answer = {key: value for key, value in answer.items() if key != added}
        except (ValueError, RecursionError, AttributeError, TypeError):
            answer, added = None, ""
        if added not in (self.verb, "error") or json.dumps(answer) != json.dumps(given):
            raise _other(self.source, entry.number, self.out)

    def ahead(self, entries: Sequence[Entry]) -> None:
        """What stands in the source behind the answered ones says nothing."""

    def begin(self, entries: Sequence[Entry]) -> None:
        """The answers will hold what they answer."""


@dataclass
class Hashed:
    """Whether the entries that have been answered are those of the source, by their hashes."""

    source: str
    out: Path
    beside: Path
    told: dict[str, Any]
    known: int = 0
    """The entries that `whole` is of; None: the file is from before there were hashes, and is taken on trust."""
    whole: str | None = None
    then: Sequence[str] = ()
    """The hashes of the entries that were about to be answered."""
    seen: int = 0
    running: Any = field(default_factory=hashlib.sha256)

    def check(self, entry: Entry, line: bytes) -> None:
        """Refuse an entry that is not the one that was answered."""
        digest = _digest(entry)
        self.running.update(digest)
        self.seen += 1
        if self.whole is None:
            return
        if self.seen == self.known:
            self._compare(self.running.hexdigest())
        following = self.seen - self.known - 1
        if following >= 0 and [digest.hex()[:SHORT]] != list(self.then[following : following + 1]):
            raise _other(self.source, entry.number, self.out)

    def ahead(self, entries: Sequence[Entry]) -> None:
        """Entries that were answered once, whose answers a full disk or somebody's hand has taken away again."""
        further = self.running.copy()
        for entry in entries:
            further.update(_digest(entry))
        self._compare(further.hexdigest() if self.seen + len(entries) == self.known else None)

    def _compare(self, found: str | None) -> None:
        if found != self.whole:
            raise UserError(
                f"{self.source} has other texts in its first {self.known} lines than those that --out {self.out} "
                f"has answered: {CURE}"
            )

    def begin(self, entries: Sequence[Entry]) -> None:
        """Note what is going to be answered."""
        from scdd.data.files import write_atomically

        digests = [_digest(entry) for entry in entries]
        self.known, self.whole = self.seen, self.running.hexdigest()
        self.then = [digest.hex()[:SHORT] for digest in digests]
        state = {"lines": self.known, "sha256": self.whole, "then": self.then}
        write_atomically(self.beside, _settings({**self.told, ANSWERED: state}).encode())
        for digest in digests:
            self.running.update(digest)
        self.seen += len(digests)


class Kept:
    """Answers in a file, behind those that are there."""

    def __init__(self, out: Path, file: IO[bytes], source: str, texts: Same | Hashed) -> None:
        self._out, self._file, self._source, self._texts = out, file, source, texts
        self.done = 0

    def rest(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """The entries that have no answer yet, once the others are found to be those that were answered."""
        done = end = 0
        for line in self._lines():
            entry = next(entries, None)
            if entry is None:
                raise UserError(
                    f"{self._source} ends before line {done + 1}, which --out {self._out} has answered: {CURE}"
                )
            self._texts.check(entry, line)
            done, end = done + 1, end + len(line)
        ahead = [entry for _, entry in zip(range(self._texts.known - done), entries, strict=False)]
        if self._texts.known > done:
            self._texts.ahead(ahead)
        self.done = done
        with _about(self._out):
            self._file.truncate(end)  # of a cut line what is left is dropped
        return chain(ahead, entries)

    def begin(self, entries: Sequence[Entry]) -> None:
        """Answers to these come next."""
        with _about(self._out):
            self._texts.begin(entries)

    def write(self, line: str) -> None:
        """The next answer, on disk before the one after it is made."""
        with _about(self._out):
            self._file.write(line.encode() + b"\n")
            self._file.flush()

    def _lines(self) -> Iterator[bytes]:
        """Lines that were written to their end."""
        with _about(self._out):
            self._file.seek(0)
            read = self._file.readline
        while True:
            with _about(self._out):
                line = read()
            if not line.endswith(b"\n"):
                return
            yield line


@contextmanager
def sink(out: Path | None, told: dict[str, Any], source: str, plain: bool) -> Iterator[Printed | Kept]:
    """Where answers go; `plain` lines hold nothing of what they answer. A file of other settings is refused."""
    if out is None:
        yield Printed()
        return
    beside = out.with_name(out.name + ".settings.json")
    with _about(out):
        state = _checked(out, beside, told)
        file = out.open("a+b")
    texts = Hashed(source, out, beside, told, *state) if plain else Same(told["verb"], source, out)
    try:
        yield Kept(out, file, source, texts)
    finally:
        with _about(out):  # what could not be written is tried once more
            file.close()


def _checked(out: Path, beside: Path, told: dict[str, Any]) -> tuple[Any, ...]:
    """What the settings beside `out` say of the texts that were answered, once they are found to be these; written if new."""
    settings = _settings(told)
    if not out.exists():
        beside.write_text(settings, encoding="utf-8")
        return ()
    earlier = beside.read_text(encoding="utf-8", errors="replace") if beside.exists() else ""
    try:
        found = json.loads(earlier)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("verb") != told["verb"]:
        raise UserError(f"--out {out} exists and is no result of this command: choose another.")
    state = found.pop(ANSWERED, None)
    if (earlier if state is None else _settings(found)) != settings:
        raise UserError(f"--out {out} exists, and was made with other settings: choose another, or delete it.")
    if state is None:
        return ()
    try:
        return int(state["lines"]), str(state["sha256"]), list(map(str, state["then"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{beside} is damaged: choose another --out, or delete {out}.") from error


def _settings(told: dict[str, Any]) -> str:
    return json.dumps(told, indent=1, ensure_ascii=False, default=str) + "\n"


def _digest(entry: Entry) -> bytes:
    return hashlib.sha256(entry.text.encode()).digest()


def _other(source: str, number: int, out: Path) -> UserError:
    return UserError(f"{source}, line {number} is another text than the one that --out {out} has answered: {CURE}")


@contextmanager
def _about(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"--out {out} cannot be written ({error.strerror}): make room, or choose another.") from error
