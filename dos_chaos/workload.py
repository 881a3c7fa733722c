"""The writers of the append-set workload: take a chain over, append, log what was acknowledged.

A writer trusts the store; only the checker verifies.
"""

import logging
import os
import random
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
import trio

from dos_chaos.ack_log import AckLog
from dos_chaos.core.records import CHAIN, WrittenRecord, is_manifest, make_record
from dos_client import Claim, QuorumUnavailableError, Store, StoreNotReadyError, backoff_s
from dos_protocol.errors import BrokenConnectionError, DosError, FencedError, StaleGenerationError
from journal import ChainState, ChainWriter, NotEnoughAnswersError, Op, Scratch, read_batches, take_over

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
    """Say nothing."""


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
    """The meter of a workload that appends as fast as its window allows."""

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
    """Until it succeeds."""
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
        """Log every record whose end the synced watermark has reached, and no other."""
        synced, entries, sent_s = self._writer.synced, [], []
        while self._unacknowledged and self._unacknowledged[0][0] <= synced:
            _, entry, sent = self._unacknowledged.popleft()
            entries.append(entry)
            sent_s.append(sent)
        self._log.write(entries)
        self._meter.acknowledged(self._directory, sent_s)
