"""Does a sink show each row once, whatever happens? For sinks of your own, and ours.

    def fresh(name):
        folder = tmp_path / name
        folder.mkdir()
        return JsonFiles(str(folder)), lambda: ids_in(folder)

    check_sink(fresh)

Rules of this file: it does to a sink what a region does, with crashes at each point, and looks at what is
visible after each act. Rows have an `id`; those that no committed cut covers come again after a crash, with
the same ids and in other batches. There is no region: the sink's `open`, `process`, `prepare`, `sync`,
`publish` and `reset_to` are called as the runtime calls them.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args
from uuid import uuid4

import msgspec
import pyarrow as pa

from dataflow.errors import SchemaError, SinkOwnedError
from dataflow.operators.base import OperatorContext
from dataflow.schema import parse_schema
from dataflow.sinks.base import SinkSpec, SinkWriter, owner_of
from dos_protocol.errors import DosError

Delivery: TypeAlias = Literal["exactly-once", "at-least-once", "at-most-once"]
Early: TypeAlias = Literal["never", "taken back", "stays"]
Fresh: TypeAlias = "Callable[[str], tuple[SinkSpec, Callable[[], Iterable[int]]]]"
"""name of a story -> a sink at an empty place, and a function that gives the ids a reader sees there now."""

_CUT: Final = "prepare sync commit"
_DONE: Final = f"rows {_CUT} publish"
STORIES: Final[Mapping[str, str]] = {
    "nothing goes wrong": f"{_DONE} rows {_DONE}",
    "a cut without rows": f"{_CUT} publish {_DONE} {_CUT} publish",
    "a crash before the first cut": "rows crash rows",
    "a crash in the middle of rows": f"{_DONE} rows crash rows",
    "a crash between prepare and sync": f"{_DONE} rows prepare crash rows",
    "a crash between prepare and commit": f"{_DONE} rows prepare sync crash rows",
    "the number of a cut comes again": f"rows prepare sync crash {_DONE} rows",
    "a crash between commit and its news": f"rows {_CUT} crash rows",
    "a crash while the news spread": f"rows {_CUT} publish-one crash rows",
    "a crash after the commit, before the answer": f"{_DONE} crash rows",
    "the commit is told twice": f"{_DONE} publish rows publish",
    "the next cut is prepared before the news": f"rows {_CUT} rows prepare sync publish commit publish",
    "two cuts are committed before the news": f"rows {_CUT} rows {_CUT} publish",
    "two cuts are committed, and no news came": f"rows {_CUT} rows {_CUT} crash rows",
    "old news come late": f"rows {_CUT} rows prepare publish sync commit crash rows",
    "a crash while it comes back": f"rows {_CUT} rows half half crash rows crash rows",
    "one that is left over goes on": f"rows {_CUT} rows prepare kill rows zombies prepare sync zombies",
    "one that is left over shows late": f"rows {_CUT} kill rows zombies {_DONE}",
    "one that is left over begins late": f"{_DONE} crash rows stale prepare sync stale commit",
}
"""What is done to a sink, in acts; each ends with rows, a cut, and its news."""

_rows_each_max: Final = 3
_acts_max: Final = 40
_ZOMBIES: Final = ("kill", "zombies", "stale")


class SinkCheckError(AssertionError):
    """The sink lost, doubled or showed what it should not. `problems` says it for each story."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join([f"{len(problems)} stories went wrong", *problems]))
        self.problems = tuple(problems)


def default_row(number: int) -> dict[str, Any]:
    """The row with that id, for the schema `id bigint, text string`."""
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
    """Tell the sink all `STORIES`, then `runs` made up from `seed`; how many were told.

    delivery: "exactly-once" (each row is seen once), "at-least-once" (none is lost), "at-most-once" (none
    is doubled). early: what becomes of rows that are seen before their cut is committed, and then are not:
    "never" (they are not seen), "taken back", "stays" (until they come again). zombies: False for a sink
    that waits until its predecessor has ended, as one that locks a file does. row: id -> row, for another
    schema; `visible` gives back ids. Raises SinkCheckError with what was lost or doubled, and after which
    acts; SchemaError if the sink takes no such rows.
    """
    if delivery not in get_args(Delivery):
        raise SchemaError(f"delivery is one of {', '.join(get_args(Delivery))}, not {delivery!r}")
    if early not in get_args(Early):
        raise SchemaError(f"early is one of {', '.join(get_args(Early))}, not {early!r}")
    columns = parse_schema(schema)
    told = {name: acts.split() for name, acts in STORIES.items()}
    for number in range(seed, seed + runs):
        told[f"made up {number}"] = _made_up(random.Random(number))  # noqa: S311 - no secret
    if not zombies:
        told = {name: acts for name, acts in told.items() if not set(acts) & set(_ZOMBIES)}
    problems = []
    for name, acts in told.items():
        story = _Story(fresh, name, columns, row, workers, delivery, early)
        problem = story.tell([*acts, "rows", "prepare", "sync", "commit", "publish"])
        if problem:
            problems.append(f"{name!r}: {problem}")
    if problems:
        raise SinkCheckError(problems)
    return len(told)


def check_refuses_other_run(fresh: Fresh) -> None:
    """Check that a sink refuses a place where another run has written, instead of adding rows to its rows: in
    `check_place`, which the driver calls before any worker starts, and again when a worker opens the place;
    that what was there stays as it is; and that the run that wrote it goes on. Raises SinkCheckError.
    """
    columns = parse_schema("id bigint, text string")
    sink, visible = fresh("another run wrote here")
    first = _Story(lambda _: (sink, visible), "first", columns, default_row, 2, "exactly-once", "stays")
    if problem := first.tell(["rows", "prepare", "sync", "commit", "publish"]):
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


def _made_up(rng: random.Random) -> list[str]:
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
        *_ZOMBIES,
    )
    return [rng.choice(often) for _ in range(rng.randrange(10, _acts_max))]


@dataclass(frozen=True, slots=True)
class _Cut:
    """What a coordinator knows of a cut: for each worker how many rows were before it, and what was
    prepared.
    """

    number: int
    rows: tuple[int, ...]
    prepared: tuple[Any, ...]


@dataclass(slots=True)
class _Side:
    """A worker in one incarnation."""

    writer: SinkWriter
    given: int
    """Rows, since the beginning of time."""


@dataclass(slots=True)
class _Story:
    """One sink, and what is done to it. Row k of worker w has the id k * workers + w."""

    fresh: Fresh
    name: str
    schema: pa.Schema
    row: Callable[[int], Mapping[str, Any]]
    workers: int
    delivery: Delivery
    early: Early
    incarnation: int = 0
    sides: list[_Side] = field(default_factory=list)
    left_over: list[tuple[SinkWriter, int]] = field(default_factory=list)
    began: _Cut | None = None
    """The cut with which the present incarnation began."""
    committed: _Cut | None = None
    asked: _Cut | None = None
    synced: bool = False
    told: int = 0
    """The rows of this cut must be visible."""
    told_rows: tuple[int, ...] = ()
    calls: int = 0
    store: bytes = field(default_factory=lambda: uuid4().bytes)
    """So that stories told of one place one after the other are of different regions."""

    def tell(self, acts: Sequence[str]) -> str:
        """What went wrong, and when; "" nothing."""
        sink, visible = self.fresh(self.name)
        sink.check_input(self.schema)
        done: list[str] = []
        try:
            self._come_back(sink)
            for act in acts:
                done.append(act)
                self._do(act, sink)
                if problem := self._wrong_with(Counter(visible())):
                    return f"{problem}; after: {' '.join(done)}"
        except Exception as error:  # its remedy is the author's
            return f"{type(error).__name__}: {error}; after: {' '.join(done)}"
        finally:
            for writer in [side.writer for side in self.sides] + [writer for writer, _ in self.left_over]:
                writer.close()
        return ""

    # --- acts -----------------------------------------------------------------------------------------------

    def _do(self, act: str, sink: SinkSpec) -> None:
        if act == "rows":
            self._rows()
        elif act == "prepare" and self.asked is None:
            self._prepare()
        elif act == "sync" and self.asked is not None and not self.synced:
            for side in self.sides:
                _in_thread(side.writer.sync)
            self.synced = True
        elif act == "commit" and self.synced:
            self.committed, self.asked, self.synced = self.asked, None, False
        elif act in ("publish", "publish-one"):
            self._publish(everybody=act == "publish")
        elif act == "crash":
            self._end()
            self._come_back(sink)
        elif act == "half":
            self._end()
            self._open(sink)
        elif act == "kill":
            cut = self.committed.number if self.committed else 0
            self.left_over += [(side.writer, cut) for side in self.sides]
            self._come_back(sink)
        elif act == "zombies":
            self._zombies()
        elif act == "stale":
            self._stale(sink)

    def _rows(self) -> None:
        """Each worker gets some, in one batch or several: a replay is cut otherwise."""
        for worker, side in enumerate(self.sides):
            for _ in range(1 + self.calls % 2):
                self.calls += 1
                count = 1 + self.calls % _rows_each_max
                numbers = [(side.given + index) * self.workers + worker for index in range(count)]
                rows = [dict(self.row(number)) for number in numbers]
                side.writer.process(pa.RecordBatch.from_pylist(rows, self.schema))
                side.given += count
            side.writer.end_step()

    def _prepare(self) -> None:
        number = (self.committed.number if self.committed else 0) + 1
        rows = tuple(side.given for side in self.sides)
        for side in self.sides:
            side.writer.drain()
        prepared = tuple(_through_json(side.writer.prepare(number)) for side in self.sides)
        self.asked = _Cut(number, rows, prepared)

    def _publish(self, *, everybody: bool) -> None:
        cut = self.committed
        if cut is None:
            return
        for side in self.sides if everybody else self.sides[:1]:
            side.writer.publish(cut.number)
        if everybody:
            self.told, self.told_rows = cut.number, cut.rows

    def _end(self) -> None:
        for side in self.sides:
            side.writer.close()
        self.sides = []

    def _open(self, sink: SinkSpec) -> None:
        """A new incarnation stands at the last committed cut. Numbers between belong to some that came to
        nothing.
        """
        self.incarnation += 2
        self.asked, self.synced, self.sides, self.began = None, False, [], self.committed
        for worker in range(self.workers):
            self.sides.append(self._side(sink, worker, self.incarnation))

    def _side(self, sink: SinkSpec, worker: int, incarnation: int) -> _Side:
        cut = self.began
        context = OperatorContext(
            self.name, "sink", worker, self.workers, self.store, (self.schema,), None, incarnation
        )
        side = _Side(sink.open(context), cut.rows[worker] if cut else 0)
        try:
            side.writer.reset_to(cut.prepared[worker] if cut else None)
        except BaseException:
            side.writer.close()
            raise
        return side

    def _come_back(self, sink: SinkSpec) -> None:
        self._open(sink)
        self._publish(everybody=True)

    def _zombies(self) -> None:
        """Writers of earlier incarnations, taken for dead, do what they were about to do: all of it had been
        decided before they were replaced. That they fail is fine.
        """
        for writer, cut in self.left_over:
            with suppress(DosError):
                _in_thread(writer.sync)
                if cut:
                    writer.publish(cut)

    def _stale(self, sink: SinkSpec) -> None:
        """Workers that were ordered to the cut with which the present incarnation began, by one before it,
        get there only now.
        """
        for worker in range(self.workers):
            with suppress(DosError):
                writer = self._side(sink, worker, self.incarnation - 1).writer
                with closing(writer):
                    if self.began is not None:
                        writer.publish(self.began.number)

    # --- what is seen ---------------------------------------------------------------------------------------

    def _wrong_with(self, seen: Counter[int]) -> str:
        doubled = sorted(number for number, count in seen.items() if count > 1)
        if doubled and self.delivery != "at-least-once":
            return f"doubled: {_some(doubled)}"
        missing = sorted(self._ids(self.told_rows) - seen.keys())
        if missing and self.delivery != "at-most-once":
            return f"lost: {_some(missing)}, though cut {self.told} was published"
        rows = self.committed.rows if self.committed else ()
        unasked = sorted(seen.keys() - self._ids(rows))
        if unasked and self.early == "never":
            return f"shown too early: {_some(unasked)}, and no committed cut covers them"
        given = self._ids(tuple(side.given for side in self.sides)) | self._ids(rows)
        if self.early == "stays":
            return ""
        if strange := sorted(seen.keys() - given):
            return f"never given, or not taken back: {_some(strange)}"
        return ""

    def _ids(self, rows: Sequence[int]) -> set[int]:
        return {index * self.workers + worker for worker, count in enumerate(rows) for index in range(count)}


def _through_json(prepared: Any) -> Any:
    """As it is in the manifest."""
    return msgspec.json.decode(msgspec.json.encode(prepared))


def _some(numbers: Sequence[int]) -> str:
    text = ", ".join(map(str, numbers[:8]))
    return f"{len(numbers)} rows (ids {text}{', ...' if len(numbers) > 8 else ''})"


def _in_thread(function: Callable[[], None]) -> None:
    """As the runtime does it: `sync` is never called by the thread that gives rows."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:  # raised again by whoever waits
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


__all__ = ["STORIES", "SinkCheckError", "check_refuses_other_run", "check_sink", "default_row"]
