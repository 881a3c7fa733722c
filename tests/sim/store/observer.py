"""An observer: requests LIST and STAT of one machine after the other, as a person with a shell would (O5)."""

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from dos_protocol.errors import BrokenConnectionError, DosError
from dos_protocol.messages import ObjectInfo
from tests.sim.engine.environment import Process
from tests.sim.history import History
from tests.sim.store.session import Session
from tests.sim.store.writer import Stores

if TYPE_CHECKING:
    from tests.sim.store.machine import Machine

_STATS_MAX = 4


class Observer(Process):
    """The observer of a run."""

    def __init__(
        self,
        name: str,
        stores: Stores,
        machines: "Sequence[Machine]",
        directories: Sequence[str],
        history: History,
        rng: Random,
    ) -> None:
        super().__init__(stores.network.env, name)
        self._network = stores.network
        self._machines = machines
        self._directories = directories
        self._history = history
        self._rng = rng
        self.start("work", self._work())

    async def _work(self) -> None:
        while self._directories:
            await self.sleep(0.2 + self._rng.expovariate(1 / 1.5))
            machine = self._rng.choice(self._machines)
            session = Session(self, self._network, machine.address)
            try:
                await session.open()
                await self._list_directory(machine, session)
                self._history.sometimes["observer: listed"] += 1
            except DosError as error:
                self._history.sometimes[f"observer: {type(error).__name__}"] += 1
            finally:
                session.fail(BrokenConnectionError("closed"))

    async def _list_directory(self, machine: "Machine", session: Session) -> None:
        before, directory = (machine.disk, machine.doomed), self._rng.choice(self._directories)
        reported = {name: size for (folder, name), size in machine.reported.items() if folder == directory}
        await session.open_directory(directory)
        if machine.removed_folder in ("d", f"d/{directory}") and machine.starts_without_it:
            self._history.bench.overlooked(machine, machine.removed_folder)
        infos: dict[str, ObjectInfo] = {info.name: info for info in await session.list_all()}
        for name in sorted(infos)[-_STATS_MAX:]:
            infos[name] = (await session.stat(name)).info
        if (machine.disk, machine.doomed) == before:  # otherwise files were taken away meanwhile
            self._history.bench.listed(machine, directory, reported, infos)
