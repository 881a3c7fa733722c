"""Entry points in one process, on a store in memory and real sockets; a reader like a region at a site."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pyarrow as pa
import trio

from checkpoint.chains.input_log import InputHandle
from checkpoint.core.records.inputs import EntrySettings, InputPiece
from checkpoint.core.records.manifest import SplitPosition
from dataflow.core.entry_messages import EntryStatus
from dataflow.core.event_time import InputMarks, SourceTime, is_time
from dataflow.entry.sending import EntryLink
from dataflow.entry.serving import EntryOptions, EntryPoint, serve_entry
from dos_client import Store

SCHEMA = "number bigint"
FAST = EntrySettings(marks_every_us=50_000)


class Site:
    """One entry point, which can be stopped, or cut off from its clock."""

    def __init__(self, point: EntryPoint, scope: trio.CancelScope) -> None:
        self.point = point
        self.kill = scope.cancel

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.point.address[1]}"


@asynccontextmanager
async def site(
    store: Store,
    name: str = "s1",
    *,
    peers: tuple[str, ...] = (),
    settings: EntrySettings | None = FAST,
    wall_ns: Callable[[], int] = time.time_ns,
    application: str = "app",
) -> AsyncIterator[Site]:
    options = EntryOptions(name, peers, settings, wall_ns=wall_ns)
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def run(task_status: "trio.TaskStatus[EntryPoint]") -> None:
            with scope:
                await serve_entry(store, application, "loads", options, task_status=task_status)

        yield Site(await nursery.start(run), scope)
        nursery.cancel_scope.cancel()


class Reader:
    """All that a region at some site reads, and its input mark."""

    def __init__(self, store: Store) -> None:
        self.handle = InputHandle(store, "app", "loads")
        self.pieces: dict[str, list[InputPiece]] = {}
        self.marks = InputMarks()
        self.watermark = -1

    async def read(self) -> "Reader":
        for split in await self.handle.splits():
            known = self.pieces.setdefault(split, [])
            at = SplitPosition(known[-1].end, known[-1].digest) if known else SplitPosition(0)
            async for piece in self.handle.follower(split, at).poll():
                known.append(piece)
                if piece.mark is None:
                    assert all(at > self.watermark for at, _ in rows_of([piece])), "below the input mark"
                else:
                    mark = piece.mark
                    self.marks.marked("s", split, mark.mark, origin=mark.origin, version=mark.version)
        reached = self.marks.of_source("s", SourceTime()).watermark
        self.watermark = max(self.watermark, reached) if is_time(reached) else self.watermark
        return self

    def rows(self, split: str) -> list[tuple[int, int]]:
        return rows_of(self.pieces.get(split, []))


def rows_of(pieces: list[InputPiece], *, late: bool = False) -> list[tuple[int, int]]:
    found = []
    for piece in pieces:
        if data := piece.late if late else piece.data:
            table = pa.ipc.open_stream(data).read_all()
            found += [
                *zip(table["at"].cast(pa.int64()).to_pylist(), table["number"].to_pylist(), strict=True)
            ]
    return found


async def until(condition: Callable[[], object], what: str) -> None:
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - the state of another task
            await trio.sleep(0.02)
    assert condition(), what


async def marked_until(reader: Reader, now_us: int) -> None:
    with trio.fail_after(20):
        while (await reader.read()).watermark < now_us:  # noqa: ASYNC110 - of what is in the store
            await trio.sleep(0.05)


async def status_of(of: Site) -> EntryStatus:
    async with EntryLink.opened(of.address, "app", "loads", b"") as link:
        return await link.ask()


def numbers(*values: int) -> list[dict[str, int]]:
    return [{"number": value} for value in values]
