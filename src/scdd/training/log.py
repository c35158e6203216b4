"""Where a run's numbers go: metrics.jsonl always, the terminal, TensorBoard, Weights & Biases. Only rank 0 has sinks."""

from __future__ import annotations

import contextlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scdd.core.errors import UserError, missing_extra, reason
from scdd.data.files import write_atomically

METRICS = "metrics.jsonl"
Values = Mapping[str, float]


class Sink(ABC):
    """Takes numbers, and texts (samples, notices)."""

    @abstractmethod
    def numbers(self, step: int, values: Values) -> None:
        """What was measured at `step`."""

    @abstractmethod
    def text(self, step: int, name: str, text: str) -> None:
        """A text of the run."""

    def rewind(self, step: int) -> None:  # noqa: B027 (Weights & Biases cannot)
        """Forget what comes after `step`: the run has gone back there."""

    def close(self) -> None:  # noqa: B027
        """Flush and let go."""


class Log:
    """Passes everything on to its sinks."""

    def __init__(self, *sinks: Sink) -> None:
        self.sinks = sinks

    def numbers(self, step: int, values: Values) -> None:
        """What was measured at `step`."""
        for sink in self.sinks:
            sink.numbers(step, values)

    def text(self, step: int, name: str, text: str) -> None:
        """A text of the run: a sample, a notice, or an event."""
        for sink in self.sinks:
            sink.text(step, name, text)

    def rewind(self, step: int) -> None:
        """Forget what comes after `step`: the run has gone back there."""
        for sink in self.sinks:
            sink.rewind(step)

    def close(self) -> None:
        """Close every sink."""
        for sink in self.sinks:
            sink.close()


class Lines(Sink):
    """metrics.jsonl: one JSON object a line. Resuming drops the lines that the resumed run will write again."""

    def __init__(self, run: Path, step: int = 0) -> None:
        self._path = run / METRICS
        self._open(step)

    def _open(self, step: int) -> None:
        before = self._path.read_bytes() if self._path.exists() else b""
        kept = b"".join(line + b"\n" for line, found in _lines(before) if found["step"] <= step)
        if kept != before:
            write_atomically(self._path, kept)
        self._file = self._path.open("ab", buffering=0)  # written at once: a killed run keeps what it measured

    def numbers(self, step: int, values: Values) -> None:
        """One line."""
        self._write(json.dumps({"step": step, **values}))

    def text(self, step: int, name: str, text: str) -> None:
        """Samples and events are kept beside the numbers; notices are for people."""
        if name != "notice":
            self._write(json.dumps({"step": step, name: text}, ensure_ascii=False))

    def rewind(self, step: int) -> None:
        """Drop the lines that will be written again."""
        self._file.close()
        self._open(step)

    def _write(self, line: str) -> None:
        left = memoryview(f"{line}\n".encode(errors="replace"))
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:  # a full disk, most likely: say which file it was
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """What a run has measured so far, a dictionary a line; empty where nothing is written down."""
    path = run / METRICS
    return [found for _, found in _lines(path.read_bytes())] if path.is_file() else []


def _lines(content: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each line with what it says. One that a kill or a full disk cut short, even inside a character, is left out."""
    for line in content.split(b"\n"):  # not splitlines: texts may hold other separators
        found = _parsed(line)
        if isinstance(found, dict) and isinstance(found.get("step"), int | float):
            yield line, found


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


class Terminal(Sink):
    """A live bar where there is a terminal, plain lines elsewhere."""

    def __init__(self, steps: int, step: int = 0, live: bool | None = None) -> None:
        self._console = _console()
        self._steps = steps
        self._bar = _bar(self._console) if (self._console.is_terminal if live is None else live) else None
        if self._bar is not None:
            self._task = self._bar.add_task("training", total=steps, completed=step, note="")
            self._bar.start()

    def numbers(self, step: int, values: Values) -> None:
        """One line, or the bar's note."""
        note = describe(values)
        if "valid_nelbo" in values:
            self._print(f"step {step:>{len(str(self._steps))}}  {note}")
        elif self._bar is not None:
            self._bar.update(self._task, completed=step, note=note)
        else:
            self._print(f"step {step:>{len(str(self._steps))}}/{self._steps}  {note}")

    def text(self, step: int, name: str, text: str) -> None:
        """Printed above the bar."""
        shown = {"notice": text, "event": f"step {step}: {text}"}.get(name, f"step {step}  {name}: {text}")
        self._print(shown, markup=False)

    def _print(self, line: str, markup: bool = True) -> None:
        """A line, for as long as anybody reads them: a run outlives whoever looked on."""
        try:
            self._console.print(line, markup=markup)
        except OSError:
            self._console.quiet = True

    def rewind(self, step: int) -> None:
        """The bar goes back."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step)

    def close(self) -> None:
        """Leave the bar where it is."""
        if self._bar is not None:
            self._bar.stop()


def _console() -> Any:
    from rich.console import Console

    class Lasting(Console):
        """One whose reader may leave (`| head`): it falls silent, where rich would end the process."""

        def on_broken_pipe(self) -> None:
            with contextlib.suppress(SystemExit):
                super().on_broken_pipe()

    return Lasting(highlight=False, soft_wrap=True)


def _bar(console: Any) -> Any:
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    count = TextColumn("{task.completed}/{task.total}", table_column=Column(no_wrap=True, min_width=13))
    note = TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis"))
    return Progress(count, BarColumn(bar_width=10), note, console=console, refresh_per_second=4)


def _give_or_take(value: float, error: float, form: str) -> str:
    return f"{value:{form}} ± {error:{form}}" if not math.isnan(error) else f"{value:{form}} (one row, so no error)"


def describe(values: Values) -> str:
    """Numbers as people read them."""
    parts = []
    if "valid_nelbo" in values:
        parts.append(f"valid NELBO {_give_or_take(values['valid_nelbo'], values['valid_error'], '.4f')}")
        parts.append(f"PPL {_give_or_take(values['valid_ppl'], values['valid_ppl_error'], '.2f')}")
    if "loss" in values:
        parts.append(f"train loss {values['loss']:.4f} ± {values.get('error', math.nan):.4f}")
    if "learning_rate" in values:
        parts.append(f"lr {values['learning_rate']:.2e}")
    if "tokens_per_second" in values:
        parts.append(f"{values['tokens_per_second'] / 1e3:,.1f} k tokens/s")
    if "eta" in values:
        parts.append(f"ETA {_clock(values['eta'])}")
    if "memory" in values:
        parts.append(f"{values['memory'] / 2**30:.1f} GiB")
    return "  ".join(parts)


def _clock(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"


class TensorBoard(Sink):
    """Event files in RUN/tensorboard; a resumed run hides what it will write again."""

    def __init__(self, run: Path, step: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._folder = str(run / "tensorboard")
        self._writer: Any = SummaryWriter(self._folder, purge_step=step + 1)

    def numbers(self, step: int, values: Values) -> None:
        """One curve a number."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def text(self, step: int, name: str, text: str) -> None:
        """Samples and events."""
        if name != "notice":
            self._writer.add_text(name, text, step)

    def rewind(self, step: int) -> None:
        """Hide what will be written again."""
        self._writer.close()
        self._writer = type(self._writer)(self._folder, purge_step=step + 1)

    def close(self) -> None:
        """Flush."""
        self._writer.close()


class Wandb(Sink):
    """Weights & Biases, when a recipe names a project; the run's id is kept in the folder and resumed."""

    def __init__(self, run: Path, project: str, name: str, recipe: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ModuleNotFoundError as error:
            raise UserError(
                missing_extra("wandb needs the package of that name", "wandb", ", or set it to null"), "wandb"
            ) from error
        file = run / "wandb.id"
        known = (file.read_text(encoding="utf-8", errors="replace").strip() if file.is_file() else "") or None
        resume = None if known is None else "allow"
        try:
            self._run: Any = wandb.init(
                project=project, name=name, id=known, resume=resume, dir=str(run), config=dict(recipe)
            )
        except wandb.errors.Error as error:
            raise UserError(
                f"wandb cannot start ({reason(error)}): run `wandb login`, set WANDB_MODE=offline in the environment, or "
                "set it to null.",
                "wandb",
            ) from error
        if known is None:  # wandb has chosen one
            write_atomically(file, str(self._run.id).encode())

    def numbers(self, step: int, values: Values) -> None:
        """One row."""
        self._run.log(dict(values), step=step)

    def text(self, step: int, name: str, text: str) -> None:
        """Samples and events."""
        if name != "notice":
            self._run.log({name: text}, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()
