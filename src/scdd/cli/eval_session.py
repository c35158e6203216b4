"""What the verbs of `scdd eval` share: options, ranks, the store, progress bars, and how results are shown."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from scdd.cli.cluster import Ray
from scdd.cli.eval_systems import KEYS, System, parse_system, parse_systems
from scdd.cli.options import Graphs
from scdd.cluster.pool import RayPool, pool_at
from scdd.core.errors import UserError
from scdd.samplers.options import CONVENTIONS, Convention

if TYPE_CHECKING:
    from scdd.evals.measure.model import EvalModel
    from scdd.evals.measure.reference_lm import ReferenceLM
    from scdd.evals.measure.store import Measurement, Store
    from scdd.evals.measure.tasks import Plan
    from scdd.evals.report.tables import Table

N = TypeVar("N", int, float)
SYSTEM = "[NAME=]CHECKPOINT[,KEY=VALUE…]"
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar=SYSTEM,
        help=f"Checkpoint folder, run folder or Hub id, may be repeated; keys: {', '.join(KEYS)}. Default: the bundled model.",
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
Limit = Annotated[int | None, typer.Option(help="Use so many rows of the text only.")]
Length = Annotated[int | None, typer.Option(help="Tokens in a row; default: the model's context.")]
JUDGE = typer.Option(
    metavar="NAME|PATH", help="Causal LM that judges texts: hub name, folder, .gguf file, or our own AR checkpoint."
)
Judge = Annotated[str | None, JUDGE]
NeededJudge = Annotated[str, JUDGE]
JudgeBatchSize = Annotated[int, typer.Option(help="Texts that the judge reads at a time.")]
NUM = ("--num", "--samples")  # torchrun takes --num for the beginning of an option of its own
Num = Annotated[
    int | None,
    typer.Option(*NUM, help="Samples of each way; default: 1024 on a GPU, 64 on a CPU. Under torchrun: --samples."),
]
Budgets = Annotated[str, typer.Option("--steps", metavar="N,N…", help="Network evaluations of each sample.")]
Looks = Annotated[int, typer.Option(help="Times at which each row is looked at; even.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe's sampling, e.g. sampling.sampler.eta=0.02."),
]


CONVENTION_HELP = "ours; or authors: as the code behind the paper does it, its last pass counted as an evaluation."
ConventionFlag = Annotated[
    str, typer.Option("--convention", help="ours: the whole bound. authors: what the code behind the paper reports.")
]
SamplingConvention = Annotated[
    str | None, typer.Option("--convention", help=CONVENTION_HELP, show_default="the recipe's")
]
RecoveryConvention = Annotated[str, typer.Option("--convention", help=CONVENTION_HELP)]


def convention_of(name: str | None) -> Convention | None:
    """The convention of that name."""
    if name is not None and name not in CONVENTIONS:
        raise UserError(f"--convention {name} is not known: choose {' or '.join(CONVENTIONS)}.")
    return name


def _known_corpus(name: str | None) -> str | None:
    """Refuse a corpus that the paper has no numbers for."""
    if name is not None and name not in CORPORA:
        raise UserError(f"--corpus {name} is not one of the paper's: choose {' or '.join(CORPORA)}.")
    return name


CORPORA = ("LM1B", "OWT")
Corpus = Annotated[
    str | None,
    typer.Option(
        callback=_known_corpus,
        help="Print the paper's numbers on this corpus beside ours: LM1B or OWT. Unless given, likelihoods have them beside "
        "models of the paper's own recipes alone, and samples those on OWT.",
    ),
]


def shared_options(
    seed: Annotated[int, typer.Option(help="Everything random follows from it, on any number of ranks.")] = 0,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Texts at a time, by default what suits; changes speed and memory only.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results; default: eval/ in the run folder. What is there is not measured again."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; cuda where there is one.")] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="What the model computes in: float32, bfloat16, or, on a CPU, int8.",
            show_default="bfloat16 on a GPU, float32 on a CPU",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, one line a measurement.")] = False,
    graphs: Graphs = True,
    ray: Ray = None,
) -> None:
    """The options that every verb has; a verb is given the session that they open."""


@dataclass
class Session:
    """This rank's store and device, who watches, and what has been measured so far."""

    store: Store
    seed: int
    batch_size: int | None
    live: bool
    as_json: bool
    dtype: str | None = None
    measured: list[Measurement] = field(default_factory=list)
    plan: Plan | None = None
    """On Ray: what is asked for, until all of it is measured together."""
    pool: RayPool | None = None
    graphs: bool = True
    """Whether models that are opened here replay captured steps; those on Ray always do."""

    def default_num(self, num: int | None) -> int:
        """How many samples."""
        from scdd.evals.measure.generation import usual_num

        if num is not None:
            return num
        kind = self.store.world.device.type if self.pool is None else "cuda" if self.pool.has_gpus() else "cpu"
        return usual_num(kind)

    def opened(self, systems: list[str] | None, changes: list[str] | None = None) -> Iterator[tuple[System, EvalModel]]:
        """The systems that were named, one after the other, loaded onto this rank's device."""
        from scdd.evals.measure.model import open_model

        place = {"device": str(self.store.world.device), "dtype": self.dtype, "overrides": changes or ()}
        for one in parse_systems(systems):
            model = open_model(one.source, one.label, process=one.process, **place)  # type: ignore[arg-type]
            model.lm.graphs = self.graphs
            yield one, model

    def reference(self, name: str | None, batch_size: int) -> ReferenceLM | None:
        """The language model that `--judge` names, on this rank's device."""
        from scdd.evals.measure.reference_lm import open_reference_lm

        if name is None:
            return None
        opened = open_reference_lm(name, self.store.world.device, batch_size)
        if self.plan is not None:
            from scdd.evals.measure.tasks import JudgeSource

            self.plan.judges.append((opened, JudgeSource(name, batch_size)))
        return opened

    def ask(self, what: str, total: int | None, function: Callable[..., Measurement], *arguments: Any) -> None:
        """Measure it now, or on Ray with all the others."""
        if self.plan is None:
            self.measure(what, total, function, *arguments)
        else:
            self.plan.add(function, *arguments)

    def finish(self) -> None:
        """Measure what was asked for and waits for Ray."""
        from scdd.evals.measure.progress import bar

        if self.plan is None or self.pool is None:
            return
        if self.plan.tasks:
            waiting = sum(len(task.calls) for task in self.plan.tasks.values())
            with bar("measurements on Ray", waiting, self.live) as watch, closing(self.plan.run(self.pool)) as done:
                for count in done:
                    watch(count)
        self.measured = self.plan.results()

    def measure(
        self, what: str, total: int | None, function: Callable[..., Measurement], *arguments: Any
    ) -> Measurement:
        """`function` of `arguments`, under a bar that says `what`; collected, to be shown in the end."""
        from scdd.evals.measure.progress import bar
        from scdd.evals.measure.store import MeasureContext

        assert self.plan is None, "on Ray a verb asks, and finish() measures"
        each = None if total is None else -(-total // self.store.world.size)
        with bar(what, each, self.live) as watch:
            one = function(MeasureContext(self.store, self.batch_size, watch), *arguments)
        self.measured.append(one)
        return one

    def of_kind(self, kind: str) -> list[Measurement]:
        """What has been measured of a kind."""
        self.finish()
        return [one for one in self.measured if one.kind == kind]

    def show(self, corpus: str | None = None, *more: Table) -> None:
        """The report's tables of what was measured on rank 0's standard output, or the measurements as JSON lines."""
        from scdd.evals.report.sections import sections

        self.finish()
        if not self.store.world.is_main:
            return
        if self.as_json:
            for kind in dict.fromkeys(one.kind for one in self.measured):
                for one in self.of_kind(kind):
                    print(json.dumps(one.json(), ensure_ascii=False))
            return
        tables = [table for section in sections(self.measured, corpus) for table in section.tables]
        if sys.stdout.isatty():
            _print_rich([*tables, *more])
        else:
            print("\n".join(table.markdown() for table in (*tables, *more)))


def with_session(on_ray: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that takes a session: the session's place is taken by the options that open it."""

    def command_of(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        shared = dict(inspect.signature(shared_options, eval_str=True).parameters)
        if not on_ray:
            del shared["ray"]

        @functools.wraps(function)
        def command(**given: Any) -> None:
            from scdd.data.files import make_folder
            from scdd.evals.measure.store import Store
            from scdd.evals.measure.tasks import Plan
            from scdd.training.parallel import world

            names = ("seed", "batch_size", "out", "device", "dtype", "quiet", "as_json", "graphs")
            seed, size, out, device, dtype, quiet, as_json, graphs = (given.pop(name) for name in names)
            ray = [given.pop(name) for name in shared if name not in names]
            address = ray[0] if ray else None
            with world("auto", device if address is None else "cpu") as here:  # join the ranks
                if address is not None and here.size > 1:
                    raise UserError("--ray and torchrun both share out the work: use one of them.")
                if address is not None and not graphs:
                    raise UserError("--no-graphs is not heard on Ray: leave one of the two out.")
                live = here.is_main and sys.stderr.isatty() and not quiet and not as_json
                store = Store(out or default_out(given.get("model") or []), here)
                if here.is_main:
                    make_folder(store.folder)  # or it is heard now, before anything long is measured
                try:
                    session = Session(store, seed, size, live, as_json, dtype, graphs=graphs)
                    if address is not None:
                        session.plan, session.pool = Plan(store, size, device), pool_at(address, gpus=device != "cpu")
                    function(session, **given)
                finally:
                    with suppress(OSError):  # nothing was measured, and nothing is left behind
                        store.folder.rmdir()

        options = [option.replace(kind=option.KEYWORD_ONLY) for option in (*own, *shared.values())]
        command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        command.__annotations__ = {option.name: option.annotation for option in options}
        return command

    return command_of


def default_out(models: Sequence[str]) -> Path:
    """eval/ in the run folder of the only model, or eval/ here."""
    source = parse_system(models[0]).source if len(models) == 1 else "bundled"
    return Path(source) / "eval" if source != "bundled" and Path(source).is_dir() else Path("eval")


def parse_numbers(text: str | None, name: str, kind: type[N]) -> list[N]:
    """The numbers of a comma-separated list; none where nothing is asked for."""
    if text is None:
        return []
    example, least = ("32,64,128", 1) if kind is int else ("0.8,0.9,1.0", 0)
    try:
        numbers = [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < least:
        raise UserError(f"{name} {text} is no list of positive numbers: write {example}.")
    return numbers


def _print_rich(tables: Sequence[Table]) -> None:
    """Tables for a terminal: bold and dim in place of Markdown's marks."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console()
    for table in tables:
        drawn = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
        for i, name in enumerate(table.head):
            drawn.add_column(name, justify="left" if i == 0 else "right")
        for row in table.rows:
            texts = [Text(entry.text, style="bold" if entry.bold else "") for entry in row]
            for text, entry in zip(texts, row, strict=True):
                text.append(f" [{entry.paper}]" if entry.paper else "", style="dim")
            drawn.add_row(*texts)
        console.print(drawn)
        for note in table.notes:
            console.print(note, style="dim", markup=False, highlight=False)
        console.print()
