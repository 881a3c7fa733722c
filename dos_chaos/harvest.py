"""After the faults, read everything in every way that a user or an operator could.

It reads and takes over; the checker judges. For each chain, in this order: a committed read while its last
writer is dead, a new take-over and its records, all members in sync, each member's copy on request, and a
committed read after that.
"""

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from dos_chaos.core.checker import Verdict, judge_chain, judge_member
from dos_chaos.core.records import CHAIN, DamagedRecordError, WrittenRecord, read_entry
from dos_chaos.errors import NotConvergedError
from dos_client import Claim, Store, backoff_s, open_store
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import CorruptError, DosError, FencedError, NotFoundError, PastEndError
from journal import ChainState, ChainWriter, Op, Position, Record, inspect_chain, read_batches, take_over
from journal.reading import ChainSource

IN_SYNC_S = 60.0
TAKE_OVER_S = 90.0


@dataclass(slots=True)
class Found:
    """One directory. `chain`: segment -> its bytes, the oldest first. `entries`: None for a damaged one.

    `copies`: member -> segment -> the bytes that this member returned, None for a copy that is damaged.
    """

    state: ChainState
    chain: dict[str, bytes] = field(default_factory=dict)
    copies: dict[str, dict[str, bytes | None]] = field(default_factory=dict)
    entries: list[WrittenRecord | None] = field(default_factory=list)
    committed_before: Position | None = None
    committed_after: Position | None = None


class CommittedReader:
    """Reads chains during the faults, as any reader may, and records what it received (R10)."""

    def __init__(self, url: str, directories: list[str], token: bytes = b"") -> None:
        self.returned: dict[str, list[Position]] = {directory: [] for directory in directories}
        self._url = url
        self._token = token

    async def run(self, pause_s: float = 0.5) -> None:
        """Run until canceled. A read fails if too few members are available, or during a take-over."""
        while True:
            try:
                async with open_store(self._url, token=self._token, client="reader") as store:
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
async def taken_over(store: Store, directory: str) -> AsyncIterator[tuple[Claim, ChainState]]:
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
        writer = await ChainWriter.open(claim, CHAIN, state, store.record.generation)
        yield claim, state
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


async def harvest(url: str, directory: str, *, token: bytes = b"", copies: bool = False) -> Found:
    """Read one directory from the servers. Its writers are dead. `copies`: from each member alone, too."""
    with trio.fail_after(TAKE_OVER_S + IN_SYNC_S):
        async with open_store(url, token=token, client="checker") as store:
            before = (await inspect_chain(store, directory, CHAIN)).end
            async with taken_over(store, directory) as (claim, state):
                found = Found(state, committed_before=before)
                for span in state.segments:
                    parts = [part async for part in ChainSource(claim).chunks(span.name, span.length)]
                    found.chain[span.name] = b"".join(parts)
                async for batch in read_batches(store, state, directory=directory):
                    found.entries += entries_of(directory, batch)
                if copies:
                    await in_sync(store)
                    found.copies = await copies_of(store, claim, found.chain)
            found.committed_after = (await inspect_chain(store, directory, CHAIN)).end
            return found


async def copies_of(
    store: Store, claim: Claim, chain: Mapping[str, bytes]
) -> dict[str, dict[str, bytes | None]]:
    """Return each member's copies of the segments of a chain, read from that member alone."""
    return {
        member.address: {
            name: await read_copy(claim, name, content, member.server_id) for name, content in chain.items()
        }
        for member in store.members()
    }


async def read_copy(claim: Claim, name: str, content: bytes, member: bytes) -> bytes | None:
    """Return one member's copy, up to the length of `content`; None if the member finds it damaged.

    A copy that is equal to `content` is returned as `content` itself, so that equal copies take no memory.
    """
    copy = bytearray()
    while len(copy) < len(content):
        try:
            part = await claim.read(name, len(copy), len(content) - len(copy), member=member)
        except CorruptError:
            return None
        except (NotFoundError, PastEndError):
            break
        if not part:
            break
        copy += part
    return content if copy == content else bytes(copy)


def entries_of(directory: str, batch: list[tuple[Position, Record]]) -> Iterator[WrittenRecord | None]:
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


def judge_directory(
    verdict: Verdict,
    directory: str,
    found: Found,
    acknowledged: list[WrittenRecord],
    returned: list[Position],
) -> None:
    """Judge one directory. `returned`: what committed reads returned during the faults."""
    judge_chain(verdict, directory, acknowledged, found.entries)
    _judge_reads(verdict, directory, found, returned)
    for member, held in found.copies.items():
        judge_member(verdict, f"{member} {directory}", found.chain, held)


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
