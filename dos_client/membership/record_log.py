"""Decide store records: the log of `core.record_log`, on a claim of the store.

This module takes the log over, appends, and waits for the quorum. `core.replacement` decides the records.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from dos_client import randomness
from dos_client.core import record_log
from dos_client.core.backoff import backoff_s
from dos_client.core.change_log import BEAT, CHANGES, Change
from dos_client.core.json_log import Entry, JsonLog
from dos_client.core.override_log import OVERRIDES, Override
from dos_client.limits import take_over_attempts_max
from dos_client.live_store import Store
from dos_client.reading.sessions import read_one
from dos_client.writing.claim import Claim
from dos_client.writing.object_writer import ObjectWriter
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import BrokenConnectionError, DosError, FencedError
from dos_protocol.store_record import StoreRecord

_T = TypeVar("_T")


class RecordLog:
    """The log after a take-over. `last`: the newest record decided or in use."""

    def __init__(self, claim: Claim, writer: ObjectWriter, last: StoreRecord) -> None:
        self.last = last
        self._claim = claim
        self._writer = writer
        self._overrides: ObjectWriter | None = None
        self._history: ObjectWriter | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the claim."""
        return self._claim.epoch

    def check(self) -> None:
        """Raise FencedError if another run has taken the log over, which ends this one."""
        self._claim.check()

    async def decide(self, record: StoreRecord) -> None:
        """Decide the record for its generation. Raises FencedError if another run has taken the log over."""
        if record.generation != self.last.generation + 1:
            raise ValueError(f"generation {record.generation} does not follow {self.last.generation}")
        await self._writer.wait_synced(self._writer.append(record_log.encode_entry(record)))
        self.last = record

    async def note(self, entry: Override) -> None:
        """Write an override entry on a quorum. Raises as `decide`."""
        if self._overrides is None:
            self._overrides = self._claim.open_object(OVERRIDES.object_name(self._claim.epoch))
        await self._overrides.wait_synced(self._overrides.append(OVERRIDES.encode(entry)))

    async def record_change(self, change: Change) -> None:
        """Write an entry of the history on a quorum. Raises as `decide`."""
        writer = self._history_writer()
        await writer.wait_synced(writer.append(CHANGES.encode(change)))

    def beat(self) -> None:
        """Show that this run works. Raises FencedError if another run has taken the log over."""
        self._history_writer().append(BEAT)

    def _history_writer(self) -> ObjectWriter:
        if self._history is None:
            self._history = self._claim.open_object(CHANGES.object_name(self._claim.epoch))
        return self._history


async def read_overrides(store: Store) -> list[Override]:
    """Return what people forced on the store, oldest first.

    Raises QuorumUnavailableError, or BrokenConnectionError if members repeatedly disconnect during the read.
    """
    return await read_log(store, OVERRIDES)


async def read_log(store: Store, log: JsonLog[Entry]) -> list[Entry]:
    """Return the entries of a log of this directory. Raises as `read_overrides`."""
    return await _retry(lambda store: _read_log_once(store, log), store, BrokenConnectionError)


async def _read_log_once(store: Store, log: JsonLog[Entry]) -> list[Entry]:
    view = await store.inspect(record_log.DIRECTORY)
    holders = record_log.record_in(store.record, record_log.DIRECTORY)
    entries: list[Entry] = []
    for name in log.names(view.answers):
        copy = record_log.longest(view.answers, name)
        if copy is None or not copy[1].synced:
            continue
        member = holders.member(copy[0])  # only this member is sure to have the entry's bytes
        if member is None:
            raise BrokenConnectionError("a member left the store during the read")
        connection = await store.reader(member, record_log.DIRECTORY)
        entries += log.decode(await read_one(connection, name, 0, copy[1].synced))
    return entries


@asynccontextmanager
async def open_record_log(store: Store, *, seen_epoch: int | None = None) -> AsyncIterator[RecordLog]:
    """Take the log over. From then on no other run decides anything.

    seen_epoch: the epoch of the log when the caller decided to act. A run that has taken the log over since
    is not interrupted: FencedError is raised instead.

    Raises QuorumUnavailableError if too few members are available, FencedError if others repeatedly take it
    over.
    """
    if seen_epoch is None:
        # superseded before the start is acknowledged: begin again (R17)
        claim, log = await _retry(_take_over_once, store, FencedError)
    else:
        claim, log = await _take_over_once(store, seen_epoch)
    async with claim:
        yield log


async def _retry(
    attempt_once: Callable[[Store], Awaitable[_T]], store: Store, transient: type[DosError]
) -> _T:
    """Retry after each `transient` error, with a random, doubling pause, at most `take_over_attempts_max`
    times.
    """
    attempt = 0
    while True:
        attempt += 1
        try:
            return await attempt_once(store)
        except transient:
            if attempt == take_over_attempts_max:
                raise
            await trio.sleep(backoff_s(attempt, store.rng.random()))


async def _take_over_once(store: Store, seen_epoch: int | None = None) -> tuple[Claim, RecordLog]:
    view = await store.inspect(record_log.DIRECTORY)
    if seen_epoch is not None and view.epoch_seen > seen_epoch:
        raise FencedError(
            f"another run has taken {record_log.DIRECTORY} over: epoch {view.epoch_seen}, not {seen_epoch}",
            actual=view.epoch_seen,
        )
    # Of two runs that saw the same epoch, at most one gets the next one on a quorum.
    claim = await store.claim(record_log.DIRECTORY, view.epoch_seen + 1, randomness.fresh_id())
    try:
        last = record_log.last_of(await _settle_all(claim), store.record)
        writer = claim.open_object(record_log.object_name(claim.epoch))
        await writer.wait_synced(writer.append(record_log.encode_entry(last)))
    except BaseException:
        with trio.CancelScope(shield=True):
            await claim.aclose()
        raise
    return claim, RecordLog(claim, writer, last)


async def _settle_all(claim: Claim) -> list[StoreRecord]:
    """Settle every object of the log on a quorum (R7). Returns the entries of the head (R5).

    Objects before the head are settled too, so that a joining member has them all. They are few and small.
    """
    head: list[StoreRecord] = []
    for name in record_log.names_newest_first(claim.answers):
        copy = record_log.longest(claim.answers, name)
        if copy is None or not copy[1].synced:
            continue
        member, info = copy
        data = await claim.read(name, 0, info.synced, member)
        entries, complete_bytes = record_log.decode_entries(data)
        await claim.settle(name, complete_bytes, prefix_digest(data[:complete_bytes]))
        head = head or entries
    return head
