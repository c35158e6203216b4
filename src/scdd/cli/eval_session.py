"""What the verbs of `scdd eval` share: ranks, the store, progress bars, texts, and how results are shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scdd.core.errors import UserError

if TYPE_CHECKING:
    from scdd.data.shards import TokenStream
    from scdd.evals.cells import Measurement, Store
    from scdd.evals.gen_ppl import Judge
    from scdd.evals.subject import EvalModel
    from scdd.evals.systems import System
    from scdd.evals.tables import Table
    from scdd.evals.texts import Rows
    from scdd.training.parallel import World

SYSTEM = "[NAME=]CHECKPOINT[,KEY=VALUE…]"
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar=SYSTEM,
        help="Checkpoint folder, run folder or Hub id, may be repeated; keys: sampler, process, top_p, temperature, "
        "top_k, grid, final, length. Default: the bundled model.",
    ),
]
Texts = Annotated[
    list[str] | None,
    typer.Option(
        "--text",
        metavar="[NAME=]PATH",
        help="Text file, JSON lines, folder, hf:NAME, or prepared shards, and what to call it in tables; default: the "
        "recipe's validation data.",
    ),
]
Field = Annotated[str, typer.Option(help="Field of JSON lines or dataset rows that holds the text.")]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the results; default: eval/ in the run folder. What is there is not measured again."
    ),
]
Judged = Annotated[
    str | None,
    typer.Option(
        "--judge",
        metavar="NAME|PATH",
        help="Causal LM that judges texts: hub name, folder, .gguf file, or our own AR checkpoint.",
    ),
]
NUM = ("--num", "--samples")  # torchrun takes --num for the beginning of an option of its own
Num = Annotated[
    int | None,
    typer.Option(
        *NUM, help="Samples of each way; default: 1024 on a GPU, 64 on a CPU. Under torchrun: --samples."
    ),
]
Budgets = Annotated[str, typer.Option("--steps", metavar="N,N…", help="Network evaluations of each sample.")]
BatchSize = Annotated[int, typer.Option(help="Texts at a time; changes speed and memory only.")]
Seed = Annotated[int, typer.Option(help="Everything random follows from it, on any number of ranks.")]
Device = Annotated[str | None, typer.Option(help="cuda or cpu; cuda where there is one.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, one line a measurement.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change the recipe's sampling, e.g. sampling.sampler.eta=0.02."
    ),
]
Limit = Annotated[int | None, typer.Option(help="Use so many rows of the text only.")]
Length = Annotated[int | None, typer.Option(help="Tokens in a row; default: the model's context.")]
Corpus = Annotated[str, typer.Option(help="Which of the paper's corpora to print beside ours: LM1B or OWT.")]


@dataclass
class Session:
    """This rank, its store, and whether somebody watches."""

    world: World
    store: Store
    live: bool

    @contextmanager
    def bar(self, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """A progress bar on stderr; what it gives is to be told how many are done."""
        if not self.live:
            yield lambda done: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(what, total=None if total is None else -(-total // self.world.size))
            yield lambda done: progress.advance(task, done)

    def judge(self, name: str | None, batch_size: int) -> Judge | None:
        """The judge on this rank's device."""
        if name is None:
            return None
        from scdd.evals.gen_ppl import open_judge

        return open_judge(name, self.world.device, batch_size)


@contextmanager
def session(
    out: Path | None, models: Sequence[str], device: str | None, quiet: bool, as_json: bool
) -> Iterator[Session]:
    """Join the ranks and open the store."""
    from scdd.evals.cells import Store
    from scdd.training.parallel import world

    folder = out if out is not None else default_out(models)
    with world("auto", device) as here:
        live = here.is_main and sys.stderr.isatty() and not quiet and not as_json
        yield Session(here, Store(folder, here), live)


def default_out(models: Sequence[str]) -> Path:
    """eval/ in the run folder of the only model, or eval/ here."""
    from scdd.evals.systems import parse_system

    if len(models) == 1:
        source = parse_system(models[0]).source
        if source is not None and Path(source).is_dir():
            return Path(source) / "eval"
    return Path("eval")


def budgets(text: str, name: str = "--steps") -> list[int]:
    """Numbers of a comma-separated list."""
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise UserError(f"{name} {text} is no list of positive numbers: write 32,64,128.")
    return found


def numbers(text: str | None, name: str) -> list[float | None]:
    """As `budgets`, for temperatures and masses; [None] where nothing was asked for."""
    if text is None:
        return [None]
    try:
        return [float(part) for part in text.split(",") if part.strip()] or [None]
    except ValueError as error:
        raise UserError(f"{name} {text} is no list of numbers: write 0.8,0.9,1.0.") from error


def default_num(num: int | None, here: World) -> int:
    """How many samples."""
    return num if num is not None else 1024 if here.device.type == "cuda" else 64


def stream_of(subject: EvalModel, paths: Sequence[str] | None, field: str) -> tuple[TokenStream, str]:
    """The texts that were named, or else the validation data of the model's recipe, and what they are called."""
    from scdd.evals.texts import open_stream, split_name

    if paths:
        names, places = zip(*map(split_name, paths), strict=True)
        return open_stream(places, subject.lm.tokenizer, field), " + ".join(names)
    from scdd.assemble import training as build
    from scdd.recipe import load as recipe

    if subject.recipe is None:
        raise UserError(f"{subject.label} says nothing of its data: name a text with --text.")
    spec = recipe.loads(subject.recipe)
    try:
        held = build.corpus(spec, subject.lm.tokenizer.to_str()).valid
    except UserError as error:
        raise UserError(
            f"The validation data of {subject.label} cannot be had, so name a text with --text ({error})"
        ) from error
    if held is None:
        raise UserError(f"The data of {subject.label} has no validation split: name a text with --text.")
    return held, f"{Path(spec.data.path).name} (validation)"


def rows_of(
    subject: EvalModel,
    paths: Sequence[str] | None,
    field: str,
    limit: int | None,
    length: int | None,
    whole: bool = False,
) -> Rows:
    """Framed rows of the texts, as long as the model's context or `length`."""
    from scdd.evals.texts import rows

    source, name = stream_of(subject, paths, field)
    found = rows(source, subject.lm.tokenizer, length or subject.lm.context, limit, whole)
    return replace(found, name=name)


def show(here: World, cells: Sequence[Measurement], tables: Sequence[Table], as_json: bool) -> None:
    """Tables on rank 0's standard output, or the cells as JSON lines."""
    if not here.is_main:
        return
    if as_json:
        for cell in cells:
            print(json.dumps(cell.json(), ensure_ascii=False))
        return
    if not sys.stdout.isatty():
        for table in tables:
            print(table.markdown())
        return
    from rich.console import Console

    console = Console()
    for table in tables:
        console.print(_rich(table))
        for note in table.notes:
            console.print(note, style="dim", markup=False, highlight=False)
        console.print()


def _rich(table: Table) -> Any:
    from rich import box
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
    for i, name in enumerate(table.head):
        drawn.add_column(name, justify="left" if i == 0 else "right")
    for row in table.rows:
        texts = []
        for entry in row:
            text = Text(entry.text, style="bold" if entry.bold else "")
            if entry.paper:
                text.append(f" [{entry.paper}]", style="dim")
            texts.append(text)
        drawn.add_row(*texts)
    return drawn


def systems_of(models: list[str] | None) -> list[System]:
    """The systems that were named, each under a name of its own."""
    from scdd.evals.systems import parse_system

    found = [parse_system(text) for text in models or ["bundled"]]
    labels = [system.label for system in found]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise UserError(f"Two systems are called {twice}: name them apart, as in a={twice} b={twice}.")
    return found


def no_way(system: System, why: str) -> None:
    """Refuse choices of a sampler where they would have no effect."""
    if system.way:
        raise UserError(f"{', '.join(system.way)} of {system.label} would have no effect, {why}.")


def opened(system: System, here: Session, changes: list[str] | None = None) -> EvalModel:
    """The system, loaded onto this rank's device."""
    return system.open(str(here.world.device), changes or ())


def required(judge: str | None) -> str:
    """The judge's name; refused if there is none."""
    if not judge:
        raise UserError(
            "Generative perplexity needs a judge: name one with --judge (the paper's is gpt2-large)."
        )
    return judge


def check_corpus(corpus: str) -> None:
    """Refuse a corpus that the paper has no numbers for."""
    from scdd.evals.paper import CORPORA

    if corpus not in CORPORA:
        raise UserError(f"--corpus {corpus} is not one of the paper's: choose {' or '.join(CORPORA)}.")
