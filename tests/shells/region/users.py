"""What persons and their processes do with a region: savepoints, forks, edits, backups, trims, damage."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pyarrow as pa
import trio
from msgspec.structs import replace

from checkpoint import Edit
from checkpoint.chains.manifest_log import StoreHost, read_manifest, retained_checkpoints
from checkpoint.core.coordination.vocabulary import SavepointWanted
from checkpoint.core.records.consumers import need_of
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.errors import ForkRefusedError
from checkpoint.maintenance.backup import back_up
from checkpoint.maintenance.editing import EncodedRows, edit_stopped
from checkpoint.maintenance.forking import Forking, fork_region
from checkpoint.maintenance.stopped_region import SavepointMaker
from dataflow.editing import NO_STATE, as_table, edited_tables, planned
from dos_client import DirectoryView, Store, live_store, open_store
from dos_client.core.agreement import view_of
from dos_client.sessions.connection import Connection
from dos_protocol.errors import CorruptError, DosError
from dos_protocol.messages import ChangeDirectory, Data, DirectoryOpened, Get
from tests.checkpoint.backup_model import MemoryPlace
from tests.shells.region.process import RegionProcess
from tests.sim.regions.base import FORK, SOURCES, edits_in
from tests.sim.regions.damage import Spoiling

if TYPE_CHECKING:
    from tests.shells.region.region import ShellRegion

PATIENCE_S: Final = 8.0


class User(RegionProcess):
    """A process that uses the store of a region again and again, whatever fails."""

    def __init__(self, region: "ShellRegion", name: str) -> None:
        super().__init__(region, name)
        self.busy = False

    async def pause(self) -> bool:
        """Wait until the next act. Return False if there is none."""
        raise NotImplementedError

    async def act(self, store: Store) -> None:
        """Do something. What a DosError has left undone is found by the next act."""
        raise NotImplementedError

    async def work(self) -> None:
        while await self.pause():
            self.busy = True
            try:
                async with open_store(self.cluster.url, client=self.name) as store:
                    await self.act(store)
            except DosError as error:
                self.region.saw(f"{self.kind}: {type(error).__name__}")
            self.busy = False


class Trimmer(User):
    """Deletes what no retained checkpoint needs of a region's input."""

    kind = "trimmer"

    async def pause(self) -> bool:
        await trio.sleep(0.1 + self.rng.expovariate(2.0))
        return True

    async def act(self, store: Store) -> None:
        region = self.region
        kept = await retained_checkpoints(store, region.spec.name)
        # The fork registers as a consumer before it reads. Until then the original holds its input.
        forked = region.fork is not None and await retained_checkpoints(store, FORK)
        for split in region.given.splits:
            needs = [self.needs(of_one, split) for of_one in (kept, forked) if of_one]
            region.given.trim(split, min(needs, default=0))
        region.saw("trimmed")

    def needs(self, kept: Sequence[Checkpoint], split: str) -> int:
        """Return the position from which on the retained checkpoints need a split."""
        return need_of(kept, SOURCES, split)


class Forker(User):
    """Forks a region once, by one attempt after the other. `first`: the first record of the fork."""

    kind = "forker"

    def __init__(self, region: "ShellRegion", name: str) -> None:
        super().__init__(region, name)
        self.first: Checkpoint | None = None

    async def pause(self) -> bool:
        await trio.sleep(0.3 + self.rng.expovariate(1.0))
        return self.first is None and not self.region.finishing

    async def act(self, store: Store) -> None:
        region = self.region
        if region.running is None or not region.record.committed:
            return
        number = self.rng.choice(region.record.committed[-1].retained)
        wanted = Forking(region=region.spec.name, new=FORK, at=f"checkpoint:{number}", patience_s=PATIENCE_S)
        patience_s = self.rng.choice([0.5, 30.0, 30.0, 30.0, 30.0])
        try:
            with trio.move_on_after(patience_s):  # killed anywhere
                await fork_region(store, wanted)
        except ForkRefusedError as error:
            region.saw(f"a fork is refused: {error.args[0][:40]}")
        self.first = (await read_manifest(store, FORK)).last
        if self.first is not None:
            region.saw("a region is forked")


ADDED: Final = 1_000


class Editor(User):
    """Edits the state of a region, as if no driver ran it."""

    kind = "editor"

    async def pause(self) -> bool:
        region = self.region
        await trio.sleep(1.0 + self.rng.expovariate(0.3))
        while not region.record.committed and not region.finishing:  # noqa: ASYNC110 - it sets no event
            await trio.sleep(0.5)
        return not region.finishing and not region.finished

    async def act(self, store: Store) -> None:
        region = self.region
        retained = region.record.committed[-1].retained
        to = self.rng.choice(["", f"checkpoint:{self.rng.choice(retained)}"])
        await edit_stopped(StoreHost(store), region.spec.name, self._rows_for, to=to, allow_republish=True)
        region.saw("a state is edited")

    async def _rows_for(self, checkpoint: Checkpoint) -> tuple[EncodedRows, Edit]:
        """Return the row of a word with a higher count, as its owner stores it."""
        region = self.region
        read = {
            split: at.position
            for part in checkpoint.workers.values()
            for splits in part.sources.values()
            for split, at in splits.items()
        }
        word = self.rng.choice(region.given.rows)[0]
        count = sum(one == word for one, _ in region.given.upto(read))
        count += sum(added for one, added in edits_in(checkpoint) if one == word)
        table = as_table("count", pa.table({"word": [word], "count": [count + ADDED]}))
        rules = edited_tables(region.plan, region.spec.name, {"count": table})
        plan = planned(rules, {"count": table}, NO_STATE, checkpoint.layout)
        return plan.rows, Edit(by=f"{word}+{ADDED}", wall_time_ms=1)


# --- backups ------------------------------------------------------------------------------------------------

KEPT: Final = 2
MAKERS_MAX: Final = 2


class Bucket(MemoryPlace):
    """A bucket whose requests take time."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng

    async def put(self, name: str, data: bytes, sha256: bytes) -> bool:
        await trio.sleep(self._rng.expovariate(40.0))
        return await super().put(name, data, sha256)


class Backups:
    """The backups of one region. `place`: the bucket. `held`: savepoint -> the process that made it for its
    backup."""

    def __init__(self, region: "ShellRegion") -> None:
        self.region = region
        self.rng = region.stream("backups")
        self.place = Bucket(self.rng)
        self.held: dict[str, Maker] = {}
        self._makers: list[Maker] = []

    async def supervise(self) -> None:
        """Start and kill processes now and then, and drop what dead ones have left, until the region ends."""
        region = self.region
        while not region.finished:
            living = [one for one in self._makers if one.alive]
            drawn = self.rng.random()
            if len(living) < MAKERS_MAX and (not living or drawn < 0.15):
                self._start()
            elif drawn < 0.3:
                self._kill(self.rng.choice(living))
            driver = region.running
            if driver is not None and region.record.committed:
                for name in region.record.committed[-1].savepoints:
                    if name in self.held and not self.held[name].alive:
                        driver.post(SavepointWanted(name, on=False))
            await trio.sleep(0.3 + 1.5 * self.rng.random())

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
        maker = self.region.cluster.begin(lambda name: Maker(self, name, once=once), "b")
        assert isinstance(maker, Maker)
        self._makers.append(maker)
        return maker

    def _kill(self, maker: "Maker") -> None:
        self.region.saw("a process that makes backups is killed")
        maker.kill()


class Maker(User):
    """Makes backups. `done`: it has made its only one."""

    kind = "backup"

    def __init__(self, backups: Backups, name: str, *, once: bool) -> None:
        super().__init__(backups.region, name)
        self.done = False
        self._backups = backups
        self._once = once

    async def pause(self) -> bool:
        await trio.sleep(self.rng.expovariate(4.0))
        return not self.done

    async def act(self, store: Store) -> None:
        region = self.region
        savepoints = _Finished(region) if self._once else _Noted(self, self._backups, store)
        await back_up(store, region.spec.name, self._backups.place, savepoints, keep=KEPT)
        region.saw("a backup is made")
        self.done = self._once


class _Noted(SavepointMaker):
    """Savepoints that the driver is asked for. Whose they are is noted."""

    def __init__(self, maker: Maker, backups: Backups, store: Store) -> None:
        super().__init__(store, maker.region.spec.name, stopped=False, patience_s=PATIENCE_S)
        self._maker = maker
        self._backups = backups

    async def make(self, name: str, *, why: str, checkpoint: int = 0, fork: str = "") -> int:
        self._backups.held[name] = self._maker
        return await super().make(name, why=why, checkpoint=checkpoint, fork=fork)


class _Finished:
    """A region that no driver runs, and none will: its last checkpoint stays."""

    def __init__(self, region: "ShellRegion") -> None:
        self._region = region

    async def make(self, name: str, *, why: str, checkpoint: int = 0, fork: str = "") -> int:
        del name, why, checkpoint, fork
        await trio.lowlevel.checkpoint()
        return self._region.record.committed[-1].number

    async def drop(self, name: str) -> None:
        del name
        await trio.lowlevel.checkpoint()


# --- damage -------------------------------------------------------------------------------------------------


class SeenSpoiling(Spoiling):
    """Damage that real clients see."""

    @contextmanager
    def seen(self) -> Iterator[None]:
        """Let clients see the damage: in answers to GET, and in lists without damaged objects."""
        call, directories = Connection.call, dict[Connection, str]()

        async def called(self_: Connection, message: Any, kind: Any, *args: Any) -> Any:
            answer = await call(self_, message, kind, *args)
            if isinstance(message, ChangeDirectory):
                directories[self_] = message.directory
            if isinstance(message, Get):
                self._read(directories[self_], self_.welcome.server_id, answer)
            return answer

        def viewed(directory: str, record: Any, opened: Any, *args: Any, **more: Any) -> DirectoryView:
            if more.get("sound"):
                opened = {one: self._listed(directory, one, answer) for one, answer in opened.items()}
            return view_of(directory, record, opened, *args, **more)

        with (
            mock.patch.object(Connection, "call", called),
            mock.patch.object(live_store, "view_of", viewed),
        ):
            yield

    def _members(self, directory: str, name: str) -> tuple[int, frozenset[bytes]]:
        """Return where the damage of an object begins, and whose copies are damaged."""
        return self._region.history.spoiled.get((directory, name), (0, frozenset()))

    def _read(self, directory: str, member: bytes, data: Data) -> None:
        """Raise CorruptError for an answer of a member with damaged bytes, as it would."""
        begin, members = self._members(directory, data.name)
        if member in members and data.offset + len(data.payload) > begin:
            raise CorruptError(f"{data.name} is damaged from {begin} on", actual=begin)

    def _listed(self, directory: str, member: bytes, answer: DirectoryOpened) -> DirectoryOpened:
        """Return the list of a member with its damaged objects."""
        entries = tuple(
            replace(info, corrupt=info.corrupt or member in self._members(directory, info.name)[1])
            for info in answer.entries
        )
        return replace(answer, entries=entries)
