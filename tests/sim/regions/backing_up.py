"""Processes that back a region up to one bucket, with the code of `dos region backup`, while all else fails.

They are killed at any moment and overtake one another. A person drops the savepoints that dead ones left. The
client of the store is the real one, in a guest. The bucket is in memory and outside of all processes: what
was written to it stays.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

import trio

from checkpoint.core.coordination.vocabulary import SavepointWanted
from checkpoint.core.records.manifest import SavepointNote
from checkpoint.core.region import SavepointSettled
from checkpoint.errors import NoAnswerError, SavepointRefusedError
from checkpoint.maintenance.backup import back_up
from checkpoint.runtime import RealRegionRuntime, replace_runtime
from dos_client import open_store
from dos_protocol.errors import DosError
from tests.checkpoint.backup_model import MemoryPlace
from tests.sim.engine.guest import scheduled_by
from tests.sim.engine.sockets import Client

if TYPE_CHECKING:
    from tests.sim.regions.region import Region

PATIENCE_S: Final = 8.0
KEPT: Final = 2
MAKERS_MAX: Final = 2


class _Runtime(RealRegionRuntime):
    """The environment of a process that makes backups: virtual time and no threads."""

    def __init__(self, maker: "Maker") -> None:
        self._maker = maker

    async def in_thread(self, call: Callable[..., Any], *args: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return call(*args)

    def wall_time_ns(self) -> int:
        return int((1.0 + self._maker.now) * 1e9)


class Bucket(MemoryPlace):
    """A bucket whose requests take time."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng

    async def put(self, name: str, data: bytes, sha256: bytes) -> bool:
        await trio.sleep(self._rng.expovariate(40.0))
        return await super().put(name, data, sha256)


class Backups:
    """The backups of one region. `place`: the bucket."""

    def __init__(self, region: "Region") -> None:
        self.region = region
        self.rng = region.stream("backups")
        self.place = Bucket(self.rng)
        self.answers: dict[str, SavepointSettled] = {}
        self.waiting: dict[str, trio.Event] = {}
        self.held: dict[str, Maker] = {}
        """Savepoint -> the process that makes a backup of it."""
        self._makers: list[Maker] = []
        self._made = 0

    def settled(self, event: SavepointSettled) -> None:
        """Note the answer to a request."""
        self.answers[event.name] = event
        answered, maker = self.waiting.pop(event.name, None), self.held.get(event.name)
        if answered is not None and maker is not None:
            maker.call(answered.set)

    def supervise(self) -> None:
        """Start and kill processes now and then, and drop what dead ones have left, until the region ends."""
        if self.region.finished:
            return
        living = [one for one in self._makers if one.alive]
        drawn = self.rng.random()
        if len(living) < MAKERS_MAX and (not living or drawn < 0.15):
            self._start()
        elif drawn < 0.3:
            self._kill(self.rng.choice(living))
        driver = self.region.running
        if driver is not None and self.region.record.committed:
            for name in self.region.record.committed[-1].savepoints:
                if name in self.held and not self.held[name].alive:
                    driver.post(SavepointWanted(name, on=False))
        self.region.env.after(0.3 + 1.5 * self.rng.random(), self.supervise)

    def make_last(self) -> "Maker":
        """Start a process that makes one backup of the region, which no driver runs. All others end."""
        self.end()
        return self._start(once=True)

    def end(self) -> None:
        """Kill all processes."""
        for maker in self._makers:
            if maker.alive:
                self._kill(maker)

    def _start(self, *, once: bool = False) -> "Maker":
        self._made += 1
        maker = Maker(self, f"b{self._made}", once=once)
        self._makers.append(maker)
        return maker

    def _kill(self, maker: "Maker") -> None:
        self.region.saw("a process that makes backups is killed")
        self.region.network.process_died(maker, power=False)
        maker.kill()


class Maker(Client):
    """One process. `done`: it has made its only backup."""

    def __init__(self, backups: Backups, name: str, *, once: bool) -> None:
        region = backups.region
        super().__init__(region.network, name, region.stream(f"backups by {name}"))
        self.done = False
        self._backups = backups
        self._region = region
        self._once = once
        self._url = "dos://" + ",".join(member.address for member in region.store.members)
        with scheduled_by(self.rng):
            self.begin(self._work)

    async def _work(self) -> None:
        replace_runtime(_Runtime(self))
        savepoints = _NoDriver(self._region) if self._once else _Requests(self, self._backups)
        while not self.done:
            await trio.sleep(self.rng.expovariate(4.0))
            try:
                async with open_store(self._url, client=self.name) as store:
                    await back_up(store, self._region.spec.name, self._backups.place, savepoints, keep=KEPT)
                self._region.saw("a backup is made")
                self.done = self._once
            except DosError as error:  # the next one uses what this one has copied
                self._region.saw(f"backup: {type(error).__name__}")


class _Requests:
    """Savepoints that the driver is asked for."""

    def __init__(self, maker: Maker, backups: Backups) -> None:
        self._maker = maker
        self._backups = backups

    async def make(self, name: str, *, why: str, checkpoint: int = 0, fork: str = "") -> int:
        del fork
        self._backups.held[name] = self._maker
        return (await self._ask(SavepointWanted(name, checkpoint, note=SavepointNote(why=why)))).checkpoint

    async def drop(self, name: str) -> None:
        await self._ask(SavepointWanted(name, on=False))

    async def _ask(self, wanted: SavepointWanted) -> SavepointSettled:
        driver, answers = self._backups.region.running, self._backups.answers
        if driver is None:
            raise NoAnswerError("no driver runs")
        answers.pop(wanted.name, None)
        answered = self._backups.waiting[wanted.name] = trio.Event()
        driver.post(wanted)
        with trio.move_on_after(PATIENCE_S):
            await answered.wait()
        if wanted.name not in answers:
            raise NoAnswerError("the driver is silent")
        if answers[wanted.name].error:
            raise SavepointRefusedError(answers[wanted.name].error)
        return answers[wanted.name]


class _NoDriver:
    """A region that no driver runs, and none will: its last checkpoint stays."""

    def __init__(self, region: "Region") -> None:
        self._region = region

    async def make(self, name: str, *, why: str, checkpoint: int = 0, fork: str = "") -> int:
        del name, why, checkpoint, fork
        await trio.lowlevel.checkpoint()
        return self._region.record.committed[-1].number

    async def drop(self, name: str) -> None:
        del name
        await trio.lowlevel.checkpoint()
