"""What all simulated writers do with a chain: append numbered records, and report which are acknowledged."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Protocol

from dos_server.limits import log_small_bytes_max
from journal import ChainWriter, Op, Position, Record
from tests.sim.engine.environment import Environment
from tests.sim.history import History


class PendingRecords:
    """The appended records that are not acknowledged. `wait_appended`: waits for the next record."""

    def __init__(
        self, history: History, directory: str, wait_appended: Callable[[], Awaitable[None]]
    ) -> None:
        self._history = history
        self._directory = directory
        self._wait_appended = wait_appended
        self._records: list[tuple[int, Position]] = []

    def add(self, number: int, position: Position) -> None:
        self._records.append((number, position))

    def clear(self) -> None:
        self._records.clear()

    async def report_acknowledged(self, writer: ChainWriter) -> None:
        """Report each record that the quorum's watermark has passed to the history. Raises DosError."""
        while True:
            while not self._records:
                await self._wait_appended()
            number, position = self._records[0]
            await writer.wait_synced(position)
            self._records.pop(0)
            self._history.acknowledge(self._directory, number)


class Appending(Protocol):
    """A process that appends. `hurries_until`: until then its pauses are short. `large_until`: until then
    some of its records are too large for the group log of a server.
    """

    env: Environment
    directory: str
    history: History
    rng: Random
    pipelined: bool
    pace_s: float
    hurries_until: float
    large_until: float
    pending: PendingRecords

    def records_appended(self) -> None:
        """Called after a burst of records."""

    def rolled(self, *, snapshot: bool) -> None:
        """Called after the chain has continued in a new segment."""


def _bytes_of_next(process: Appending) -> int:
    count = process.rng.randint(0, 120)
    if process.env.now < process.large_until and process.rng.random() < 0.1:
        return log_small_bytes_max + count
    return count


async def append_records(
    process: Appending,
    writer: ChainWriter,
    epoch: int,
    found: list[int],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    """Append records after those that were `found`, until an error ends it. Raises DosError."""
    rng, numbers = process.rng, list(found)
    while True:
        for _ in range(rng.randint(1, 6) if process.pipelined else 1):
            number = process.history.number(process.directory, epoch)
            record = Record(Op.OUTPUT, number, strings=(rng.randbytes(_bytes_of_next(process)),))
            process.pending.add(number, writer.append(record))
            numbers.append(number)
        process.records_appended()
        if not process.pipelined or rng.random() < 0.1:
            await writer.wait_synced()
        if rng.random() < 0.03:
            await writer.wait_synced()
            keep = [Record(Op.OUTPUT, number) for number in numbers] if rng.random() < 0.5 else None
            await writer.roll(keep)
            process.rolled(snapshot=keep is not None)
            process.history.sometimes["writer: rolled"] += 1
        hurries = process.env.now < process.hurries_until
        await sleep(0.001 + (0.005 if hurries else rng.expovariate(1 / process.pace_s)))
