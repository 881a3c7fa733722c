"""A streaming query of Spark that reads the input of a `TrimModel`: the real planner and registration, called
in Spark's order, and Spark's checkpoint, which survives a crash. Spark's order for a micro-batch: plan its
end; record it (`offsets`); tell the source that the one *before* is committed; run it; record that it is
committed (`commits`). After a restart Spark replays the last recorded one, if it is not committed.
"""

from contextlib import aclosing
from types import SimpleNamespace
from typing import NamedTuple

from checkpoint.chains.consumer_register import QueryRegistration
from checkpoint.errors import ConsumerRefusedError
from spark_integration.core.offsets import BEGINNING, BatchLimits
from spark_integration.errors import DataLossError
from spark_integration.reading.chains import InputOrigin
from spark_integration.reading.planning import StreamPlanner
from tests.checkpoint.trim_model import APPLICATION, HANDLE, PRODUCER, REGISTER, PatientHost

OPTIONS = SimpleNamespace(
    directory=APPLICATION, input=HANDLE, fail_on_data_loss=True, starting=None, partition_bytes=1 << 20
)


class TimedHost(PatientHost):
    """A host with the clock of the model."""

    def __init__(self, model):
        super().__init__(model.store)
        self.model = model

    def now(self):
        return self.model.now_ms / 1000

    def wall_time_ms(self):
        return self.model.now_ms


class Backup(NamedTuple):
    """A copy of Spark's checkpoint. at_ms: when it was made."""

    at_ms: int
    offsets: tuple
    commits: int


class QueryModel:
    """One query. `sink`: number of a micro-batch -> the ends of the batches that were read."""

    def __init__(self, model, name, retain_s=0.0):
        self.model, self.name, self.retain_s = model, name, retain_s
        self.offsets, self.commits, self.sink = [], 0, {}
        self.backups = []
        self.begin = None
        """Where it began, when its first micro-batch was planned."""
        self.starts = 0
        self.planner = None

    def started(self):
        """The planner of the process that runs the query, started if there is none."""
        if self.planner is None:
            self.starts += 1
            registration = QueryRegistration(
                TimedHost(self.model),
                REGISTER,
                self.name,
                session=f"{self.name}{self.starts}",
                retain_s=self.retain_s,
            )
            origin = InputOrigin(self.model.store, OPTIONS)
            self.planner = StreamPlanner(origin, OPTIONS, None, "store", registration)
            self.planner._checked = True  # the rows of the model are no Arrow
        return self.planner

    async def crash(self):
        if self.planner is not None:
            await self.planner.aclose()
        self.planner = None

    async def batch(self, rows=1_000, crash=""):
        """Run one micro-batch, of at most so many rows; `crash`: after which step the process dies."""
        planner = self.started()
        number = self.commits
        start = self.offsets[number - 1] if number else await planner.initial()
        for step in (self._recorded, self._told, self._read):
            if not await step(planner, number, start, rows):
                return
            if step.__name__ == f"_{crash}":
                await self.crash()
                return
        self.commits += 1

    async def _recorded(self, planner, number, start, rows):
        """The end is planned and recorded; False if there is nothing to read."""
        if len(self.offsets) == number:
            end = await planner.latest(start, BatchLimits(rows))
            if end == start:
                return False
            if number == 0 and self.begin is None:
                self.begin = start.get(PRODUCER, BEGINNING).size
            self.offsets.append(end)
            self.replays = False
        else:
            self.replays = True
        return True

    async def _told(self, planner, number, start, rows):
        """The source learns that the micro-batch before is committed; not in a replay."""
        if number and not self.replays:
            await planner.committed(start)
        return True

    async def _read(self, planner, number, start, rows):
        await planner.partitions(start, self.offsets[number])
        found = await self.read(start, self.offsets[number])
        assert self.sink.setdefault(number, found) == found, "a replay returns the same rows"
        return True

    async def read(self, start, end=None):
        """The ends of the batches between two offsets, as a task reads them."""
        origin, found = InputOrigin(self.model.store, OPTIONS), []
        async with aclosing(await origin.scan(PRODUCER, start.get(PRODUCER, BEGINNING))) as scan:
            while (piece := await scan.next()) is not None:
                if end is not None and piece.end.size > end[PRODUCER].size:
                    break
                found.append(piece.end.size)
        return found

    def back_up(self):
        self.backups.append(Backup(self.model.now_ms, tuple(self.offsets), self.commits))

    async def restore(self, backup, crash=""):
        """Continue from a copy of the checkpoint, and run one micro-batch as `batch` does. Return whether
        that was possible.
        """
        await self.crash()
        self.offsets, self.commits = list(backup.offsets), backup.commits
        self.sink = {number: rows for number, rows in self.sink.items() if number < self.commits}
        self.backups = [one for one in self.backups if one.at_ms <= backup.at_ms]
        try:
            await self.batch(1, crash)
        except (DataLossError, ConsumerRefusedError):
            return False
        return True

    async def check(self):
        """Spark can replay from its checkpoint, and from each copy that is young enough."""
        now = Backup(self.model.now_ms, tuple(self.offsets), self.commits)
        young = [one for one in self.backups if one.at_ms > self.model.now_ms - 1000 * self.retain_s]
        for one in (now, *young):
            if not one.commits:
                continue
            start = one.offsets[one.commits - 1]
            try:
                found = await self.read(start)
            except DataLossError as error:
                raise AssertionError(f"query {self.name} needs {start}: {error}") from error
            assert found == [end for end in self.model.ends if end > start[PRODUCER].size]
        if self.begin is not None:
            rows = [end for number in sorted(self.sink) for end in self.sink[number]]
            every = [end for end in self.model.ends if end > self.begin]
            assert rows == every[: len(rows)], f"query {self.name} began at {self.begin}"
