"""Steps of a take-over on the store in memory, in which the test carries every message."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio
import trio.testing

from journal import (
    ChainState,
    ChainWriter,
    Op,
    Position,
    Record,
    inspect_chain,
    read_records,
    take_over,
)
from journal.reading import ChainSource, survey
from tests.journal.memory_store import DIRECTORY, MemoryClaim, MemoryStore, PartialStore


def note(text: str) -> Record:
    return Record(Op.OUTPUT, strings=(text.encode(),))


def notes(records: Iterable[tuple[Position, Record]]) -> list[str]:
    return [record.strings[0].decode() for _, record in records if record.op is Op.OUTPUT]


async def taken(claim: MemoryClaim, at: Position | None = None) -> ChainState:
    return await take_over(claim, "J", at=at, generation=1, wait_s=0)


async def texts_of(claim: MemoryClaim, state: ChainState) -> list[str]:
    return notes([step async for step in read_records(claim, state)])


async def inspected(store: MemoryStore | PartialStore) -> ChainState:
    """The committed chain. An inspection that measures nothing finds the same one, and perhaps the beginning
    of one more record of a pipelined chain."""
    state = await inspect_chain(store, DIRECTORY, "J")
    found = await inspect_chain(store, DIRECTORY, "J", measured=False)
    assert found.segments[:-1] == state.segments[:-1]
    assert len(found.segments) == len(state.segments)
    for quick, head in zip(found.segments[-1:], state.segments[-1:], strict=True):
        surveyed = await survey(ChainSource(store, DIRECTORY), quick.name, quick.length, (), quick.length)
        assert (quick.name, surveyed.last.bytes) == (head.name, head.length), "R10"
        assert quick.snapshot_end == head.snapshot_end
    return state


async def committed_texts(store: MemoryStore | PartialStore) -> list[str]:
    state = await inspected(store)
    return notes([step async for step in read_records(store, state, directory=DIRECTORY)])


@asynccontextmanager
async def opening(
    claim: MemoryClaim, state: ChainState | None, **options: object
) -> AsyncIterator[list[ChainWriter]]:
    """`ChainWriter.open` under way in the background; the list gets the writer if it ever returns."""
    done: list[ChainWriter] = []

    async def run() -> None:
        done.append(await ChainWriter.open(claim, "J", state, 1, **options))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        yield done
        nursery.cancel_scope.cancel()


async def first_writer(store: MemoryStore, *texts: str) -> tuple[MemoryClaim, ChainWriter]:
    """A: epoch 1 on all members, with these notes synced everywhere."""
    claim = store.claim(1)
    writer = await ChainWriter.open(claim, "J", None, 1, pipelined=False)
    for text in texts:
        writer.append(note(text))
        await writer.wait_synced()
    return claim, writer


async def on_member_1(store: MemoryStore, text: str) -> tuple[MemoryClaim, ChainWriter]:
    """A, whose note follows "base" and has reached member 1 only. Later messages of A are held back."""
    claim, writer = await first_writer(store, "base")
    claim.held = True
    writer.append(note(text))
    claim.deliver(1)
    return claim, writer
