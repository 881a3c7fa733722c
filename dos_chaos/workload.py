"""The writers of the append-set workload, the log of what was acknowledged, and everything that is read at
the end, in every way that a user or an operator could.

Writers and readers trust the store; only the checker judges.
"""

import logging
import os
import random
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, Self

import msgspec
import trio

from dos_chaos import NotConvergedError
from dos_chaos.core.checker import (
    CHAIN,
    DamagedRecordError,
    Verdict,
    WrittenRecord,
    is_manifest,
    judge_chain,
    judge_member,
    make_record,
    read_entry,
)
from dos_client import Claim, QuorumUnavailableError, Store, StoreNotReadyError, backoff_s, open_store
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import (
    BrokenConnectionError,
    CorruptError,
    DosError,
    FencedError,
    NotFoundError,
    PastEndError,
    StaleGenerationError,
)
from journal import (
    ChainState,
    ChainWriter,
    NotEnoughAnswersError,
    Op,
    Position,
    Record,
    Scratch,
    inspect_chain,
    read_batches,
    take_over,
)
from journal.reading import ChainSource

_ENTRY: Final = struct.Struct(">QQQQ")


class AckLog:
    """The writing end. One writer process, one file; a kill leaves whole entries, and at most one part."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, entries: Iterable[WrittenRecord]) -> None:
        os.write(self._file, b"".join(_ENTRY.pack(*entry) for entry in entries))

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def count_acknowledged(path: Path) -> int:
    return path.stat().st_size // _ENTRY.size if path.exists() else 0


def read_log(path: Path) -> list[WrittenRecord]:
    data = path.read_bytes()
    whole = len(data) - len(data) % _ENTRY.size
    return [WrittenRecord(*fields) for fields in _ENTRY.iter_unpack(data[:whole])]


logger: Final = logging.getLogger("dos.chaos")
ROLL_RECORDS: Final = 3_000
LARGE_ONE_IN: Final = 400
LARGE_BYTES_MAX: Final = 150_000
SMALL_BYTES_MAX: Final = 300
NOT_NOW = (
    QuorumUnavailableError,
    NotEnoughAnswersError,
    StaleGenerationError,
    StoreNotReadyError,
    BrokenConnectionError,
)
"""Too few members answer now: waiting cures it."""

Say = Callable[..., object]
"""Receives `claims EPOCH` and `superseded HELD`, as separate arguments."""


def silent(*_: object) -> None:
    """The default of `say`."""


class Meter(Protocol):
    """Decides how fast a workload appends, and learns what was acknowledged."""

    def ready(self) -> bool:
        """Return whether a record may be appended now."""
        ...

    async def wait_ready(self) -> None: ...

    def appended(self, payload_bytes: int) -> None: ...

    def acknowledged(self, directory: str, sent_s: list[float]) -> None:
        """Records were acknowledged now that were appended at these times, on trio's clock."""
        ...


class Unmetered:
    """The meter of a workload that appends as fast as its window allows, and counts nothing."""

    def ready(self) -> bool:
        return True

    async def wait_ready(self) -> None:
        await trio.lowlevel.checkpoint()

    def appended(self, payload_bytes: int) -> None:
        """Nothing is counted."""

    def acknowledged(self, directory: str, sent_s: list[float]) -> None:
        """Nothing is measured."""


async def last_sequence(claim: Claim, state: ChainState) -> int:
    """Return the position of the chain's last record in the history, 0 if it has none."""
    for span in reversed(state.segments):
        last = 0
        only = msgspec.structs.replace(state, segments=(span,))
        async for batch in read_batches(claim, only):
            last = max([last, *(record.tag for _, record in batch if record.op is Op.OUTPUT)])
        if last:
            return last
    return 0


async def take_the_chain_over(
    store: Store, directory: str, scratch: Scratch | None = None, say: Say = silent
) -> tuple[Claim, ChainWriter, int]:
    """Look, claim, take over, open: returns when the own start is acknowledged (R8)."""
    view = await store.inspect(directory)
    claim = await store.claim(directory, view.epoch_seen + 1, os.urandom(16))
    say("claims", claim.epoch)
    try:
        generation = store.record.generation
        state = await take_over(claim, CHAIN, generation=generation, scratch=scratch)
        sequence = await last_sequence(claim, state)
        pipelined = not is_manifest(directory)
        writer = await ChainWriter.open(claim, CHAIN, state, generation, scratch, pipelined=pipelined)
        return claim, writer, sequence
    except DosError as error:
        lost = claim.lost
        await claim.aclose()
        if lost is not None and not isinstance(error, FencedError):
            raise FencedError(str(lost), actual=lost.epoch_held) from error
        raise


async def keep_taking_over(
    store: Store, directory: str, scratch: Scratch | None = None, say: Say = silent
) -> tuple[Claim, ChainWriter, int]:
    attempt = 0
    while True:
        attempt += 1
        try:
            return await take_the_chain_over(store, directory, scratch, say)
        except FencedError as error:
            say("superseded", error.epoch_held)
        except NOT_NOW as error:
            logger.info("not now: %s", error)
        await trio.sleep(backoff_s(attempt, random.random()))  # noqa: S311 - spreads contenders


class Workload:
    """The records of one writer under one claim. Its log has every record that was acknowledged, no other."""

    def __init__(
        self,
        writer: ChainWriter,
        log: AckLog,
        directory: str,
        epoch: int,
        sequence: int,
        meter: Meter | None = None,
    ) -> None:
        self._writer = writer
        self._log = log
        self._directory = directory
        self._epoch = epoch
        self._sequence = sequence
        self._meter = meter or Unmetered()
        self._number = 0
        self._unacknowledged: deque[tuple[int, WrittenRecord, float]] = deque()

    async def run(self, rng: random.Random, window: int) -> None:
        """Append until cancelled, at most `window` records beyond what is acknowledged; 1 in a manifest."""
        window = window if not is_manifest(self._directory) else 1
        while True:
            if not self._unacknowledged:
                await self._meter.wait_ready()
            while len(self._unacknowledged) < window and (not self._unacknowledged or self._meter.ready()):
                self._append(rng)
                await self._writer.wait_room()
                if self._number % ROLL_RECORDS == 0:
                    await self._writer.roll()
            while self._unacknowledged[0][0] > self._writer.synced:
                await self._wait_first()
            self._take_acknowledged()

    def _append(self, rng: random.Random) -> None:
        self._number += 1
        self._sequence += 1
        large = rng.randrange(LARGE_ONE_IN) == 0
        payload = rng.randbytes(rng.randrange(LARGE_BYTES_MAX if large else SMALL_BYTES_MAX))
        record, entry = make_record(self._directory, self._epoch, self._number, self._sequence, payload)
        self._unacknowledged.append((self._writer.append(record).size, entry, trio.current_time()))
        self._meter.appended(len(payload))

    async def _wait_first(self) -> None:
        end = self._writer.end
        first = msgspec.structs.replace(end, size=self._unacknowledged[0][0])
        await self._writer.wait_synced(first)

    def _take_acknowledged(self) -> None:
        # Every record whose end the synced watermark has reached, and no other: the log is the proof.
        synced, entries, sent_s = self._writer.synced, [], []
        while self._unacknowledged and self._unacknowledged[0][0] <= synced:
            _, entry, sent = self._unacknowledged.popleft()
            entries.append(entry)
            sent_s.append(sent)
        self._log.write(entries)
        self._meter.acknowledged(self._directory, sent_s)


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
    return {
        member.address: {
            name: await read_copy(claim, name, content, member.server_id) for name, content in chain.items()
        }
        for member in store.members()
    }


async def read_copy(claim: Claim, name: str, content: bytes, member: bytes) -> bytes | None:
    """Return one member's copy, up to the length of `content`; None if the member finds it damaged."""
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
    return content if copy == content else bytes(copy)  # equal copies take no memory


def entries_of(directory: str, batch: list[tuple[Position, Record]]) -> Iterator[WrittenRecord | None]:
    for _, record in batch:
        if record.op is Op.OUTPUT:
            try:
                yield read_entry(directory, record)
            except DamagedRecordError:
                yield None


def is_on(position: Position, found: Found) -> bool:
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
