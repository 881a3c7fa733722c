"""Shares of batches on their way from tasks into a worker: whole or not there, and bounded in memory."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
import trio

from checkpoint import (
    BatchShare,
    ChannelFrame,
    FrameType,
    LinkHello,
    OpenBatch,
    control_frame,
    job_digest,
)
from checkpoint.errors import LinkClosedError
from checkpoint.link import Link, connect_link, serve_links
from dataflow import limits
from dataflow.errors import UserFault
from dataflow.sources.batches import BatchSource
from dataflow.worker.failures import failure_of
from dataflow.worker.partitioning import encode_batch
from dataflow.worker.shares import HeldRows, HeldShares
from dos_protocol.errors import BrokenConnectionError, RemoteProtocolError
from tests.support.small_disk import small_disk

KEY, JOB = b"k" * 32, "words"
SCHEMA = pa.schema([("n", pa.int64())])
INPUTS = ("orders", "payments")

pytestmark = pytest.mark.trio


def share(attempt: str, number: int = 0) -> BatchShare:
    return BatchShare(job=JOB, incarnation=1, number=number, time_us=5, attempt=attempt)


def order(attempt: str) -> OpenBatch:
    return OpenBatch(job=JOB, incarnation=1, number=0, time_us=5, attempt=attempt)


def payload(n: int, rows: int = 1) -> memoryview:
    return encode_batch(pa.record_batch([[n] * rows], schema=SCHEMA))


def frames(
    of: BatchShare, rows: Sequence[tuple[int, memoryview]], claims: int = -1
) -> Iterable[ChannelFrame]:
    yield control_frame(of)
    job = job_digest(JOB)
    for seq, (channel, data) in enumerate(rows):
        yield ChannelFrame(FrameType.DATA, job=job, sender_epoch=1, seq=seq, channel=channel, payload=data)
    yield ChannelFrame(FrameType.STEP_END, 0, job, 1, seq=len(rows) if claims < 0 else claims)


@asynccontextmanager
async def linked() -> AsyncGenerator[tuple[Link, Link]]:
    """The two ends of a link: of the task, and of the worker."""
    ends: list[Link] = []
    arrived, over = trio.Event(), trio.Event()

    async def accepted(link: Link) -> None:
        ends.append(link)
        arrived.set()
        await over.wait()

    async with trio.open_nursery() as nursery:
        address = await nursery.start(partial(serve_links, accepted, job=JOB, key=KEY))
        hello = LinkHello(role="batch", job=JOB, worker=-1, attempt=0, incarnation=1)
        task = await connect_link(*address, key=KEY, hello=hello)
        await arrived.wait()
        yield task, ends[0]
        await task.aclose()
        over.set()
        nursery.cancel_scope.cancel()


def is_empty(directory: Path) -> bool:
    return not any(directory.iterdir())


def taken(rows: HeldRows) -> list[int]:
    found = []
    while rows:
        found += rows.take(SCHEMA)[0].column("n").to_pylist()
    return found


async def test_a_share_is_fed_in_order_although_its_link_has_ended_and_others_are_dropped() -> None:
    held = HeldShares(INPUTS, "")
    async with linked() as (task, worker):
        for attempt in ("a", "b"):
            rows = [(n % 2, payload(n)) for n in range(10 if attempt == "a" else 4)]
            await task.send_many(frames(share(attempt), rows))
            assert await held.receive(worker) == share(attempt)
    opened = held.take(order("a"))
    assert [taken(opened[name]) for name in INPUTS] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    with pytest.raises(AssertionError, match="has acknowledged no such share"):
        held.take(order("b"))


async def test_rows_above_the_limit_wait_on_the_disk_of_all_attempts_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = len(payload(0))
    monkeypatch.setattr(limits, "share_memory_bytes_max", 5 * one)
    held = HeldShares(INPUTS, str(tmp_path))
    async with linked() as (task, worker):
        for attempt, count in (("a", 3), ("b", 40)):
            await task.send_many(frames(share(attempt), [(0, payload(n)) for n in range(count)]))
            await held.receive(worker)
    assert is_empty(tmp_path), "a worker that is killed leaves no file"
    opened = held.take(order("b"))["orders"]
    assert opened.memory_bytes == 2 * one
    reader = BatchSource(SCHEMA).open(None)  # type: ignore[arg-type]  # it needs no context
    reader.begin(0, opened)
    found = []
    while (batch := reader.read(3 * one)) is not None:
        assert batch.batch.num_rows <= 3, "as much as a step takes is decoded, not the share"
        found += batch.batch.column("n").to_pylist()
    assert found == list(range(40))


async def test_a_disk_that_is_full_resets_the_region_and_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "share_memory_bytes_max", 0)
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        held = HeldShares(INPUTS, str(disk.path))
        async with linked() as (task, worker), trio.open_nursery() as nursery:
            nursery.start_soon(task.send_many, frames(share("a"), [(0, payload(1, 500_000))]))
            with pytest.raises(UserFault, match="rows of a batch could not be written") as raised:
                await held.receive(worker)
            nursery.cancel_scope.cancel()
    report = failure_of(raised.value)
    assert report.kind == "reset"
    assert "start the region with scratch= on a larger one" in report.message


@pytest.mark.parametrize(
    ("rows", "claims", "words"),
    [
        ([(0, payload(1))], 2, "a share of 1 frames ends with STEP_END 2"),
        ([(2, payload(1))], -1, "rows of input 2 of 2"),
    ],
)
async def test_a_share_that_is_not_whole_or_not_of_this_graph_is_not_held(
    rows: list, claims: int, words: str
) -> None:
    held = HeldShares(INPUTS, "")
    async with linked() as (task, worker):
        await task.send_many(frames(share("a"), rows, claims))
        with pytest.raises(RemoteProtocolError, match=words):
            await held.receive(worker)
    with pytest.raises(AssertionError, match="no such share"):
        held.take(order("a"))


async def test_a_share_whose_task_is_killed_is_not_held() -> None:
    held = HeldShares(INPUTS, "")
    async with linked() as (task, worker):
        sent = list(frames(share("a"), [(0, payload(n)) for n in range(5)]))
        await task.send_many(sent[:-1])
        await task.aclose()
        with pytest.raises((LinkClosedError, BrokenConnectionError)):
            await held.receive(worker)
    with pytest.raises(AssertionError, match="no such share"):
        held.take(order("a"))
