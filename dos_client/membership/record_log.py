"""Decide store records, and write who changed the store, when and why: `core.logs`, on a claim of the store.

This module takes the log over, appends, and waits for the quorum. `core.replacement` decides the records.
"""

import getpass
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import trio

from dos_client import randomness
from dos_client.core import logs
from dos_client.core.logs import BEAT, CHANGES, RECORDS, Change, Entry, StoreLog, merge
from dos_client.limits import change_beat_s, change_end_s, take_over_attempts_max
from dos_client.live_store import Store
from dos_client.randomness import backoff_s
from dos_client.reading.member_queries import read_one
from dos_client.tasks import background_tasks
from dos_client.writing.claim import Claim
from dos_client.writing.object_writer import ObjectWriter
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import BrokenConnectionError, DosError, FencedError
from dos_protocol.names import id_text
from dos_protocol.store_record import Member, StoreRecord

_T = TypeVar("_T")


class RecordLog:
    """The logs of a store under one claim. `last`: the newest record that is decided."""

    def __init__(self, claim: Claim, last: StoreRecord) -> None:
        self.claim, self.last = claim, last
        self._writers: dict[str, ObjectWriter] = {}

    def check(self) -> None:
        """Raise FencedError if another run has taken the log over, which ends this one."""
        self.claim.check()

    async def decide(self, record: StoreRecord) -> None:
        """Decide the record for its generation. Raises FencedError if another run has taken the log over."""
        # Two records of one generation would be two stores that both confirm theirs.
        if record.generation != self.last.generation + 1:
            raise ValueError(f"generation {record.generation} does not follow {self.last.generation}")
        await self.write(RECORDS, record)
        self.last = record

    async def write(self, log: StoreLog[Entry], entry: Entry) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()  # an entry that is appended is sent in any case
        writer = self._writer_of(log)
        await writer.wait_synced(writer.append(log.encode(entry)))

    def beat(self) -> None:
        self._writer_of(CHANGES).append(BEAT)

    def _writer_of(self, log: StoreLog[Any]) -> ObjectWriter:
        name = log.object_name(self.claim.epoch)
        if name not in self._writers:
            self._writers[name] = self.claim.open_object(name)
        return self._writers[name]


async def read_log(store: Store, log: StoreLog[Entry]) -> list[Entry]:
    """Return a log's entries. Raises QuorumUnavailableError, BrokenConnectionError after retries."""
    return await _retry(lambda store: _read_log_once(store, log), store, BrokenConnectionError)


async def _read_log_once(store: Store, log: StoreLog[Entry]) -> list[Entry]:
    view = await store.inspect(logs.DIRECTORY)
    holders = logs.record_in(store.record, logs.DIRECTORY)
    entries: list[Entry] = []
    for name in log.names(view.answers):
        copy = logs.longest(view.answers, name)
        if copy is None or not copy[1].synced:
            continue
        member = holders.member(copy[0])  # only this member is sure to have the entry's bytes
        if member is None:
            raise BrokenConnectionError("a member left the store during the read")
        connection = await store.reader(member, logs.DIRECTORY)
        entries += log.decode(await read_one(connection, name, 0, copy[1].synced))
    return entries


@asynccontextmanager
async def open_record_log(store: Store, *, seen_epoch: int | None = None) -> AsyncIterator[RecordLog]:
    """Take the log over: no other run decides anything from then on. Raises QuorumUnavailableError,
    FencedError.

    seen_epoch: of the log when the caller decided to act. A run that has taken the log over since is not
    interrupted.
    """
    if seen_epoch is None:
        # superseded before the start is acknowledged: begin again (R17)
        records = await _retry(_take_over_once, store, FencedError)
    else:
        records = await _take_over_once(store, seen_epoch)
    async with records.claim:
        yield records


async def _retry(
    attempt_once: Callable[[Store], Awaitable[_T]], store: Store, transient: type[DosError]
) -> _T:
    attempt = 0
    while True:
        attempt += 1
        try:
            return await attempt_once(store)
        except transient:
            if attempt == take_over_attempts_max:
                raise
            await trio.sleep(backoff_s(attempt, store.rng.random()))


async def _take_over_once(store: Store, seen_epoch: int | None = None) -> RecordLog:
    view = await store.inspect(logs.DIRECTORY)
    if seen_epoch is not None and view.epoch_seen > seen_epoch:
        raise FencedError(
            f"another run has taken {logs.DIRECTORY} over: epoch {view.epoch_seen}, not {seen_epoch}",
            actual=view.epoch_seen,
        )
    # Of two runs that saw the same epoch, at most one gets the next one on a quorum.
    claim = await store.claim(logs.DIRECTORY, view.epoch_seen + 1, randomness.fresh_id())
    try:
        decided = [store.record, *await _settle_all(claim)]
        records = RecordLog(claim, max(decided, key=lambda record: record.generation))
        await records.write(RECORDS, records.last)
    except BaseException:
        with trio.CancelScope(shield=True):
            await claim.aclose()
        raise
    return records


async def _settle_all(claim: Claim) -> list[StoreRecord]:
    """Settle every object of the log on a quorum (R7). Returns the entries of the head (R5)."""
    head: list[StoreRecord] = []
    # objects before the head, too: a joining member must have them all, and they are few and small
    for name in reversed(RECORDS.names(claim.answers)):
        copy = logs.longest(claim.answers, name)
        if copy is None or not copy[1].synced:
            continue
        member, info = copy
        data = await claim.read(name, 0, info.synced, member)
        entries, complete_bytes = logs.decode_records(data)
        await claim.settle(name, complete_bytes, prefix_digest(data[:complete_bytes]))
        head = head or entries
    return head


log: Final = logging.getLogger("dos.client")


def named(*members: Member | None) -> str:
    return ", ".join(names_of(one for one in members if one is not None))


def names_of(members: Iterable[Member]) -> list[str]:
    return [f"{one.address} ({id_text(one.server_id)})" for one in members]


def this_user() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def change_now(
    store: Store, what: str, *, old: str = "", new: str = "", why: str = "", automatic: bool = False
) -> Change:
    """Return the first entry of a change that begins now."""
    by = f"{this_user()}, {store.access.client or 'dos'}"
    return Change(what, now_text(), by, store.record.generation, old, new, why, automatic)


@asynccontextmanager
async def recorded(store: Store, records: RecordLog, change: Change) -> AsyncIterator[None]:
    """Write the entries of a change before and after the block, and beats during it. If it is canceled, there
    is no second entry.
    """
    await records.write(CHANGES, change)
    failure: Exception | None = None
    try:
        async with background_tasks() as nursery:
            nursery.start_soon(_beat, records)
            yield
    except Exception as error:  # raised below, after it is in the history
        failure = error
    outcome = "done" if failure is None else f"failed: {failure.args[0] if failure.args else failure!r}"
    end = replace(change, at=now_text(), generation=store.record.generation, outcome=outcome)
    try:
        with trio.move_on_after(change_end_s):
            await records.write(CHANGES, end)
    except DosError as error:
        log.warning("the end of the change is not in the history: %s", error)
    if failure is not None:
        raise failure


async def _beat(records: RecordLog) -> None:
    while True:
        await trio.sleep(change_beat_s)
        try:
            records.beat()
        except DosError as error:
            log.info("this run no longer changes the store: %s", error)
            return


async def read_history(store: Store) -> list[Change]:
    return merge(await read_log(store, CHANGES))
