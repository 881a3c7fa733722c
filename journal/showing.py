"""What `dos journal` shows: lines of records, the verdict of verify, the chart of timeline, the status of a
chain. Records come from `inspecting.py`, through a consumer, or from a follower.
"""

import os
import re
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec
import trio

from dos_client.store import Store
from dos_protocol.errors import LocalProtocolError
from journal.core.chain import ChainState, parse_segment_name, segments_seen
from journal.core.errors import LostBytesError
from journal.core.inspection import (
    Inspector,
    Located,
    Timeline,
    TimelineInterval,
    fault_fields,
    fault_text,
    record_json,
    record_text,
    wall_ms,
)
from journal.core.record import VERSION_1, Op
from journal.following import ChainFollower, ChainWatch
from journal.inspecting import Consumer, InspectionOutcome, open_chain
from journal.limits import follow_poll_s, scratch_read_bytes_max, status_read_bytes_max
from journal.local_store import LocalStore
from journal.ports import Progress, StorePort
from journal.reading import read_plain_batches

Bound = int | datetime
"""A logical offset, or a time with a time zone."""


class Render(Protocol):
    """A function that formats a record as a line. `time_ms`: the wall clock; None to leave it out."""

    def __call__(self, located: Located, *, time_ms: int | None = None) -> str: ...


def as_line(located: Located, *, full: bool = False, time_ms: int | None = None) -> str:
    if time_ms is None:
        return record_text(located, full=full)
    try:
        when = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # a damaged or foreign record: no calendar has that number
        when = f"{time_ms}ms"
    return record_text(located, full=full, when=when)


def dumper(
    write: Callable[[str], object],
    render: Render,
    *,
    begin: Bound = 0,
    end: Bound | None = None,
    times: bool = False,
    wanted: Callable[[Located], bool] = lambda _: True,
) -> Consumer:
    """Return a consumer that writes one line for each wanted record in [begin, end), and returns False at
    `end`. times: show the time of each record: its own, or that of the last one before it.
    """
    now_ms: int | None = None

    def reached(bound: Bound, located: Located) -> bool:
        if isinstance(bound, int):
            return located.offset >= bound
        return now_ms is not None and now_ms >= bound.timestamp() * 1000

    def consume(records: list[Located]) -> bool:
        nonlocal now_ms
        lines, ended = [], False
        for located in records:
            clock = wall_ms(located.record)
            now_ms = clock if clock is not None else now_ms
            ended = end is not None and reached(end, located)
            if ended:
                break
            if reached(begin, located) and wanted(located):
                lines.append(render(located, time_ms=now_ms if times else None))
        if lines:
            write("\n".join(lines) + "\n")
        return not ended

    return consume


class RecordFilter:
    """A filter of records by operation and by a regular expression in one of their strings; none counts as
    one empty string. `found` counts the matches. Raises ValueError for an invalid pattern.
    """

    def __init__(self, pattern: str, op: Op | None = None) -> None:
        try:
            self._pattern = re.compile(pattern.encode("utf-8", "surrogateescape"))
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"{pattern[:200]!r} is not a regular expression: {error}") from error
        self._op = op
        self.found = 0

    def __call__(self, located: Located) -> bool:
        record = located.record
        if self._op not in (None, record.op):
            return False
        found = any(self._pattern.search(string) for string in record.strings or (b"",))
        self.found += found
        return found


def json_page(
    pattern: str, *, begin: int = 0, count_max: int = 200, full: bool = False
) -> tuple[Consumer, list[str]]:
    """Return a consumer, and the list in which it collects the first `count_max` matches from offset `begin`
    on, as JSON.
    """
    wanted, found = RecordFilter(pattern), list[str]()

    def consume(records: list[Located]) -> bool:
        for located in records:
            if located.offset >= begin and len(found) < count_max and wanted(located):
                found.append(record_json(located, full=full))
        return len(found) < count_max

    return consume, found


Show = Callable[[Located], None]


async def follow_chain(url: str, token: bytes, begin: int | None, show: Show) -> None:
    """Call `show` with each committed record that ends above the logical offset `begin` (None: the current
    end), then with new ones. Only for chains that are never rolled back. Of a journal on the local disk,
    records are read from its files, synced or not. Never returns.

    Raises NotFoundError, LocalProtocolError for the URL of an object, LostBytesError if the chain no longer
    holds the next record, and the errors of the client.
    """
    async with open_chain(url, token) as (store, directory, state):
        if not isinstance(store, Store | LocalStore):
            raise LocalProtocolError(
                f"{url} is an archive or the disk of a server, which does not grow",
                remedy="pass the URL of the servers",
            )
        assert state.end is not None, "something of it is committed"
        at = state.end.size if begin is None else begin
        follower = ChainFollower(store, directory, state.chain, at=at, skip_lost=begin == 0)
        watch = ChainWatch(store, follower) if isinstance(store, Store) else None
        try:
            while True:
                at = follower.at
                async with aclosing(follower.poll()) as records:
                    async for end, record in records:
                        show(Located(state.chain, at, end, VERSION_1, record))
                        at = end
                if watch is not None:
                    await watch.wait(follow_poll_s)
                else:
                    await trio.sleep(follow_poll_s)
        finally:
            if watch is not None:
                watch.close()


async def follow_file(path: Path, begin: int | None, show: Show) -> None:
    """Call `show` with each record of a journal file that ends above offset `begin` (None: its current end),
    then with new ones. Never returns. Raises OSError, LostBytesError if the file became shorter, its fault.
    """
    inspector, done = Inspector(path.name), 0
    with path.open("rb", buffering=0) as file:
        if begin is None:
            begin = os.fstat(file.fileno()).st_size
        while True:
            while chunk := file.read(scratch_read_bytes_max):
                done += len(chunk)
                for located in inspector.feed(chunk):
                    if located.end > inspector.logical_base + begin:
                        show(located)
            inspector.feed(b"")  # a fault is raised by the call after the one that returned the good records
            if inspector.fault is not None:
                raise inspector.fault
            await trio.sleep(follow_poll_s)
            now = os.fstat(file.fileno()).st_size
            if now < done:
                text = f"{path} was truncated from {done} to {now} bytes"
                raise LostBytesError(text, remedy="run the command again to read it from the start")


def accept(_: object) -> bool:
    """Accept all records: the consumer of a verification, which only has to read everything."""
    return True


def verdict_text(outcome: InspectionOutcome) -> str:
    """Format the outcome as text: one line if it is sound, otherwise the fault, one field per line."""
    tally = outcome.tally
    seen = f"{tally.records} records in {tally.segments} segment{'s' * (tally.segments != 1)}"
    extent = f"offsets {tally.first_offset or 0} to {tally.end_offset}, {tally.bytes} bytes"
    version = "" if tally.version is None else f", version {tally.version}"
    if outcome.fault is None and outcome.not_verified:
        so_far = "is there" if outcome.missing else "can be proved"
        lines = [f"sound as far as it {so_far}: {outcome.target}: {seen}, {extent}{version}"]
        return "\n".join([*lines, *(f"not verified: {text}" for text in outcome.not_verified)])
    if outcome.fault is None:
        return f"sound: {outcome.target}: {seen}, {extent}{version}"
    return (
        f"fault in {outcome.target}, after {seen}, {extent}{version}\n"
        f"{fault_text(outcome.fault, outcome.base)}"
    )


def verdict_json(outcome: InspectionOutcome) -> dict[str, Any]:
    tally = outcome.tally
    verdict: dict[str, Any] = {
        "target": outcome.target,
        "what": outcome.kind,
        "sound": outcome.fault is None and not outcome.not_verified,
        "version": tally.version,
        "segments": tally.segments,
        "records": tally.records,
        "bytes": tally.bytes,
        "first_offset": tally.first_offset or 0,
        "end_offset": tally.end_offset,
        "end": outcome.end,
        "committed_only": outcome.committed_only,
    }
    if outcome.unproved:
        verdict["unproved"] = outcome.unproved
    if outcome.missing:
        verdict["missing"] = outcome.missing
    if outcome.fault is not None:
        verdict["fault"] = fault_fields(outcome.fault, outcome.base)
    return verdict


BAR = "#"


def timeline_of(timeline: Timeline) -> Consumer:
    def consume(records: list[Located]) -> bool:
        for located in records:
            timeline.take(located)
        return True

    return consume


def timeline_text(timeline: Timeline, *, lines: int, columns: int) -> str:
    """Format one line per interval: its time, bytes as a bar and a number, records, offset, and events."""
    stretches = timeline.stretches(lines)
    if not stretches:
        return "no records"
    most = max(stretch.bytes for stretch in stretches)
    rows = [
        (
            _when(stretch, timeline),
            f"{stretch.bytes:,} bytes",
            f"{stretch.records:,} records",
            f"from {stretch.offset:,}" if timeline.by_time and stretch.records else "",
            _events(stretch),
        )
        for stretch in stretches
    ]
    widths = [max(len(row[n]) for row in rows) for n in range(4)]
    room = max(columns - sum(widths) - max(len(row[4]) for row in rows) - 10, 10)
    text = []
    for stretch, (when, *counts, events) in zip(stretches, rows, strict=True):
        bar = BAR * (-(-stretch.bytes * room // most) if most else 0)
        cells = "  ".join(f"{one:>{width}}" for one, width in zip(counts, widths[1:], strict=True))
        text.append(f"{when:<{widths[0]}}  {bar:<{room}}  {cells}  {events}".rstrip())
    return "\n".join(text)


def timeline_json(timeline: Timeline, *, lines: int) -> dict[str, Any]:
    """Return `by`, "time" (ms since 1970) or "offset", and the intervals as `stretches`."""
    return {
        "by": "time" if timeline.by_time else "offset",
        "stretches": [
            {
                "begin": stretch.begin,
                "offset": stretch.offset if stretch.records else None,
                "records": stretch.records,
                "bytes": stretch.bytes,
                **dict(stretch.events),
            }
            for stretch in timeline.stretches(lines)
        ],
    }


def _when(stretch: TimelineInterval, timeline: Timeline) -> str:
    if not timeline.by_time:
        return f"{stretch.begin:,}"
    return datetime.fromtimestamp(stretch.begin / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _events(stretch: TimelineInterval) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(stretch.events.items()))


class ChainStatus(msgspec.Struct, frozen=True):
    """The status of the committed part of a chain. end_epoch, end: where the last committed record ends.

    recovery_*: what a replay reads, from the newest finished snapshot on, and its estimated time on this
    machine. snapshot_end: the logical offset at which the snapshot ends. below_*: the older segments.
    leftover_*: segments of dead writers that are not part of the chain.
    """

    directory: str
    chain: str
    end_epoch: int
    end: int
    recovery_segments: int
    recovery_bytes: int
    recovery_s: float
    bytes_per_s: float
    snapshot_end: int | None
    below_segments: int
    below_bytes: int
    leftover_segments: int
    leftover_bytes: int

    def as_text(self) -> str:
        snapshot = "none" if self.snapshot_end is None else f"ends at {self.snapshot_end:,}"
        speed = f"{self.recovery_s:.1f} s on this machine ({self.bytes_per_s / 1e6:.0f} MB/s)"
        reads = f"reads {self.recovery_bytes:,} bytes in {self.recovery_segments} segments"
        rows = [
            ("chain", f"{self.chain} in {self.directory}"),
            ("end", f"{self.end:,}, written by epoch {self.end_epoch}"),
            ("recovery", f"{reads}, {speed}"),
            ("snapshot", snapshot),
            ("below", f"{self.below_bytes:,} bytes in {self.below_segments} older segments, not read"),
            (
                "leftovers",
                f"{self.leftover_bytes:,} bytes in {self.leftover_segments} segments of dead writers",
            ),
        ]
        return "\n".join(f"{name:<10} {text}" for name, text in rows)


async def chain_status(url: str, token: bytes, progress: Progress) -> ChainStatus:
    """Return the status of the chain of a URL. Raises as `open_chain` and as reading a chain."""
    async with open_chain(url, token) as (store, directory, state):
        return await _status(store, directory, state, progress)


async def _status(store: StorePort, directory: str, state: ChainState, progress: Progress) -> ChainStatus:
    assert state.end is not None
    bytes_per_s = await _rate(store, directory, state, progress)
    on_chain = {span.name for span in state.segments}
    floor = parse_segment_name(state.segments[0].name) if state.segments else None
    below: list[int] = []
    leftover: list[int] = []
    for seen in segments_seen(state.chain, (await store.inspect(directory)).answers):
        if str(seen.name) not in on_chain:
            is_below = floor is not None and seen.name.order < floor.order
            (below if is_below else leftover).append(seen.longest)
    return ChainStatus(
        directory=directory,
        chain=state.chain,
        end_epoch=state.end.epoch,
        end=state.end.size,
        recovery_segments=len(state.segments),
        recovery_bytes=state.bytes,
        recovery_s=state.bytes / bytes_per_s if bytes_per_s else 0.0,
        bytes_per_s=bytes_per_s,
        snapshot_end=state.snapshot_size if state.segments and state.segments[0].snapshot_end else None,
        below_segments=len(below),
        below_bytes=sum(below),
        leftover_segments=len(leftover),
        leftover_bytes=sum(leftover),
    )


async def _rate(store: StorePort, directory: str, state: ChainState, progress: Progress) -> float:
    if not state.segments:
        return 0.0
    base, read, begun = state.segments[0].base, 0, trio.current_time()
    wanted = min(state.bytes, status_read_bytes_max)
    async with aclosing(read_plain_batches(store, state, directory=directory)) as batches:
        async for batch in batches:
            read = batch[-1][0] - base
            progress(min(read, wanted), wanted)
            if read >= wanted:
                break
    return read / max(trio.current_time() - begun, 1e-6)
