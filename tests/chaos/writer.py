"""A writer of the workload, as a process that can be killed and stopped.

    python -m tests.chaos.writer URL DIRECTORY LOG NAME SEED WINDOW DELAY

It opens the store, waits DELAY seconds, takes the chain of the directory over, continues where its history
ends, and appends for ever, at most WINDOW records beyond what is acknowledged; in a manifest's directory
none, so that each record proves the one before (R9). Superseded before its own start is acknowledged it
begins again after a random, doubling time (R17); superseded later it ends with exit code 3. What it says on
standard output, a line each: `store`, `claims EPOCH`, `open EPOCH SEQUENCE`, `superseded HELD`, `fenced EPOCH
HELD`.

All writers of a directory, rivals too, share a scratch beside the log: members are filled from it, and what
is in it was torn by a killed writer and is removed by the next one.

It trusts the store; only the checker verifies.
"""

import os
import random
import sys
from collections import deque
from pathlib import Path

import msgspec
import trio

from dos_client import Claim, QuorumUnavailableError, Store, open_store
from dos_client.core.backoff import backoff_s
from dos_client.errors import StoreNotReadyError
from dos_protocol.errors import BrokenConnectionError, DosError, FencedError, StaleGenerationError
from journal import ChainState, ChainWriter, NotEnoughAnswersError, Op, Scratch, read_batches, take_over
from tests.chaos.records import CHAIN, MANIFEST_DIRECTORY, AckLog, Entry, make_record

FENCED = 3
ROLL_RECORDS = 3_000
LARGE_ONE_IN = 400
LARGE_BYTES_MAX = 150_000
NOT_NOW = (
    QuorumUnavailableError,
    NotEnoughAnswersError,
    StaleGenerationError,
    StoreNotReadyError,
    BrokenConnectionError,
)
"""Too few members answer now: waiting cures it."""


def say(*words: object) -> None:
    print(*words, flush=True)


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
    store: Store, directory: str, scratch: Scratch | None = None
) -> tuple[Claim, ChainWriter, int]:
    """Look, claim, take over, open: returns when the own start is acknowledged (R8)."""
    view = await store.inspect(directory)
    claim = await store.claim(directory, view.epoch_seen + 1, os.urandom(16))
    say("claims", claim.epoch)
    try:
        generation = store.record.generation
        state = await take_over(claim, CHAIN, generation=generation, scratch=scratch)
        sequence = await last_sequence(claim, state)
        pipelined = directory != MANIFEST_DIRECTORY
        writer = await ChainWriter.open(claim, CHAIN, state, generation, scratch, pipelined=pipelined)
        return claim, writer, sequence
    except DosError as error:
        lost = claim.lost
        await claim.aclose()
        if lost is not None and not isinstance(error, FencedError):
            raise FencedError(str(lost), actual=lost.epoch_held) from error
        raise


async def keep_taking_over(
    store: Store, directory: str, scratch: Scratch | None = None
) -> tuple[Claim, ChainWriter, int]:
    """Until it succeeds."""
    attempt = 0
    while True:
        attempt += 1
        try:
            return await take_the_chain_over(store, directory, scratch)
        except FencedError as error:
            say("superseded", error.epoch_held)
        except NOT_NOW as error:
            print(f"not now: {error}", file=sys.stderr, flush=True)
        await trio.sleep(backoff_s(attempt, random.random()))


class Workload:
    """The records of one writer under one claim."""

    def __init__(self, writer: ChainWriter, log: AckLog, directory: str, epoch: int, sequence: int) -> None:
        self._writer = writer
        self._log = log
        self._directory = directory
        self._epoch = epoch
        self._sequence = sequence
        self._number = 0
        self._unacknowledged: deque[tuple[int, Entry]] = deque()

    async def run(self, rng: random.Random, window: int) -> None:
        window = window if self._directory != MANIFEST_DIRECTORY else 1
        while True:
            while len(self._unacknowledged) < window:
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
        payload = rng.randbytes(rng.randrange(LARGE_BYTES_MAX if large else 300))
        record, entry = make_record(self._directory, self._epoch, self._number, self._sequence, payload)
        self._unacknowledged.append((self._writer.append(record).size, entry))

    async def _wait_first(self) -> None:
        end = self._writer.end
        first = msgspec.structs.replace(end, size=self._unacknowledged[0][0])
        await self._writer.wait_synced(first)

    def _take_acknowledged(self) -> None:
        """Log every record whose end the synced watermark has reached, and no other."""
        synced, entries = self._writer.synced, []
        while self._unacknowledged and self._unacknowledged[0][0] <= synced:
            entries.append(self._unacknowledged.popleft()[1])
        self._log.write(entries)


async def main(
    url: str, directory: str, log_path: Path, name: str, seed: int, window: int, delay_s: float
) -> int:
    scratch = Scratch(log_path.with_name(f"{directory}.scratch"))
    with AckLog(log_path) as log:
        while True:
            try:
                async with open_store(url, client=name) as store:
                    say("store")
                    await trio.sleep(delay_s)
                    claim, writer, sequence = await keep_taking_over(store, directory, scratch)
                    say("open", claim.epoch, sequence)
                    try:
                        workload = Workload(writer, log, directory, claim.epoch, sequence)
                        await workload.run(random.Random(f"{seed}/{name}/{claim.epoch}"), window)
                    except FencedError as error:
                        say("fenced", claim.epoch, error.epoch_held)
                        return FENCED
            except StoreNotReadyError as error:
                print(f"not now: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    url, directory, log_path, name, seed, window, delay = sys.argv[1:]
    sys.exit(trio.run(main, url, directory, Path(log_path), name, int(seed), int(window), float(delay)))
