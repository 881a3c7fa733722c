"""Check that a sink publishes each row exactly once, in all cases of failure. For your own sinks, and ours.

    def fresh(name):
        folder = tmp_path / name
        folder.mkdir()
        return JsonFiles(str(folder)), lambda: ids_in(folder)

    check_sink(fresh)

Rows have an `id`. Rows that no committed checkpoint covers come again after a crash, in other batches.
"""

import random
import shutil
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args
from uuid import uuid4

import msgspec
import pyarrow as pa

from dataflow.core.regions import DELIVERIES, Delivery
from dataflow.errors import SchemaError, SinkOwnedError
from dataflow.operators.base import OperatorContext
from dataflow.schema import parse_schema
from dataflow.sinks.base import SinkSpec, SinkWriter, owner_of
from dataflow.state.operator_directory import OperatorDirectory
from dataflow.testing.trial import KeptChanges
from dos_protocol.errors import DosError
from journal import Record
from journal.files.tree import Rebuilding


class SinkDirectories:
    """Real files and records, with lists as chains."""

    # The list of a superseded worker is its own: a chain refuses its changes.
    def __init__(self) -> None:
        self._open: dict[int, tuple[int, OperatorDirectory, KeptChanges]] = {}
        """Worker -> newest incarnation, its directory and its changes."""
        self._checkpoints: dict[tuple[int, int], list[Record]] = {}
        """(worker, checkpoint) -> the changes up to there."""
        self._root: Path | None = None
        self._built = 0

    def hand_to(self, writer: SinkWriter, worker: int, incarnation: int, checkpoint: int) -> None:
        """Rebuild the files of a checkpoint, 0: of the beginning, and hand them to a writer."""
        log = KeptChanges(list(self._checkpoints.get((worker, checkpoint), ())))
        directory = OperatorDirectory(self._rebuilt(log.records), log)
        writer.take_directory(directory)
        if incarnation >= self._open.get(worker, (0,))[0]:
            self._open[worker] = (incarnation, directory, log)

    def checkpoint(self, worker: int, number: int) -> None:
        """Take the files of a worker into a checkpoint. No effect for a sink that keeps none."""
        if worker in self._open:
            _, directory, log = self._open[worker]
            log.snapshot_due = number % 2 == 0
            directory.checkpoint(number, number)
            self._checkpoints[worker, number] = list(log.records)

    def at(self, workers: int, checkpoint: int) -> list[Path]:
        """Return the files of each worker as of a committed checkpoint, as a reader restores them."""
        return [self._rebuilt(self._checkpoints.get((worker, checkpoint), [])) for worker in range(workers)]

    def _rebuilt(self, records: list[Record]) -> Path:
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="dos-sink-check-"))
            weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)
        self._built += 1
        path = self._root / str(self._built)
        with Rebuilding(path) as rebuilding:
            rebuilding.replay.take(enumerate(records, 1))
            rebuilding.put()
        return path


_AT: Final = "prepare sync commit"
_DONE: Final = f"rows {_AT} publish"
STORIES: Final[Mapping[str, str]] = {
    "no failure": f"{_DONE} rows {_DONE}",
    "a checkpoint without rows": f"{_AT} publish {_DONE} {_AT} publish",
    "a crash before the first checkpoint": "rows crash rows",
    "a crash in the middle of rows": f"{_DONE} rows crash rows",
    "a crash between prepare and sync": f"{_DONE} rows prepare crash rows",
    "a crash between prepare and commit": f"{_DONE} rows prepare sync crash rows",
    "the number of a checkpoint comes again": f"rows prepare sync crash {_DONE} rows",
    "a crash between commit and publish": f"rows {_AT} crash rows",
    "a crash after one worker has published": f"rows {_AT} publish-one crash rows",
    "a crash after publish": f"{_DONE} crash rows",
    "publish is called twice": f"{_DONE} publish rows publish",
    "the next checkpoint is prepared before publish": f"rows {_AT} rows prepare sync publish commit publish",
    "two checkpoints are committed before publish": f"rows {_AT} rows {_AT} publish",
    "a crash after two checkpoints that were not published": f"rows {_AT} rows {_AT} crash rows",
    "publish arrives after the next prepare": f"rows {_AT} rows prepare publish sync commit crash rows",
    "two crashes during the reset": f"rows {_AT} rows half half crash rows crash rows",
    "a superseded worker continues": f"rows {_AT} rows prepare kill rows zombies prepare sync zombies",
    "a superseded worker publishes late": f"rows {_AT} kill rows zombies {_DONE}",
    "a superseded worker opens late": f"{_DONE} crash rows stale prepare sync stale commit",
}
"""What is done to a sink, as acts. Each ends with rows, a checkpoint and its publication."""
ZOMBIES: Final = ("kill", "zombies", "stale")
"""Acts of workers of superseded incarnations."""

_acts_max: Final = 40


def random_acts(rng: random.Random) -> list[str]:
    """Return a story that `rng` makes up."""
    often = (
        "rows",
        "rows",
        "prepare",
        "sync",
        "commit",
        "publish",
        "publish-one",
        "crash",
        "half",
        *ZOMBIES,
    )
    return [rng.choice(often) for _ in range(rng.randrange(10, _acts_max))]


Early: TypeAlias = Literal["never", "taken back", "stays"]
Fresh: TypeAlias = "Callable[[str], tuple[SinkSpec, Callable[..., Iterable[int]]]]"
"""name of a story -> a sink with an empty target, and a function that returns the ids that a reader sees. For
a sink with `keeps_files`, it takes the directory of each worker as of the last committed checkpoint.
"""

_rows_each_max: Final = 3


class SinkCheckError(AssertionError):
    """The sink lost or doubled rows, or made rows visible too early. `problems`: one text for each story."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join([f"{len(problems)} stories went wrong", *problems]))
        self.problems = tuple(problems)


def default_row(number: int) -> dict[str, Any]:
    """Return the row with that id, for the schema `id bigint, text string`."""
    return {"id": number, "text": f"row {number}"}


def check_sink(
    fresh: Fresh,
    *,
    delivery: Delivery = "exactly-once",
    early: Early = "never",
    zombies: bool = True,
    workers: int = 2,
    runs: int = 20,
    seed: int = 1,
    schema: str = "id bigint, text string",
    row: Callable[[int], Mapping[str, Any]] = default_row,
) -> int:
    """Run the sink through all `STORIES`, then `runs` random ones from `seed`; return how many were run.

    delivery: "exactly-once" (each row is visible once), "at-least-once" (none is lost), "at-most-once" (none
    is doubled). early: what happens to rows that are visible before their checkpoint is committed, and whose
    checkpoint fails: "never" (there are none), "taken back", "stays" (until they come again). zombies: False
    for a sink that waits for the end of its predecessor, such as one that locks a file. row: id -> row, for
    another schema; `visible` returns ids. Raises SinkCheckError with what was lost or doubled, and after
    which acts; SchemaError if the sink does not accept such rows.
    """
    if delivery not in DELIVERIES:
        raise SchemaError(f"delivery is one of {', '.join(DELIVERIES)}, got {delivery!r}")
    if early not in get_args(Early):
        raise SchemaError(f"early is one of {', '.join(get_args(Early))}, got {early!r}")
    columns = parse_schema(schema)
    stories = {name: acts.split() for name, acts in STORIES.items()}
    for number in range(seed, seed + runs):
        stories[f"made up {number}"] = random_acts(random.Random(number))  # noqa: S311 - no secret
    if not zombies:
        stories = {name: acts for name, acts in stories.items() if not set(acts) & set(ZOMBIES)}
    problems = []
    for name, acts in stories.items():
        story = _Story(fresh, name, columns, row, workers, delivery, early)
        problem = story.play([*acts, "rows", "prepare", "sync", "commit", "publish"])
        if problem:
            problems.append(f"{name!r}: {problem}")
    if problems:
        raise SinkCheckError(problems)
    return len(stories)


def check_refuses_other_run(fresh: Fresh) -> None:
    """Check that a sink refuses a target with data of another run, in `check_place` and when a worker opens
    it. The data must not change, and its run must be able to continue. Raises SinkCheckError.
    """
    columns = parse_schema("id bigint, text string")
    sink, visible = fresh("another run wrote here")
    first = _Story(lambda _: (sink, visible), "first", columns, default_row, 2, "exactly-once", "stays")
    if problem := first.play(["rows", "prepare", "sync", "commit", "publish"]):
        raise SinkCheckError([problem])
    before = Counter(visible())
    second = OperatorContext("second", "sink", 0, 2, uuid4().bytes, (columns,), None, 2)
    attempts: dict[str, Callable[[], None]] = {
        "check_place": lambda: sink.check_place(owner_of(second)),
        "reset_to": lambda: _opened_and_closed(sink, second),
    }
    for what, attempt in attempts.items():
        with suppress(SinkOwnedError):
            attempt()
            raise SinkCheckError([f"{what} of another run raised no SinkOwnedError"])
    if Counter(visible()) != before:
        raise SinkCheckError(["rows of the first run were changed by a run that was refused"])
    same = OperatorContext("first", "sink", 0, 2, first.store, (columns,), None, first.incarnation + 2)
    sink.check_place(owner_of(same))
    _opened_and_closed(sink, same, first.committed.prepared[0] if first.committed else None)


def _opened_and_closed(sink: SinkSpec, context: OperatorContext, prepared: Any = None) -> None:
    with closing(sink.open(context)) as writer:
        writer.reset_to(prepared)


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A checkpoint in the coordinator: for each worker its number of rows and its prepared data."""

    number: int
    rows: tuple[int, ...]
    prepared: tuple[Any, ...]


@dataclass(slots=True)
class _Writer:
    """A worker in one incarnation."""

    writer: SinkWriter
    row_count: int
    """The number of rows since the beginning."""


@dataclass(slots=True)
class _Story:
    """One sink and the acts on it. Row k of worker w has the id k * workers + w."""

    fresh: Fresh
    name: str
    schema: pa.Schema
    row: Callable[[int], Mapping[str, Any]]
    workers: int
    delivery: Delivery
    early: Early
    incarnation: int = 0
    writers: list[_Writer] = field(default_factory=list)
    left_over: list[tuple[SinkWriter, int]] = field(default_factory=list)
    began: _Checkpoint | None = None
    """The checkpoint from which the current incarnation started."""
    committed: _Checkpoint | None = None
    requested: _Checkpoint | None = None
    synced: bool = False
    published: int = 0
    """The rows of this checkpoint must be visible."""
    published_rows: tuple[int, ...] = ()
    calls: int = 0
    directories: SinkDirectories = field(default_factory=SinkDirectories)
    store: bytes = field(default_factory=lambda: uuid4().bytes)
    """Unique, so that stories on one target are of different regions."""

    def play(self, acts: Sequence[str]) -> str:
        """Run the acts. Return what went wrong and when; "" for nothing."""
        sink, visible = self.fresh(self.name)
        sink.check_input(self.schema)
        done: list[str] = []
        try:
            self._restart(sink)
            for act in acts:
                done.append(act)
                self._do(act, sink)
                if problem := self._problem(Counter(self._visible(sink, visible))):
                    return f"{problem}; after: {' '.join(done)}"
        except Exception as error:  # its remedy is the author's
            return f"{type(error).__name__}: {error}; after: {' '.join(done)}"
        finally:
            for writer in [one.writer for one in self.writers] + [writer for writer, _ in self.left_over]:
                writer.close()
        return ""

    def _visible(self, sink: SinkSpec, visible: Callable[..., Iterable[int]]) -> Iterable[int]:
        if not sink.keeps_files:
            return visible()
        return visible(self.directories.at(self.workers, self.committed.number if self.committed else 0))

    # --- acts -----------------------------------------------------------------------------------------------

    def _do(self, act: str, sink: SinkSpec) -> None:
        if act == "rows":
            self._rows()
        elif act == "prepare" and self.requested is None:
            self._prepare()
        elif act == "sync" and self.requested is not None and not self.synced:
            self._sync(self.requested)
        elif act == "commit" and self.synced:
            self.committed, self.requested, self.synced = self.requested, None, False
        elif act in ("publish", "publish-one"):
            self._publish(all_workers=act == "publish")
        elif act == "crash":
            self._end()
            self._restart(sink)
        elif act == "half":
            self._end()
            self._open(sink)
        elif act == "kill":
            checkpoint = self.committed.number if self.committed else 0
            self.left_over += [(one.writer, checkpoint) for one in self.writers]
            self._restart(sink)
        elif act == "zombies":
            self._zombies()
        elif act == "stale":
            self._stale(sink)

    def _rows(self) -> None:
        """Give each worker rows in one batch or several: a replay has other batches."""
        for worker, one in enumerate(self.writers):
            for _ in range(1 + self.calls % 2):
                self.calls += 1
                count = 1 + self.calls % _rows_each_max
                numbers = [(one.row_count + index) * self.workers + worker for index in range(count)]
                rows = [dict(self.row(number)) for number in numbers]
                one.writer.process(pa.RecordBatch.from_pylist(rows, self.schema))
                one.row_count += count
            one.writer.end_step()

    def _prepare(self) -> None:
        number = (self.committed.number if self.committed else 0) + 1
        rows = tuple(one.row_count for one in self.writers)
        for worker, one in enumerate(self.writers):
            one.writer.drain()
            self.directories.checkpoint(worker, number)
        prepared = tuple(_through_json(one.writer.prepare(number)) for one in self.writers)
        self.requested = _Checkpoint(number, rows, prepared)

    def _sync(self, checkpoint: _Checkpoint) -> None:
        for one in self.writers:
            _in_thread(one.writer.sync)
        voted = zip(self.writers, checkpoint.prepared, strict=True)
        stored = tuple(_through_json(one.writer.voted(prepared)) for one, prepared in voted)
        self.requested, self.synced = replace(checkpoint, prepared=stored), True

    def _publish(self, *, all_workers: bool) -> None:
        checkpoint = self.committed
        if checkpoint is None:
            return
        for one in self.writers if all_workers else self.writers[:1]:
            one.writer.publish(checkpoint.number)
        if all_workers:
            self.published, self.published_rows = checkpoint.number, checkpoint.rows

    def _end(self) -> None:
        for one in self.writers:
            one.writer.close()
        self.writers = []

    def _open(self, sink: SinkSpec) -> None:
        """Open an incarnation at the last committed checkpoint; skip a number, as failed incarnations do."""
        self.incarnation += 2
        self.requested, self.synced, self.writers, self.began = None, False, [], self.committed
        for worker in range(self.workers):
            self.writers.append(self._open_writer(sink, worker, self.incarnation))

    def _open_writer(self, sink: SinkSpec, worker: int, incarnation: int) -> _Writer:
        checkpoint = self.began
        context = OperatorContext(
            self.name, "sink", worker, self.workers, self.store, (self.schema,), None, incarnation
        )
        one = _Writer(sink.open(context), checkpoint.rows[worker] if checkpoint else 0)
        try:
            one.writer.reset_to(checkpoint.prepared[worker] if checkpoint else None)
            if sink.keeps_files:
                self.directories.hand_to(
                    one.writer, worker, incarnation, checkpoint.number if checkpoint else 0
                )
        except BaseException:
            one.writer.close()
            raise
        return one

    def _restart(self, sink: SinkSpec) -> None:
        self._open(sink)
        self._publish(all_workers=True)

    def _zombies(self) -> None:
        """Let writers of superseded incarnations finish what they had decided to do. They may fail."""
        for writer, checkpoint in self.left_over:
            with suppress(DosError):
                _in_thread(writer.sync)
                if checkpoint:
                    writer.publish(checkpoint)

    def _stale(self, sink: SinkSpec) -> None:
        """Open workers of a superseded incarnation late, at the checkpoint where the current one began."""
        for worker in range(self.workers):
            with suppress(DosError):
                writer = self._open_writer(sink, worker, self.incarnation - 1).writer
                with closing(writer):
                    if self.began is not None:
                        writer.publish(self.began.number)

    # --- what is visible ------------------------------------------------------------------------------------

    def _problem(self, seen: Counter[int]) -> str:
        doubled = sorted(number for number, count in seen.items() if count > 1)
        if doubled and self.delivery != "at-least-once":
            return f"doubled: {_some(doubled)}"
        missing = sorted(self._ids(self.published_rows) - seen.keys())
        if missing and self.delivery != "at-most-once":
            return f"lost: {_some(missing)}, though checkpoint {self.published} was published"
        rows = self.committed.rows if self.committed else ()
        unasked = sorted(seen.keys() - self._ids(rows))
        if unasked and self.early == "never":
            return f"visible too early: {_some(unasked)}, and no committed checkpoint covers them"
        given = self._ids(tuple(one.row_count for one in self.writers)) | self._ids(rows)
        if self.early == "stays":
            return ""
        if strange := sorted(seen.keys() - given):
            return f"never given, or not taken back: {_some(strange)}"
        return ""

    def _ids(self, rows: Sequence[int]) -> set[int]:
        return {index * self.workers + worker for worker, count in enumerate(rows) for index in range(count)}


def _through_json(prepared: Any) -> Any:
    """Return it as it comes back from the manifest."""
    return msgspec.json.decode(msgspec.json.encode(prepared))


def _some(numbers: Sequence[int]) -> str:
    text = ", ".join(map(str, numbers[:8]))
    return f"{len(numbers)} rows (ids {text}{', ...' if len(numbers) > 8 else ''})"


def _in_thread(function: Callable[[], None]) -> None:
    """Call the function in a thread, as the runtime calls `sync`: never on the thread that passes rows."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:  # raised again after the join
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
