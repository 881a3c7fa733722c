"""Fill the joining member, and verify that it is filled (docs/decisions/0010).

It gets everything that F old members hold, and the claims they hold. The longest copy of each object is
*wanted*. An active writer fills its own directory. Another one is filled here, in a session that claims the
directory on the joining member alone, with the epoch and writer id that the old members hold: otherwise a
fenced writer could reach a quorum with the new member (P-4). Only bytes of old members are appended, each
after a digest of the preceding bytes.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from dos_client import randomness
from dos_client.core.agreement import DirectoryView
from dos_client.core.claim import climb
from dos_client.core.logs import longest
from dos_client.core.window import Chunk, append_frame
from dos_client.errors import QuorumUnavailableError, ReplacementError
from dos_client.limits import (
    catch_up_chunk_bytes,
    fill_in_flight_bytes_max,
    fill_listings_max,
    fill_stall_s,
)
from dos_client.live_store import Store
from dos_client.randomness import backoff_s
from dos_client.reading.copying import MemberSource, copy_bytes, fold_at
from dos_client.sessions.connection import Connection
from dos_client.sessions.discovery import probe
from dos_client.sessions.members import open_member_session
from dos_client.tasks import background_tasks, read_each
from dos_protocol.errors import (
    BrokenConnectionError,
    BusyError,
    DosError,
    FencedError,
    NotFoundError,
    WrongStoreError,
)
from dos_protocol.messages import DirectoryOpened, DurabilityAck, ObjectInfo
from dos_protocol.names import NO_ID
from dos_protocol.store_record import Member

log: Final = logging.getLogger("dos.client")


@dataclass(slots=True)
class ReplaceProgress:
    """The progress: `phase` is joining, filling, finishing or done; bytes are of the directories known so
    far.
    """

    phase: str = "joining"
    directories: int = 0
    directories_done: int = 0
    bytes_total: int = 0
    bytes_done: int = 0


Progress = Callable[[ReplaceProgress], None]


@dataclass(slots=True)
class DirectoryGoal:
    """The objects of a directory that the joining member must hold. `sources`: by object, who has the longest
    copy.
    """

    directory: str
    epoch: int
    writer_id: bytes
    objects: dict[str, ObjectInfo] = field(default_factory=dict)
    sources: dict[str, Member] = field(default_factory=dict)
    copied: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(info.synced for info in self.objects.values())

    @property
    def loose(self) -> bool:
        """Whether the directory was never claimed, so that its files were acknowledged by single servers."""
        return self.epoch == 0

    def leave(self, name: str, why: str) -> None:
        del self.objects[name], self.sources[name]
        self.copied.pop(name, None)
        log.warning("filling %s: %s is not copied: %s", self.directory, name, why)

    @property
    def done(self) -> int:
        return sum(min(self.copied.get(name, 0), info.synced) for name, info in self.objects.items())


class Filling:
    def __init__(
        self,
        store: Store,
        joining: Member,
        on_progress: Callable[[int, int, int, int], None],
        check: Callable[[], None],
    ) -> None:
        """`check` raises if another run has taken over."""
        self._store = store
        self._generation = store.record.generation
        self._check = check
        self._joining = joining
        self._on_progress = on_progress
        self._wanted: list[DirectoryGoal] = []
        self._finished = 0
        self._directories = 0

    async def run(self) -> None:
        names = await self._store.list_directories()
        self._directories = len(names)
        await read_each(names, self._directory)

    async def _directory(self, name: str) -> None:
        wanted = await self._list_stable(name)
        self._wanted.append(wanted)
        attempt, last = 0, (-1, trio.current_time())
        while True:
            self._check_current()
            try:
                missing, live = await self._missing(wanted)
                self._count()
                if not missing and wanted.epoch <= live.epoch:
                    break
                if wanted.done != last[0]:
                    last = (wanted.done, trio.current_time())
                claimed = live.epoch > 0 and live.epoch >= wanted.epoch
                if claimed and trio.current_time() - last[1] < fill_stall_s:
                    await trio.sleep(fill_stall_s / 5)  # a writer is filling it, or has just begun
                    continue
                await self._fill(wanted, missing, live)
                attempt = 0
            except (NotFoundError, BusyError, BrokenConnectionError, FencedError, WrongStoreError) as error:
                log.info("filling %s: %s; listing the directory again", name, error)
                await self._check_same_server()
                attempt += 1
                await trio.sleep(backoff_s(attempt, randomness.jitter()))
                # the source may have lost the object, and another member has it
                again = await self._list_again(wanted)
                self._wanted[self._wanted.index(wanted)] = wanted = again
                last = (-1, trio.current_time())
        self._finished += 1
        self._count()

    async def _list_stable(self, name: str) -> DirectoryGoal:
        for attempt in range(1, fill_listings_max):
            try:
                return await self._list_once(name)
            except (NotFoundError, BusyError, BrokenConnectionError) as error:
                log.info("filling %s: %s; listing the directory again", name, error)
                await trio.sleep(backoff_s(attempt, randomness.jitter()))
        return await self._list_once(name)

    async def _list_again(self, wanted: DirectoryGoal) -> DirectoryGoal:
        try:
            return await self._list_stable(wanted.directory)
        except QuorumUnavailableError as error:
            log.info("filling %s: %s; waiting for members", wanted.directory, error)
            return wanted

    def _check_current(self) -> None:
        self._check()
        if self._store.record.generation != self._generation:
            raise ReplacementError(
                f"generation {self._store.record.generation} is in use;"
                f" generation {self._generation} was being filled",
                remedy="another replacement was started; see `dos store status`",
            )

    async def _check_same_server(self) -> None:
        """Raise ReplacementError if another server is at the joining member's address: its disk is lost."""
        try:
            answer = await probe(self._joining.address, self._store.access)
        except DosError:
            return
        if answer.server_id != self._joining.server_id:
            raise ReplacementError(
                f"{self._joining.address} has lost its data: its disk was wiped, or another"
                " server uses its address",
                remedy="start it on an empty data directory and run the command again",
            )

    async def _list_once(self, name: str) -> DirectoryGoal:
        view = await self._store.inspect(name, as_files=True)
        epoch, writer_id = max(view.epochs.values(), default=(0, NO_ID))
        wanted = DirectoryGoal(name, epoch, writer_id)
        for object_name in sorted({one for objects in view.answers.values() for one in objects}):
            copy = longest(view.answers, object_name)
            assert copy is not None
            source = self._store.record.member(copy[0])
            assert source is not None
            wanted.objects[object_name], wanted.sources[object_name] = copy[1], source
            await self._compare_copies(view, wanted, object_name)
        return wanted

    async def _compare_copies(self, view: DirectoryView, wanted: DirectoryGoal, name: str) -> None:
        for server_id, objects in view.answers.items():
            info = objects.get(name)
            if info is None or not info.synced or server_id == wanted.sources[name].server_id:
                continue
            source = await self._reader(wanted, name)
            if (await source.stat(name, info.synced)).digest != info.digest:
                if wanted.loose:
                    wanted.leave(
                        name, "servers have different files of this name, each acknowledged by one server"
                    )
                    return
                raise ReplacementError(
                    f"{wanted.directory}/{name} has different contents on {wanted.sources[name].address} and"
                    f" {server_id.hex()}: it is unknown which one counts"
                )

    async def _reader(self, wanted: DirectoryGoal, name: str) -> Connection:
        return await self._store.reader(wanted.sources[name], wanted.directory)

    async def _missing(self, wanted: DirectoryGoal) -> tuple[list[str], DirectoryOpened]:
        opened = await self._store.reopened(self._joining, wanted.directory)
        present = {info.name: info for info in opened.entries}
        missing = []
        for name, info in list(wanted.objects.items()):
            copy = present.get(name, ObjectInfo(name))
            wanted.copied[name] = copy.synced
            if wanted.loose and copy.synced and not await self._agree(wanted, copy, info):
                wanted.leave(name, "the new server has a different file of this name")
                continue
            if copy.corrupt or copy.poisoned:
                raise ReplacementError(f"the new server's disk failed on {wanted.directory}/{name}")
            if copy.synced < info.synced:
                missing.append(name)
            elif (
                not wanted.loose
                and await self._digest_on_joining(wanted.directory, copy, info.synced) != info.digest
            ):
                raise ReplacementError(
                    f"{wanted.directory}/{name} has different content on the new server",
                    remedy="stop it, empty its data directory, start it, and run the command again",
                )
        return missing, opened

    async def _agree(self, wanted: DirectoryGoal, copy: ObjectInfo, info: ObjectInfo) -> bool:
        """Return whether one of the joining member's part and the wanted content begins with the other."""
        if copy.corrupt or copy.poisoned:
            return False
        if copy.synced >= info.synced:
            return await self._digest_on_joining(wanted.directory, copy, info.synced) == info.digest
        source = await self._reader(wanted, copy.name)
        return (await source.stat(copy.name, copy.synced)).digest == copy.digest

    async def _digest_on_joining(self, directory: str, copy: ObjectInfo, size: int) -> int:
        if copy.synced == size:
            return copy.digest
        connection = await self._store.reader(self._joining, directory)
        return (await connection.stat(copy.name, size)).digest if size else 0

    def _count(self) -> None:
        self._on_progress(
            self._directories,
            self._finished,
            sum(one.total for one in self._wanted),
            sum(one.done for one in self._wanted),
        )

    async def _fill(self, wanted: DirectoryGoal, missing: list[str], live: DirectoryOpened) -> None:
        # P-4: without the claim that the others hold, a fenced writer could reach a quorum with this member.
        epoch, writer_id = max((wanted.epoch, wanted.writer_id), (live.epoch, live.writer_id))
        async with open_member_session(self._store, self._joining) as connection:
            opened = await self._enter(connection, wanted.directory, epoch, writer_id, live.epoch)
            sizes = {info.name: info.synced for info in opened.entries}
            for name in missing:
                copy = _Copy(connection, wanted, name, sizes.get(name, 0), self._count)
                await copy.run(MemberSource(await self._reader(wanted, name), name))

    async def _enter(
        self, connection: Connection, directory: str, epoch: int, writer_id: bytes, held: int
    ) -> DirectoryOpened:
        if not epoch:
            return await connection.open_directory(directory)
        for step in climb(held, epoch):
            opened = await connection.claim(directory, step, writer_id)
        return opened


class _Copy:
    """One object that is being copied to the joining member, over its session: a `CopyTarget`."""

    def __init__(
        self, connection: Connection, wanted: DirectoryGoal, name: str, size: int, count: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._wanted = wanted
        self._name = name
        self._goal = wanted.objects[name]
        self._sent = self._synced = size
        self._moved = trio.Event()
        self._count = count
        connection.on_durability_ack = self._durability_ack
        connection.on_append_refused = lambda _, error: connection.fail(error)

    def _durability_ack(self, mark: DurabilityAck) -> None:
        if mark.name == self._name:
            self._synced = max(self._synced, mark.synced)
            self._wanted.copied[self._name] = self._synced
            self._moved.set()

    async def run(self, source: MemberSource) -> None:
        fold = await fold_at(source, self._sent)
        goal = self._goal
        if await copy_bytes(source, self, fold, {goal.synced: goal.digest}.get) < goal.synced:
            raise NotFoundError(f"{source} no longer has the bytes at {self._sent}")
        while self._synced < goal.synced:
            await self._progress()

    async def wanted(self, offset: int) -> int:
        while self._sent - self._synced >= fill_in_flight_bytes_max:
            await self._progress()
        return min(catch_up_chunk_bytes, max(0, self._goal.synced - offset))

    async def put(self, chunk: Chunk) -> None:
        self._connection.post(*append_frame(self._name, 1, chunk))
        self._sent = chunk.end
        self._count()

    async def _progress(self) -> None:
        self._moved = trio.Event()
        async with background_tasks() as nursery:

            async def broken() -> None:
                await self._connection.wait_broken()
                self._moved.set()

            nursery.start_soon(broken)
            await self._moved.wait()
        if self._connection.failure is not None:
            raise self._connection.failure
