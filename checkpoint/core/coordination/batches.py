"""The batches of a region that a Spark query drives: which is processed, how its tasks are answered. Pure.

A *batch* is a micro-batch of the query: (query, number, time). The time is that of Spark's plan, which is in
the checkpoint of the query before any task runs; a task always knows it, also if the batch has no row. L is
the batch in the last checkpoint record.

1. A task asks (`BatchAsked`). A batch with the time of a known batch is RECORDED: its output is in the logs.
   Known are the batches whose output is still readable (`Batches.known`). Number L + 1 is NEEDED: the task
   sends each worker a share, and then offers it.
2. The first offer of this incarnation is opened: all workers feed their shares of that attempt.
3. When *all* workers have, the checkpoint of the batch is requested, after the last step with a row of it.
   **Its record commits the batch**, with the state and the output.
4. The task reads the output from the logs. Spark asks for L + 1 only after it has committed L. So the state
   is always that of the last batch that Spark committed, or of the one after it; and older output may be
   deleted. A DataFrame of an earlier batch may still be evaluated, so the last two stay, and younger ones.

From OPEN to the record no other checkpoint is requested: it would have a part of the batch, and Spark would
repeat all of it. A reset before the record gives the batch up, and its tasks are answered NEEDED again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import NamedTuple, TypeAlias

from checkpoint import limits
from checkpoint.core.coordination.checkpoints import Checkpoints
from checkpoint.core.coordination.run import CoordinatorPhase, RegionRun
from checkpoint.core.coordination.workers import Worker, WorkerState
from checkpoint.core.graph_change import stored_under
from checkpoint.core.links.messages import (
    BatchAsked,
    BatchNeeded,
    BatchOffered,
    BatchProblem,
    BatchProcessed,
    BatchRefused,
    OpenBatch,
    Refusal,
    WantsCheckpoint,
)
from checkpoint.core.records.lines import taken_back
from checkpoint.core.records.manifest import BatchNote, Checkpoint, check_output
from checkpoint.core.region import DrivingQuery

# --- what is to be done with a batch ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Needed:
    """The batch follows the last one: its rows are needed."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The batch is in a record."""

    note: BatchNote


@dataclass(frozen=True, slots=True)
class Refused:
    """The batch must not be processed."""

    problem: BatchProblem
    text: str
    remedy: str


Verdict: TypeAlias = Needed | Recorded | Refused


def judge(region: str, last: BatchNote | None, known: Iterable[BatchNote], asked: BatchAsked) -> Verdict:
    """Return what is to be done with a batch. last: the one in the last record. known: those with output."""
    if last is None:
        return Needed() if not asked.number else _gap(region, None, asked)
    if asked.query != last.query:
        return _other_query(region, last, asked)
    # The time before the number: a DataFrame that a foreachBatch kept has the number of the batch in which it
    # is evaluated. By the number, its old rows would be counted again, as that batch.
    for note in known:
        if (note.query, note.time_us) == (asked.query, asked.time_us):
            return Recorded(note)
    if asked.number > last.number + 1:
        return _gap(region, last, asked)
    if asked.time_us <= last.time_us:
        return _goes_back(region, last, asked)
    return Needed() if asked.number == last.number + 1 else _planned_again(region, asked)


def refused_before_claim(region: str, kept: tuple[Checkpoint, ...], asked: BatchAsked) -> Refused | None:
    """Return why a region must not be claimed for a batch: it would be refused then, and the claim would have
    fenced the driver that runs the region for another query. kept: the retained checkpoints.
    """
    last = kept[-1].batch if kept else None
    verdict = judge(region, last, _of_records(kept) if kept else (), asked)
    return verdict if isinstance(verdict, Refused) else None


def check_repeated(
    region: str, kept: tuple[Checkpoint, ...], asked: BatchAsked, sink: str, uids: Mapping[str, str]
) -> None:
    """Raise GraphChangeRefusedError if a query repeats a batch whose output is not that of a sink. kept: the
    retained checkpoints. uids: of the graph with which the region is about to continue.
    """
    verdict = judge(region, kept[-1].batch, _of_records(kept), asked) if kept else None
    if isinstance(verdict, Recorded):
        check_output(region, verdict.note, sink, uids)


def _other_query(region: str, last: BatchNote, asked: BatchAsked) -> Refused:
    return Refused(
        "other query",
        f"region {region!r} is driven by query {last.query}, and this is query {asked.query}",
        "start one query for a region, and another one with another name=; others read its output with"
        " format('dos') and option('output', ...). If that query is gone for good: dos region release URL"
        f" {region}",
    )


def _gap(region: str, last: BatchNote | None, asked: BatchAsked) -> Refused:
    processed, following = ("no batch", 0) if last is None else (f"batch {last.number}", last.number + 1)
    return Refused(
        "gap",
        f"region {region!r} has processed {processed}, and the query asks for batch {asked.number}: a"
        " foreachBatch did not use its DataFrame, or the region was restored, or it is another one",
        f"stop the query. So that it repeats batch {following}, remove the files from {following} on in"
        " offsets and commits of its checkpoint (for a file sink in _spark_metadata, too), and the rows of"
        " these batches from its sink. Spark keeps spark.sql.streaming.minBatchesToRetain offsets: if those"
        " are gone, begin with a new checkpoint and a new region",
    )


def _planned_again(region: str, asked: BatchAsked) -> Refused:
    return Refused(
        "planned again",
        f"batch {asked.number} of region {region!r} was processed, and Spark has planned it again at"
        f" {_text(asked.time_us)}: its checkpoint lost its newest batches, or tracks progress asynchronously",
        f"take the region back to the state before it: dos checkpoint ls URL {region} shows the checkpoint"
        f" of batch {asked.number - 1}, and dos region restore URL {region} --to checkpoint:N restores it. Do"
        " not set asyncProgressTrackingEnabled",
    )


def _goes_back(region: str, last: BatchNote, asked: BatchAsked) -> Refused:
    return Refused(
        "planned again",
        f"batch {asked.number} of region {region!r} was planned at {_text(asked.time_us)}, not after batch"
        f" {last.number} ({_text(last.time_us)}), and no output of that time is kept: a DataFrame of an"
        " earlier batch is evaluated, or the clock of the driver was set back",
        "use the DataFrame that foreachBatch was called with: output of the last two batches, and of those"
        f" younger than {limits.batch_known_s:.0f} s, is kept. After a clock was set back, stop the query,"
        f" remove offsets/{asked.number} from its checkpoint and start it: Spark plans that batch anew",
    )


def _text(time_us: int) -> str:
    """Return the time of day."""
    seconds, micros = divmod(time_us, 1_000_000)
    return f"{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros // 1000:03} UTC"


def _of_records(kept: tuple[Checkpoint, ...]) -> Iterable[BatchNote]:
    """The batches in retained records of the present line of history, newest first."""
    last = kept[-1]
    for checkpoint in reversed(kept):
        if checkpoint.batch is not None and taken_back(last, checkpoint.line, checkpoint.step) is None:
            yield checkpoint.batch


# --- the tasks, and the batch that is open --------------------------------------------------------------


@dataclass(slots=True)
class _Task:
    """A task that has asked, and is not answered finally."""

    asked: BatchAsked
    needed_in: int = 0
    """The incarnation in which it was asked for its rows; 0 for none."""
    offer: BatchOffered | None = None


@dataclass(slots=True)
class _Open:
    """The batch whose shares the workers feed."""

    asked: BatchAsked
    offer: BatchOffered
    marks: dict[int, Mapping[str, int]] = field(default_factory=dict)
    """Worker that has fed its share -> its marks (`WantsCheckpoint.marks`)."""
    step: int = 0
    """The last step with rows of the batch, of the workers in `marks`."""

    def combined(self, before: Mapping[str, int]) -> dict[str, int]:
        """Return the largest mark of each operator: rows of a batch have no order, and a mark never falls."""
        found = dict(before)
        for marks in self.marks.values():
            for operator, mark in marks.items():
                found[operator] = max(mark, found.get(operator, mark))
        return found


class _Processed(NamedTuple):
    """A batch that this coordinator has found in a record."""

    note: BatchNote
    line: int
    step: int
    found_at: float


class Batches:
    """The tasks that ask this coordinator, and the batch that is open."""

    def __init__(self, run: RegionRun, checkpoints: Checkpoints) -> None:
        self._run = run
        self._checkpoints = checkpoints
        self._tasks: dict[int, _Task] = {}
        """Link -> task."""
        self._open: _Open | None = None
        self._recent: list[_Processed] = []
        """The last two, and those younger than `limits.batch_known_s`. In memory only: a task that evaluates
        an older batch than the last one ends with the driver, as this coordinator does.
        """

    def known(self) -> list[BatchNote]:
        """Return the batches whose output is readable, newest first: those of retained checkpoints, whose
        floors keep it, and recent ones, which workers keep for longer (`limits.batch_output_kept_s`).
        """
        last = self._run.last_checkpoint
        if last is None:
            return []
        recent = [one.note for one in self._recent if taken_back(last, one.line, one.step) is None]
        return [*_of_records(self._run.kept), *reversed(recent)]

    @property
    def status(self) -> DrivingQuery | None:
        """The query that drives the region; None if none has."""
        last, asked = self._run.last_checkpoint, [task.asked for task in self._tasks.values()]
        note = None if last is None else last.batch
        if note is not None:
            return DrivingQuery(note.query, note.number, note.time_us, note.rows, self._waits())
        return DrivingQuery(asked[0].query, waits=self._waits()) if asked else None

    def _waits(self) -> str:
        """Return why no task has its output yet, empty if none waits."""
        run, checkpoints = self._run, self._checkpoints
        if self._open is not None and run.batch_open:
            number, missing = self._open.asked.number, len(run.roster) - len(self._open.marks)
            what = f"{missing} workers process it" if missing else "its checkpoint is under way"
            return f"batch {number}: {what}"
        if not self._tasks:
            return ""
        task = min(self._tasks.values(), key=lambda one: one.offer is None)
        if run.phase is not CoordinatorPhase.RUNNING:
            why = f"the region is in the phase {run.phase.name}"
        elif task.offer is None:
            why = "its task sends its rows"
        elif checkpoints.pause:
            why = "the region is paused"
        else:
            why = "the workers are changed" if run.changing else "another checkpoint is under way"
        return f"batch {task.asked.number} waits: {why}"

    def on_asked(self, link: int, message: BatchAsked) -> Refusal | None:
        """Take the question of a task. `advance` answers it."""
        if link in self._tasks:
            return Refusal("UNEXPECTED", "a task asks once on a link")
        # Without its time, a batch that was planned again would get the output of other rows.
        if message.time_us <= 0 or message.number < 0 or not message.query:
            text = (
                f"batch {message.number} of query {message.query!r} at {message.time_us} us: each has a time"
            )
            return Refusal("UNEXPECTED", text)
        self._tasks[link] = _Task(message)
        return None

    def on_offered(self, link: int, message: BatchOffered) -> Refusal | None:
        """Take an offer. One of another incarnation is of shares that no worker holds any more."""
        task, now = self._tasks.get(link), self._run.incarnation
        if task is None or task.needed_in != now or message.incarnation != now:
            text = f"an offer of incarnation {message.incarnation}, current is {now}"
            return Refusal("STALE_INCARNATION", text)
        task.offer = message
        return None

    def refuse_waiting(self, text: str, remedy: str) -> None:
        """Refuse the tasks that wait for the workers: these could only start in the slots of the tasks."""
        run = self._run
        if run.phase is CoordinatorPhase.RUNNING or run.over:
            return  # the workers have started meanwhile
        for link in self._tasks:
            run.send(link, BatchRefused(**run.address, problem="no slot", text=text, remedy=remedy))
        self._tasks.clear()

    def link_down(self, link: int) -> None:
        """Forget a task. Its shares stay: they may be open, and a worker cannot know."""
        self._tasks.pop(link, None)

    def on_fed(self, worker: Worker, message: WantsCheckpoint, now: float) -> Refusal | None:
        """Note that a worker has fed its share. With the last one, request the checkpoint of the batch."""
        run, opened = self._run, self._open
        if worker.state is not WorkerState.RUNNING or opened is None or opened.asked.number != message.batch:
            text = f"worker {message.worker} has fed batch {message.batch}, which is not open"
            return Refusal("UNEXPECTED", text)
        if worker.index in opened.marks:
            return Refusal("UNEXPECTED", f"worker {worker.index} has fed batch {message.batch} twice")
        worker.step = max(worker.step, message.step)
        opened.marks[worker.index] = message.marks
        opened.step = max(opened.step, message.step)
        # Of all, not of one: a record without the share of a worker would have a part of the batch, and Spark
        # never sends the rest.
        if len(opened.marks) == len(run.roster):
            asked = opened.asked
            note = BatchNote(
                query=asked.query,
                number=asked.number,
                time_us=asked.time_us,
                rows=opened.offer.rows,
                marks={self._uids[name]: mark for name, mark in opened.combined(self._marks).items()},
            )
            self._checkpoints.request_for_batch(note, opened.step, now)
        return None

    @property
    def _marks(self) -> Mapping[str, int]:
        """The marks of the last batch, by the names of the graph."""
        last = self._run.last_checkpoint
        marks = {} if last is None or last.batch is None else last.batch.marks
        return {name: marks[uid] for name, uid in self._uids.items() if uid in marks}

    @property
    def _uids(self) -> dict[str, str]:
        return stored_under(self._run.spec.operators, self._run.uids)

    def advance(self, now: float) -> None:
        """Answer the tasks that can be answered; open a batch if one is offered. Call it after each event."""
        run = self._run
        self._note_recent(now)
        if not run.batch_open:
            self._open = None  # it is in a record, or was given up by a reset
        if not run.over and run.phase not in (CoordinatorPhase.RUNNING, CoordinatorPhase.STOPPING):
            return  # the last checkpoint may be in doubt, or no worker could take a share
        for link, task in list(self._tasks.items()):
            self._answer(link, task)
        if self._open is None and self._checkpoints.may_open_batch:
            self._open_one()

    def _note_recent(self, now: float) -> None:
        last = self._run.last_checkpoint
        if last is not None and last.batch is not None:
            found = _Processed(last.batch, last.line, last.batch.step, now)
            if not self._recent or self._recent[-1][:3] != found[:3]:
                self._recent.append(found)
        while len(self._recent) > 2 and now - self._recent[0].found_at >= limits.batch_known_s:
            del self._recent[0]

    def _answer(self, link: int, task: _Task) -> None:
        run = self._run
        last = run.last_checkpoint
        processed = None if last is None else last.batch
        verdict = judge(run.spec.name, processed, self.known(), task.asked)
        if isinstance(verdict, Needed) and run.outcome is None:
            if task.needed_in != run.incarnation and run.phase is CoordinatorPhase.RUNNING:
                task.needed_in, task.offer = run.incarnation, None
                run.send(link, BatchNeeded(**run.address, peers=run.roster.peers()))
            return
        del self._tasks[link]
        if isinstance(verdict, Recorded):
            assert last is not None
            logs = {worker: part.sinks for worker, part in last.outputs().items()}
            run.send(
                link,
                BatchProcessed(**run.address, batch=verdict.note, line=last.line, logs=logs, uids=last.uids),
            )
            return
        refused = verdict if isinstance(verdict, Refused) else self._ended()
        run.send(link, BatchRefused(**run.address, **asdict(refused)))

    def _ended(self) -> Refused:
        outcome = self._run.outcome
        assert outcome is not None
        remedy = "start the query again: it repeats the batch"
        text = f"region {self._run.spec.name!r} ended: {outcome.reason}"
        if outcome.error is not None:
            remedy = outcome.error.remedy or remedy
            # The error of the query is where a user looks for the line of a function.
            text = "\n".join([text, *getattr(outcome.error, "__notes__", ())])
        return Refused("ended", text, remedy)

    def _open_one(self) -> None:
        run = self._run
        for task in self._tasks.values():
            if task.offer is not None:
                self._open = _Open(task.asked, task.offer)
                run.batch_open = True
                run.send_all(
                    OpenBatch(
                        **run.address,
                        number=task.asked.number,
                        time_us=task.asked.time_us,
                        attempt=task.offer.attempt,
                        marks=dict(self._marks),
                    )
                )
                return
