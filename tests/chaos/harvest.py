"""After the faults, read everything in every way that a user or an operator could.

It reads and takes over; the checker judges. For each chain, in this order: a committed read while its last
writer is dead, a new take-over and its records, a committed read after it, all members in sync, and, when the
servers are dead, each member's disk.
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from dos_client import Store, open_store
from dos_client.core.backoff import backoff_s
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import DosError, FencedError
from journal import ChainState, ChainWriter, Op, Position, Record, inspect_chain, read_batches, take_over
from journal.reading import ChainSource
from tests.chaos.checker import Verdict, judge_chain, judge_member
from tests.chaos.disks import read_object
from tests.chaos.records import CHAIN, DamagedRecordError, Entry, read_entry

IN_SYNC_S = 60.0
TAKE_OVER_S = 90.0


class NotConvergedError(Exception):
    """After the heal, something did not recover in time."""


@dataclass(slots=True)
class Found:
    """One directory. `chain`: segment -> its bytes, the oldest first. `entries`: None for a damaged one."""

    state: ChainState
    chain: dict[str, bytes] = field(default_factory=dict)
    entries: list[Entry | None] = field(default_factory=list)
    committed_before: Position | None = None
    committed_after: Position | None = None


class CommittedReader:
    """Reads chains during the faults, as any reader may, and records what it received (R10)."""

    def __init__(self, url: str, directories: list[str]) -> None:
        self.returned: dict[str, list[Position]] = {directory: [] for directory in directories}
        self._url = url

    async def run(self, pause_s: float = 0.5) -> None:
        """Run until canceled. A read fails if too few members are available, or during a take-over."""
        while True:
            try:
                async with open_store(self._url, client="reader") as store:
                    while True:
                        for directory, returned in self.returned.items():
                            await self._read_once(store, directory, returned)
                        await trio.sleep(pause_s)
            except DosError:
                await trio.sleep(pause_s)

    async def _read_once(self, store: Store, directory: str, returned: list[Position]) -> None:
        try:
            state = await inspect_chain(store, directory, CHAIN)
        except DosError:
            return
        if state.end is not None:
            returned.append(state.end)


@asynccontextmanager
async def taken_over(store: Store, directory: str) -> AsyncIterator[tuple[ChainSource, ChainState]]:
    """A fresh take-over of a chain, to its own start acknowledged (R8)."""
    attempt = 0
    while True:
        attempt += 1
        view = await store.inspect(directory)
        try:
            claim = await store.claim(directory, view.epoch_seen + 1, os.urandom(16))
        except FencedError:
            await trio.sleep(backoff_s(attempt, 1.0))
            continue
        break
    async with claim:
        state = await take_over(claim, CHAIN, generation=store.record.generation)
        source = ChainSource(claim)
        writer = await ChainWriter.open(claim, CHAIN, state, store.record.generation)
        yield source, state
        await in_sync(store)
        await writer.aclose()


async def in_sync(store: Store) -> None:
    """Until every member has everything this claim knows, the chain's old segments too."""
    with trio.move_on_after(IN_SYNC_S):
        while any(member.state != "in sync" for member in store.members()):  # noqa: ASYNC110 - the client's own view
            await trio.sleep(0.02)
        return
    states = "; ".join(f"{one.address} {one.state} {one.error}" for one in store.members())
    raise NotConvergedError(f"members are not in sync after {IN_SYNC_S:g} s: {states}")


async def harvest(url: str, directory: str) -> Found:
    """Read one directory from the servers. Its writers are dead."""
    with trio.fail_after(TAKE_OVER_S + IN_SYNC_S):
        async with open_store(url, client="checker") as store:
            before = (await inspect_chain(store, directory, CHAIN)).end
            async with taken_over(store, directory) as (source, state):
                found = Found(state, committed_before=before)
                for span in state.segments:
                    parts = [part async for part in source.chunks(span.name, span.length)]
                    found.chain[span.name] = b"".join(parts)
                async for batch in read_batches(store, state, directory=directory):
                    found.entries += entries_of(directory, batch)
            found.committed_after = (await inspect_chain(store, directory, CHAIN)).end
            return found


def entries_of(directory: str, batch: list[tuple[Position, Record]]) -> Iterator[Entry | None]:
    for _, record in batch:
        if record.op is Op.OUTPUT:
            try:
                yield read_entry(directory, record)
            except DamagedRecordError:
                yield None


def is_on(position: Position, found: Found) -> bool:
    """Return whether a position is on the chain: epoch, size, and the digest of the bytes there."""
    for span in found.state.segments:
        if span.base < position.size <= span.base + span.length and span.end.epoch == position.epoch:
            return prefix_digest(found.chain[span.name][: position.size - span.base]) == position.digest
    return False


@dataclass(slots=True)
class Evidence:
    """The evidence of a run, by directory. `returned`: what committed reads returned during the faults;
    `disks`: the data directories of the members, whose servers are dead."""

    acknowledged: dict[str, list[Entry]]
    found: dict[str, Found]
    returned: dict[str, list[Position]]
    disks: list[Path]


def judge(evidence: Evidence) -> Verdict:
    """Everything, against everything."""
    verdict = Verdict()
    for directory, found in evidence.found.items():
        judge_chain(verdict, directory, evidence.acknowledged[directory], found.entries)
        _judge_reads(verdict, directory, found, evidence.returned[directory])
        for data in evidence.disks:
            held = {name: read_object(data, directory, name) for name in found.chain}
            judge_member(verdict, f"{data.name} {directory}", found.chain, held)
    return verdict


def _judge_reads(verdict: Verdict, directory: str, found: Found, returned: list[Position]) -> None:
    reads = [*returned, *([found.committed_before] if found.committed_before is not None else [])]
    verdict.committed_reads += len(reads)
    for position in reads:
        if not is_on(position, found):
            verdict.vanished += 1
            verdict.note(f"{directory}: a committed read showed {position}, which is not on the chain")
    end, after = found.state.end, found.committed_after
    if end is not None and (after is None or after.size < end.size):
        verdict.vanished += 1
        verdict.note(f"{directory}: after a take-over at {end} a committed read returns {after}")
