"""Texts under way: batches whose rows each take a step of their own walk at a time.

A text joins a batch at its next step and leaves it at its end, or when nobody wants it any more. Which batch it goes to follows
from its own settings and length (`sharing`), and what it becomes there does not depend on its company (`samplers.row_batch.RowBatch`).

On a GPU the next step is launched before the last one is looked at: where a walk ends is known beforehand, so slots are given to others
at once, and texts are settled and answered while the GPU computes. Samplers that may end rows early are looked at after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from scdd.core.denoiser import Denoiser
from scdd.core.options import altered
from scdd.lm.results import Sample
from scdd.lm.run import Ending, Text, numbers, sample_of, settle, token_rows
from scdd.processes.base import Process
from scdd.samplers.plan import SamplingPlan, batch_rules, by_row
from scdd.samplers.readback import HostRows, Readback, launch
from scdd.samplers.row_batch import RowBatch
from scdd.serve.entries import Ask, Entry, LaunchedStep, RowReading, RunningBatch
from scdd.serve.jobs import Abandoned, Job, cost
from scdd.serve.metrics import Meters
from scdd.serve.sharing import Shape, Sharing
from scdd.serve.step_events import When, ending, event_of, kept, kept_steps

EMPTY = 8  # batches without texts that are kept, since making one ready may take a while on a GPU
PATIENCE = (
    8  # steps of a GPU for which fewer rows would have done: to move them costs more than to evaluate some for nobody
)


class Batches:
    """The texts of one worker."""

    def __init__(
        self,
        denoiser: Denoiser,
        sharing: Sharing,
        meters: Meters,
        most: int,
        drawn: Callable[[Job, tuple[Sample, ...] | tuple[Text, ...]], None],
        failed: Callable[[Job, Exception], None],
    ) -> None:
        """`most`: texts under way at a time. `drawn` and `failed` are told what becomes of jobs."""
        self._denoiser, self._sharing, self.meters, self._most = denoiser, sharing, meters, most
        self._drawn, self._fail = drawn, failed
        self.jobs: list[Job] = []  # whose texts are under way or wait for a slot, oldest first
        self._running: list[RunningBatch] = []
        self._launched: list[LaunchedStep] = []  # of the last turn
        self.ahead = denoiser.head.weight.device.type == "cuda"
        """Whether a step is launched before the last one is looked at."""
        self.spent = 0.0  # cost of the steps that were taken

    @property
    def room(self) -> int:
        """Texts that could begin now, beside those that wait for a slot already."""
        return self._most - self._rows - sum(len(job.waiting) for job in self.jobs)

    @property
    def _rows(self) -> int:
        """Texts under way that take up a slot."""
        return sum(len(running.entries) for running in self._running)

    def take(self, job: Job) -> None:
        """A job's texts take their first step with the next one, as far as there are slots for them."""
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
        before, self._launched = self._launched, []
        for running in list(self._running):
            # a job that another step ended may have been all it had
            launched = self._step(running) if running.entries else None
            if launched is not None and self.ahead and not running.batch.may_end:
                self._launched.append(launched)
            elif launched is not None:
                self._read(launched)
        for launched in before:
            self._read(launched)

    # -- coming -------------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Free slots go to the job that has the fewest, the oldest among equals."""
        groups: list[tuple[RunningBatch, SamplingPlan, list[Ask]]] = []
        waiting, rows = [job for job in self.jobs if job.waiting], self._rows
        while waiting and rows < self._most:
            job = min(waiting, key=lambda each: each.present)
            ask = Ask(job, *job.waiting.popleft())
            job.present += 1
            rows += 1
            if not job.waiting:
                waiting.remove(job)
            plan, shape = self._fitted(ask)
            # what does not go row by row walks with its likes only, also among those that join now
            barred = () if by_row(plan) else [to for to, like, _ in groups if like != plan]
            running = self._batch_for(job, plan, shape, barred)
            same = next((group for to, like, group in groups if to is running and like == plan), None)
            if same is None:
                groups.append((running, plan, [ask]))
            else:
                same.append(ask)
        for running, plan, asks in groups:
            if running in self._running:
                self._add(running, plan, asks)
            else:  # others could not join it, and it is no more
                self._again(asks)
        for old in [running for running in self._running if not running.entries][:-EMPTY]:
            self._running.remove(old)

    def _fitted(self, ask: Ask) -> tuple[SamplingPlan, Shape]:
        """The plan without what is the job's own affair, and how the row is evaluated."""
        run, window = ask.job.run, ask.due.window
        assert run is not None
        engine, process = run.engine, run.engine.model.process
        shape = self._sharing.shape(window.stop - window.start + len(engine.framed(())))
        # recording costs nothing where every token is looked at anyway: then who watches shares with who does not
        free = engine.device.type != "cpu" or (isinstance(process, Process) and process.has_uniform_noise)
        record = run.plan.record or free
        return altered(run.plan, seed=0, stop=False, batch_size=1, record=record, rows_per_forward=shape.rows), shape

    def _batch_for(
        self, job: Job, plan: SamplingPlan, shape: Shape, barred: Sequence[RunningBatch] = ()
    ) -> RunningBatch:
        """The batch that a row goes to."""
        assert job.run is not None
        model, owner, rules = job.run.engine.model, job if job.alone else None, batch_rules(plan)
        for running in self._running:
            same = running.process is model.process and running.shape == shape and running.owner is owner
            if same and running not in barred and running.batch.takes(plan, rules):
                return running
        patience = PATIENCE if self.ahead else 0
        batch = RowBatch(replace(model, denoiser=self._denoiser), plan, shape.width, shape.fewer, patience)
        self._running.append(RunningBatch(batch, model.process, shape, owner))
        return self._running[-1]

    def _add(self, running: RunningBatch, plan: SamplingPlan, asks: Sequence[Ask]) -> None:
        """Rows of equal plans, at once."""
        asks = [ask for ask in asks if not ask.job.future.done()]
        if not asks:
            return
        run, dues = asks[0].job.run, [ask.due for ask in asks]
        assert run is not None
        joining = any(entry.row.taken for entry in running.entries)
        try:
            rows = running.batch.add(token_rows(run.engine, dues), numbers(dues), plan)
        except Exception as error:
            self._failed(running, error, asks)
            return
        for ask, row in zip(asks, rows, strict=True):
            if joining and ask.job.left == ask.job.cost:
                self.meters.joined.inc()
            each = cost(ask.due.window.stop - ask.due.window.start)
            running.entries.append(Entry(ask, row, each, [] if _recorded(ask.job) else None))
        if any(row.ended for row in rows):  # no step at all
            readback = Readback(range(len(running.entries)), running.batch.standing)
            readback.begin()
            self._read(self._left(running, readback, {id(row) for row in rows}))

    # -- walking ------------------------------------------------------------------------------------------------------

    def _step(self, running: RunningBatch) -> LaunchedStep | None:
        """Launch a step; None where it went wrong."""
        self.meters.batch_rows.observe(len(running.entries))
        self.meters.batch_jobs.observe(len({id(entry.ask.job) for entry in running.entries}))
        entries = running.entries
        try:
            with running.batch.undisturbed():  # until what it shows is copied: workers' batches may share tensors
                readback, held = launch(running.batch), running.batch.room.held
                launched = self._left(running, readback)
        except Exception as error:
            self._failed(running, error)
            return None
        calls, rows = self._sharing.evaluations(running.shape, held)
        self.meters.evaluations.inc(calls)
        self.meters.evaluated_rows.inc(rows)
        for entry in entries:
            entry.ask.job.left -= entry.cost
            self.spent += entry.cost
        return launched

    def _left(self, running: RunningBatch, readback: Readback, among: set[int] | None = None) -> LaunchedStep:
        """Who is to be looked at after a step; rows that have ended leave, and others may have their slots."""
        readings: list[RowReading] = []
        for slot, entry in zip(readback.slots, running.entries, strict=True):
            row = entry.row
            if (row.ended or entry.kept is not None) and (among is None or id(row) in among):
                readings.append(RowReading(entry, slot, row.moment, row.taken, row.ended))
        readback.begin(bool(readings))
        launched = LaunchedStep(running, readback, readings)
        if gone := [entry.row for entry in launched.ended]:
            running.batch.remove(gone)
            running.entries = [entry for entry in running.entries if not entry.row.ended]
        return launched

    def _read(self, launched: LaunchedStep) -> None:
        """Wait for a step, tell watchers of it, and settle the texts whose rows have ended."""
        try:
            launched.readback.wait()  # also where nobody wants to know: the host is one step ahead, and no more
            found = launched.readback.host_rows() if launched.readings else None
        except Exception as error:  # a GPU tells late what failed
            self._failed(launched.running, error, late=launched)
            return
        for entry, slot, moment, taken, ended in launched.readings:
            if found is None or entry.ask.job.future.done():
                continue
            if entry.kept is not None:
                entry.kept.append(kept(found, slot, moment))
            _tell(entry, found, slot, moment, taken)
            if ended:
                self._settle(entry.ask, ending(found, slot, entry.row.length, kept_steps(entry.kept)))

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
        try:
            samples = () if job.bare else tuple(sample_of(run.engine, run.plan, text) for text in run.texts)
        except Exception as error:
            self._end(job, error)
            return
        self.jobs.remove(job)
        job.left = 0.0
        meters = (self.meters.tokens, self.meters.corrections, self.meters.remasked)
        for meter, moved in zip(meters, zip(*(text.counts for text in run.texts), strict=True), strict=True):
            meter.inc(sum(moved))
        self._drawn(job, tuple(run.texts) if job.bare else samples)

    # -- going wrong --------------------------------------------------------------------------------------------------

    def _failed(
        self, running: RunningBatch, error: Exception, joining: Sequence[Ask] = (), late: LaunchedStep | None = None
    ) -> None:
        """A step went wrong, maybe one that was looked at `late`, or rows could not join. One job's mistake must not become another's, and
        a smaller batch may fit into memory: each job's windows begin once more, in a batch of its own."""
        whole = len(running.batch.rows) == len(running.entries)
        if joining and whole:  # the batch itself is as it was
            asks, entries = list(joining), []
        else:
            entries = running.entries
            if late is not None:  # what was launched after it is as wrong
                steps = [late, *(each for each in self._launched if each.running is running)]
                ended = [entry for launched in steps for entry in launched.ended if not entry.ask.job.future.done()]
                entries = [*ended, *entries]
                self._launched = [each for each in self._launched if each.running is not running]
            asks = [*(entry.ask for entry in entries), *joining]
            self._running = [each for each in self._running if each is not running]
            running.entries = []
        jobs = {id(ask.job): ask.job for ask in asks}
        if len(jobs) == 1:
            self._end(asks[0].job, error)
            return
        for entry in entries:
            entry.ask.job.left += entry.cost * entry.row.taken
        for ask in asks:
            ask.job.alone = True
        self._again(asks)

    def _again(self, asks: Sequence[Ask]) -> None:
        """They wait for a slot, before others of their jobs."""
        for job, number, due in reversed(asks):
            job.present -= 1
            job.waiting.appendleft((number, due))

    def _end(self, job: Job, error: Exception) -> None:
        """A job is over before its texts are."""
        for running in self._running:
            theirs = [entry.row for entry in running.entries if entry.ask.job is job]
            if theirs:
                running.batch.remove(theirs)
                running.entries = [entry for entry in running.entries if entry.ask.job is not job]
        job.present = 0
        job.waiting.clear()
        self.jobs.remove(job)
        self._fail(job, error)


def _recorded(job: Job) -> bool:
    return job.run is not None and job.run.plan.record


def _tell(entry: Entry, found: HostRows, slot: int, moment: When, taken: int) -> None:
    """Hand the watcher its row, unless it has seen this step already."""
    job, number, due = entry.ask
    now = due.level, taken
    if job.watch is None or not job.wanted or job.told.get(number, (-1, 0)) >= now:
        return
    job.told[number] = now
    job.watch(event_of(found, slot, number, due.window, moment))
