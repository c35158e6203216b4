"""Texts under way: batches whose rows each take a step of their own walk at a time.

A text joins a batch at its next step and leaves it at its end, or when nobody wants it any more. Which batch it goes to follows
from its own settings and length (`sharing`), and what it becomes there does not depend on its company (`samplers.row_batch.RowBatch`).

On a GPU the next step is launched before the last one is looked at: where a walk ends is known beforehand, so places are given to others
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
from scdd.samplers.row_batch import RowBatch
from scdd.samplers.sight import Shown, Sight, launch
from scdd.serve.entries import Ask, Entry, Live, Look, Wanted
from scdd.serve.jobs import Abandoned, Job, cost
from scdd.serve.metrics import Meters
from scdd.serve.sharing import Shape, Sharing
from scdd.serve.shown import When, ending, kept, kept_steps, seen

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
        self.jobs: list[Job] = []  # whose texts are under way or wait for a place, oldest first
        self._lives: list[Live] = []
        self._looks: list[Look] = []  # of the last turn
        self.ahead = denoiser.head.weight.device.type == "cuda"
        """Whether a step is launched before the last one is looked at."""
        self.spent = 0.0  # cost of the steps that were taken

    @property
    def room(self) -> int:
        """Texts that could begin now, beside those that wait for a place already."""
        return self._most - self._rows - sum(len(job.waiting) for job in self.jobs)

    @property
    def _rows(self) -> int:
        """Texts under way that take up a place."""
        return sum(len(live.entries) for live in self._lives)

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
        before, self._looks = self._looks, []
        for live in list(self._lives):
            look = self._step(live) if live.entries else None  # a job that another step ended may have been all it had
            if look is not None and self.ahead and not live.batch.may_end:
                self._looks.append(look)
            elif look is not None:
                self._look(look)
        for look in before:
            self._look(look)

    # -- coming -------------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Free places go to the job that has the fewest, the oldest among equals."""
        groups: list[tuple[Live, SamplingPlan, list[Ask]]] = []
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
            live = self._live(job, plan, shape, barred)
            same = next((group for to, like, group in groups if to is live and like == plan), None)
            if same is None:
                groups.append((live, plan, [ask]))
            else:
                same.append(ask)
        for live, plan, asks in groups:
            if live in self._lives:
                self._add(live, plan, asks)
            else:  # others could not join it, and it is no more
                self._again(asks)
        for old in [live for live in self._lives if not live.entries][:-EMPTY]:
            self._lives.remove(old)

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

    def _live(self, job: Job, plan: SamplingPlan, shape: Shape, barred: Sequence[Live] = ()) -> Live:
        """The batch that a row goes to."""
        assert job.run is not None
        model, owner, rules = job.run.engine.model, job if job.alone else None, batch_rules(plan)
        for live in self._lives:
            same = live.process is model.process and live.shape == shape and live.owner is owner
            if same and live not in barred and live.batch.takes(plan, rules):
                return live
        patience = PATIENCE if self.ahead else 0
        batch = RowBatch(replace(model, denoiser=self._denoiser), plan, shape.width, shape.fewer, patience)
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
            rows = live.batch.add(token_rows(run.engine, dues), numbers(dues), plan)
        except Exception as error:
            self._failed(live, error, asks)
            return
        for ask, row in zip(asks, rows, strict=True):
            if joining and ask.job.left == ask.job.cost:
                self.meters.joined.inc()
            each = cost(ask.due.window.stop - ask.due.window.start)
            live.entries.append(Entry(ask, row, each, [] if _recorded(ask.job) else None))
        if any(row.ended for row in rows):  # no step at all
            sight = Sight(range(len(live.entries)), live.batch.seen)
            sight.begin()
            self._look(self._left(live, sight, {id(row) for row in rows}))

    # -- walking ------------------------------------------------------------------------------------------------------

    def _step(self, live: Live) -> Look | None:
        """Launch a step; None where it went wrong."""
        self.meters.batch_rows.observe(len(live.entries))
        self.meters.batch_jobs.observe(len({id(entry.ask.job) for entry in live.entries}))
        entries = live.entries
        try:
            with live.batch.undisturbed():  # until what it shows is copied: workers' batches may share tensors
                sight, held = launch(live.batch), live.batch.room.held
                look = self._left(live, sight)
        except Exception as error:
            self._failed(live, error)
            return None
        calls, rows = self._sharing.evaluations(live.shape, held)
        self.meters.evaluations.inc(calls)
        self.meters.evaluated_rows.inc(rows)
        for entry in entries:
            entry.ask.job.left -= entry.cost
            self.spent += entry.cost
        return look

    def _left(self, live: Live, sight: Sight, among: set[int] | None = None) -> Look:
        """Who is to be looked at after a step; rows that have ended leave, and others may have their places."""
        wanted: list[Wanted] = []
        for place, entry in zip(sight.places, live.entries, strict=True):
            row = entry.row
            if (row.ended or entry.kept is not None) and (among is None or id(row) in among):
                wanted.append(Wanted(entry, place, row.moment, row.taken, row.ended))
        sight.begin(bool(wanted))
        look = Look(live, sight, wanted)
        if gone := [entry.row for entry in look.ended]:
            live.batch.remove(gone)
            live.entries = [entry for entry in live.entries if not entry.row.ended]
        return look

    def _look(self, look: Look) -> None:
        """Wait for a step, tell watchers of it, and settle the texts whose rows have ended."""
        try:
            look.sight.wait()  # also where nobody wants to know: the host is one step ahead, and no more
            found = look.sight.shown() if look.wanted else None
        except Exception as error:  # a GPU tells late what failed
            self._failed(look.live, error, late=look)
            return
        for entry, place, moment, taken, ended in look.wanted:
            if found is None or entry.ask.job.future.done():
                continue
            if entry.kept is not None:
                entry.kept.append(kept(found, place, moment))
            _tell(entry, found, place, moment, taken)
            if ended:
                self._settle(entry.ask, ending(found, place, entry.row.length, kept_steps(entry.kept)))

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

    def _failed(self, live: Live, error: Exception, joining: Sequence[Ask] = (), late: Look | None = None) -> None:
        """A step went wrong, maybe one that was looked at `late`, or rows could not join. One job's mistake must not become another's, and
        a smaller batch may fit into memory: each job's windows begin once more, in a batch of its own."""
        whole = len(live.batch.rows) == len(live.entries)
        if joining and whole:  # the batch itself is as it was
            asks, entries = list(joining), []
        else:
            entries = live.entries
            if late is not None:  # what was launched after it is as wrong
                looks = [late, *(each for each in self._looks if each.live is live)]
                ended = [entry for look in looks for entry in look.ended if not entry.ask.job.future.done()]
                entries = [*ended, *entries]
                self._looks = [each for each in self._looks if each.live is not live]
            asks = [*(entry.ask for entry in entries), *joining]
            self._lives = [each for each in self._lives if each is not live]
            live.entries = []
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
        """They wait for a place, before others of their jobs."""
        for job, number, due in reversed(asks):
            job.present -= 1
            job.waiting.appendleft((number, due))

    def _end(self, job: Job, error: Exception) -> None:
        """A job is over before its texts are."""
        for live in self._lives:
            theirs = [entry.row for entry in live.entries if entry.ask.job is job]
            if theirs:
                live.batch.remove(theirs)
                live.entries = [entry for entry in live.entries if entry.ask.job is not job]
        job.present = 0
        job.waiting.clear()
        self.jobs.remove(job)
        self._fail(job, error)


def _recorded(job: Job) -> bool:
    return job.run is not None and job.run.plan.record


def _tell(entry: Entry, found: Shown, place: int, moment: When, taken: int) -> None:
    """Hand the watcher its row, unless it has seen this step already."""
    job, number, due = entry.ask
    now = due.level, taken
    if job.watch is None or not job.wanted or job.told.get(number, (-1, 0)) >= now:
        return
    job.told[number] = now
    job.watch(seen(found, place, number, due.window, moment))
