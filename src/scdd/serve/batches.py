"""Texts under way: batches whose rows each take a step of their own walk at a time.

A text joins a batch at its next step and leaves it at its end, or when nobody wants it any more. Which batch it goes to follows
from its own settings and length (`sharing`), and what it becomes there does not depend on its company (`samplers.loop.RowBatch`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from scdd.core.denoiser import Denoiser
from scdd.lm.results import Sample
from scdd.lm.run import Due, Ending, numbers, sample_of, settle, token_rows
from scdd.processes.base import Process
from scdd.samplers.loop import BatchRow, RowBatch
from scdd.samplers.plan import SamplingPlan, by_row
from scdd.samplers.sight import Seen as Rows
from scdd.serve.jobs import Abandoned, Job, cost
from scdd.serve.metrics import Meters
from scdd.serve.sharing import Shape, Sharing
from scdd.serve.shown import Shown, kept_steps, shown

EMPTY = 8  # batches without texts that are kept, since making one ready may take a while on a GPU


class Ask(NamedTuple):
    """A window of a job's text that is to be drawn."""

    job: Job
    number: int
    due: Due


@dataclass(eq=False)
class Entry:
    """The same in a batch."""

    ask: Ask
    row: BatchRow
    cost: float  # of a step
    kept: list[tuple[Any, ...]] | None = None  # recorded steps, where they are wanted


@dataclass(eq=False)
class Live:
    """A batch, and what its rows are, in their order."""

    batch: RowBatch
    process: object
    shape: Shape
    owner: Job | None  # the one job that it is for; None: any
    entries: list[Entry] = field(default_factory=list)


class Batches:
    """The texts of one worker."""

    def __init__(
        self,
        denoiser: Denoiser,
        sharing: Sharing,
        meters: Meters,
        most: int,
        drawn: Callable[[Job, tuple[Sample, ...]], None],
        failed: Callable[[Job, Exception], None],
    ) -> None:
        """`most`: texts under way at a time. `drawn` and `failed` are told what becomes of jobs."""
        self._denoiser, self._sharing, self.meters, self._most = denoiser, sharing, meters, most
        self._drawn, self._fail = drawn, failed
        self.jobs: list[Job] = []  # whose texts are under way or wait for a place, oldest first
        self._lives: list[Live] = []
        self._rows = 0  # texts under way
        self.spent = 0.0  # cost of the steps that were taken

    @property
    def room(self) -> int:
        """Texts that could begin now, beside those that wait for a place already."""
        return self._most - self._rows - sum(len(job.waiting) for job in self.jobs)

    def take(self, job: Job) -> None:
        """A job's texts take their first step with the next one, as far as there are places for them."""
        assert job.run is not None
        firsts = ((i, text.after(-1, job.run.engine.room)) for i, text in enumerate(job.run.texts))
        job.waiting.extend((i, due) for i, due in firsts if due is not None)
        self.jobs.append(job)
        if not job.waiting:
            self._complete(job)

    def step(self) -> None:
        """Let go what nobody wants, admit what waits, and take one step in every batch."""
        for job in [job for job in self.jobs if not job.wanted]:
            self._end(job, Abandoned())
        self._admit()
        for live in [live for live in self._lives if live.entries]:
            self._step(live)

    # -- coming -------------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Free places go to the job that has the fewest, the oldest among equals."""
        groups: list[tuple[Live, SamplingPlan, list[Ask]]] = []
        waiting = [job for job in self.jobs if job.waiting]
        while waiting and self._rows < self._most:
            job = min(waiting, key=lambda each: each.present)
            ask = Ask(job, *job.waiting.popleft())
            job.present += 1
            self._rows += 1
            if not job.waiting:
                waiting.remove(job)
            plan, shape = self._fitted(ask)
            # what does not go row by row walks with its likes only, also among those that join now
            barred = () if by_row(plan) else [to for to, like, _ in groups if like != plan]
            live = self._live(job, plan, shape, barred)
            same = next((group for to, like, group in groups if to is live and like == plan), None)
            if same is None:
                groups.append((live, plan, [ask]))
            else:
                same.append(ask)
        for live, plan, asks in groups:
            self._add(live, plan, asks)

    def _fitted(self, ask: Ask) -> tuple[SamplingPlan, Shape]:
        """The plan without what is the job's own affair, and how the row is evaluated."""
        run, window = ask.job.run, ask.due.window
        assert run is not None
        engine, process = run.engine, run.engine.model.process
        shape = self._sharing.shape(window.stop - window.start + len(engine.framed(())))
        # recording costs nothing where every token is looked at anyway: then who watches shares with who does not
        free = engine.device.type != "cpu" or (isinstance(process, Process) and process.has_uniform_noise)
        record = run.plan.record or free
        return replace(run.plan, seed=0, stop=False, batch_size=1, record=record, rows_per_forward=shape.rows), shape

    def _live(self, job: Job, plan: SamplingPlan, shape: Shape, barred: Sequence[Live] = ()) -> Live:
        """The batch that a row goes to."""
        assert job.run is not None
        model, owner = job.run.engine.model, job if job.alone else None
        for live in self._lives:
            same = live.process is model.process and live.shape == shape and live.owner is owner
            if same and live not in barred and live.batch.takes(plan):
                return live
        for old in [live for live in self._lives if not live.entries][:-EMPTY]:
            self._lives.remove(old)
        grouping = self._sharing.groups if self._sharing.grouping else None
        batch = RowBatch(replace(model, denoiser=self._denoiser), plan, shape.width, grouping, shape.fewer)
        self._lives.append(Live(batch, model.process, shape, owner))
        return self._lives[-1]

    def _add(self, live: Live, plan: SamplingPlan, asks: Sequence[Ask]) -> None:
        """Rows of equal plans, at once."""
        asks = [ask for ask in asks if not ask.job.future.done()]
        if not asks:
            return
        run, dues = asks[0].job.run, [ask.due for ask in asks]
        assert run is not None
        joining = any(entry.row.taken for entry in live.entries)
        try:
            rows = live.batch.add(token_rows(run.engine, dues), numbers(run.engine, dues), plan)
        except Exception as error:
            self._failed(live, error, asks)
            return
        for ask, row in zip(asks, rows, strict=True):
            if joining and ask.job.left == ask.job.cost:
                self.meters.joined.inc()
            each = cost(ask.due.window.stop - ask.due.window.start)
            live.entries.append(Entry(ask, row, each, [] if _recorded(ask.job) else None))
        if any(row.ended for row in rows):  # no step at all
            seen = live.batch.seen
            self._look(live, seen, shown(seen), {id(row) for row in rows})

    # -- walking ------------------------------------------------------------------------------------------------------

    def _step(self, live: Live) -> None:
        self.meters.batch_rows.observe(len(live.entries))
        self.meters.batch_jobs.observe(len({id(entry.ask.job) for entry in live.entries}))
        try:
            seen = live.batch.step()
            # read here, since a GPU tells late what failed
            found = shown(seen) if any(_needed(entry) for entry in live.entries) else None
        except Exception as error:
            self._failed(live, error)
            return
        calls, rows = self._sharing.evaluations(live.shape, len(live.entries))
        self.meters.evaluations.inc(calls)
        self.meters.evaluated_rows.inc(rows)
        for entry in live.entries:
            entry.ask.job.left -= entry.cost
            self.spent += entry.cost
        self._look(live, seen, found)

    def _look(self, live: Live, seen: Rows, found: Shown | None, among: set[int] | None = None) -> None:
        """Tell watchers, and let ended rows go. `found`: the rows as read off the device, which nobody may need."""
        needed: list[tuple[int, Entry]] = []
        for place, entry in enumerate(live.entries):
            if among is not None and id(entry.row) not in among:
                continue
            if entry.kept is not None:
                entry.kept.append((*entry.row.moment, seen.tokens[place], seen.moved[place], seen.log_p[place]))
            if _needed(entry):
                needed.append((place, entry))
        if found is None:
            return
        gone = [entry.row for _, entry in needed if entry.row.ended]
        if gone:
            live.batch.remove(gone)
            live.entries = [entry for entry in live.entries if not entry.row.ended]
            self._rows -= len(gone)
        for place, entry in needed:
            _tell(entry, found, place)
            if entry.row.ended:
                self._settle(entry.ask, found.ending(place, entry.row.length, kept_steps(entry.kept)))

    def _settle(self, ask: Ask, ending: Ending) -> None:
        """A row has ended: its text goes on with the next window, or is done."""
        job, number, due = ask
        assert job.run is not None
        job.present -= 1
        settle(job.run.plan, due, ending, job.run.engine.tokenizer.eos_id)
        later = due.text.after(due.level, job.run.engine.room)
        if later is not None:
            job.waiting.appendleft((number, later))
        elif not job.present and not job.waiting:
            self._complete(job)

    def _complete(self, job: Job) -> None:
        run = job.run
        assert run is not None
        self.jobs.remove(job)
        job.left = 0.0
        samples = tuple(sample_of(run.engine, run.plan, text) for text in run.texts)
        for sample in samples:
            self.meters.tokens.inc(sample.unmasked)
            self.meters.corrections.inc(sample.corrections)
            self.meters.remasked.inc(sample.remasked)
        self._drawn(job, samples)

    # -- going wrong --------------------------------------------------------------------------------------------------

    def _failed(self, live: Live, error: Exception, joining: Sequence[Ask] = ()) -> None:
        """A step went wrong, or rows could not join. One job's mistake must not become another's, and a smaller batch may
        fit into memory: each job's windows begin once more, in a batch of its own."""
        whole = len(live.batch.rows) == len(live.entries)
        if joining and whole:  # the batch itself is as it was
            asks, entries = list(joining), []
        else:
            asks, entries = [*(entry.ask for entry in live.entries), *joining], live.entries
            self._lives.remove(live)
            live.entries = []
        jobs = {id(ask.job): ask.job for ask in asks}
        if len(jobs) == 1:
            self._end(asks[0].job, error)
            return
        for entry in entries:
            entry.ask.job.left += entry.cost * entry.row.taken
        for job, number, due in reversed(asks):
            job.alone = True
            job.present -= 1
            job.waiting.appendleft((number, due))
        self._rows -= len(asks)

    def _end(self, job: Job, error: Exception) -> None:
        """A job is over before its texts are."""
        for live in self._lives:
            theirs = [entry.row for entry in live.entries if entry.ask.job is job]
            if theirs:
                live.batch.remove(theirs)
                live.entries = [entry for entry in live.entries if entry.ask.job is not job]
        self._rows -= job.present
        job.present = 0
        job.waiting.clear()
        self.jobs.remove(job)
        self._fail(job, error)


def _recorded(job: Job) -> bool:
    return job.run is not None and job.run.plan.record


def _needed(entry: Entry) -> bool:
    """Whether somebody wants to know its row now."""
    return entry.row.ended or (entry.kept is not None and entry.ask.job.watch is not None)


def _tell(entry: Entry, found: Shown, place: int) -> None:
    """Hand the watcher its row, unless it has seen this step already."""
    job, number, due = entry.ask
    now = due.level, entry.row.taken
    if job.watch is None or not job.wanted or job.told.get(number, (-1, 0)) >= now:
        return
    job.told[number] = now
    job.watch(found.seen(place, number, due.window, entry.row.moment))
