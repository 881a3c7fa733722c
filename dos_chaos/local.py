"""The cluster on the user's disks, and the faults: the ground of a run in directories.

Every process is ended by its own id. A fault undoes itself, also if it is cancelled.
"""

import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from dos_chaos.core.plan import DISK_FULL, KILL, SLOW_DISK, STOP, WIPE, PlannedFault
from dos_chaos.errors import RunRefusedError, ServerStartError
from dos_chaos.fault_log import FaultLog
from dos_chaos.places import EVIDENCE, LOAD, Place
from dos_chaos.servers import ServerProcess
from dos_client import StoreNotReadyError, init_store, replace_member
from dos_protocol.limits import KIB, MIB
from dos_protocol.store_record import default_ack_quorum

LOAD_BYTES: Final = 8 * MIB
LOAD_CHUNK_BYTES: Final = 256 * KIB
STOPPED_S: Final = 0.12
CONTINUED_S: Final = 0.04
REPLACED_S: Final = 120.0


class LocalMember:
    """A server and the place that it is in."""

    def __init__(self, name: str, server: ServerProcess, place: Place) -> None:
        self.name = name
        self.server = server
        self.place = place

    async def kill(self) -> None:
        await trio.to_thread.run_sync(self.server.kill)

    async def restart(self, *options: str) -> None:
        """Start again with these options of `dos serve`."""
        self.server.options = options
        await trio.to_thread.run_sync(self.server.restart)


class LocalServers:
    """The servers of a run. Implements `story.Ground`."""

    token = b""

    def __init__(self, places: Sequence[Place], count: int, plan: Sequence[PlannedFault]) -> None:
        self.members: list[LocalMember] = []
        self.plan = plan
        self._places = places
        self._count = count

    @property
    def url(self) -> str:
        return "dos://" + ",".join(member.server.location for member in self.members)

    @property
    def copies(self) -> int:
        return self._count

    @property
    def evidence(self) -> Path:
        """The directory of logs and acknowledgements, outside of all servers."""
        return self._places[0].path / EVIDENCE

    def directories(self) -> list[str]:
        return ["chaos.w0000", "chaos.w0001", "chaos.w0002", "chaos.coord"]

    async def used_bytes(self) -> int:
        return sum([await trio.to_thread.run_sync(place.used_bytes) for place in self._places])

    async def start(self) -> None:
        """Start the servers, and make them a store. Raises RunRefusedError if one does not start."""
        self.evidence.mkdir(exist_ok=True)
        ended: list[ServerStartError] = []
        async with trio.open_nursery() as nursery:
            for number in range(self._count):
                nursery.start_soon(self._start_server, number, ended)
        if ended:
            raise RunRefusedError(f"a server cannot be started: {ended[0]}")
        self.members.sort(key=lambda member: member.name)
        await init_store(self.url, client="dos chaos")

    async def _start_server(self, number: int, ended: list[ServerStartError]) -> None:
        place = self._places[number % len(self._places)]
        data = place.path / f"s{number + 1}"
        try:
            server = await trio.to_thread.run_sync(ServerProcess, data)
        except ServerStartError as error:
            ended.append(error)
        else:
            self.members.append(LocalMember(data.name, server, place))

    def describe(self) -> str:
        """Return the state of each server, for a progress line."""
        return " ".join(f"{one.name}:{'up' if one.server.running else 'down'}" for one in self.members)

    async def faults(self, log: FaultLog, seconds: float) -> None:
        """Inject the faults of the plan, one after the other; none begins after `seconds`."""
        for fault in self.plan:
            await trio.sleep(max(0.0, fault.start_s - log.clock()))
            if log.clock() >= seconds:
                break
            members = [self.members[number] for number in fault.servers]
            log.begin(fault.kind, [member.name for member in members])
            note = await INJECT[fault.kind](self, members, fault.duration_s)
            log.end(quorum_left=self._quorum_left(fault), note=note)
        await trio.sleep(max(0.0, seconds - log.clock()))

    def _quorum_left(self, fault: PlannedFault) -> bool:
        """Return whether enough servers were left to acknowledge during a fault."""
        return fault.kind == SLOW_DISK or self._count - len(fault.servers) >= default_ack_quorum(self._count)

    async def heal(self) -> None:
        """Every server is up, awake, and without a fault's options."""
        for member in self.members:
            member.server.resume()
            if not member.server.running or member.server.options:
                await member.restart()

    async def reopen(self) -> None:
        """SIGKILL all servers and start them again: what is read then comes from their files."""
        for member in self.members:
            await member.kill()
        await restart_all(self.members)

    async def end(self) -> None:
        """SIGKILL all servers."""
        for member in self.members:
            await member.kill()


# --- the faults ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def killed(members: Sequence[LocalMember]) -> AsyncIterator[None]:
    """The servers are down in this block, and up after it."""
    try:
        for member in members:
            await member.kill()
        yield
    finally:
        with trio.CancelScope(shield=True):
            await restart_all([member for member in members if not member.server.running])


async def restart_all(members: Sequence[LocalMember], *options: str) -> None:
    """Start the servers again, at the same time, with these options; kill those that run."""
    async with trio.open_nursery() as nursery:
        for member in members:
            nursery.start_soon(member.restart, *options)


async def kill(_: LocalServers, members: Sequence[LocalMember], duration_s: float) -> str:
    async with killed(members):
        await trio.sleep(duration_s)
    return ""


async def stop(_: LocalServers, members: Sequence[LocalMember], duration_s: float) -> str:
    try:
        for member in members:
            member.server.pause()
        await trio.sleep(duration_s)
    finally:
        for member in members:
            member.server.resume()
    return ""


async def fill_disk(_: LocalServers, members: Sequence[LocalMember], duration_s: float) -> str:
    """Restart the servers with a reserve that is larger than the free space: to them, the disk is full, and
    no other program notices. Their logs tell whether appends were refused.
    """
    before = {member.name: refusals(member) for member in members}
    try:
        free = max(member.place.free_bytes() for member in members)
        await restart_all(members, "--reserve-mib", str(2 * free // MIB + 1))
        await trio.sleep(duration_s)
    finally:
        with trio.CancelScope(shield=True):
            await restart_all(members)
    refused = [member.name for member in members if refusals(member) > before[member.name]]
    return f"appends refused by {' '.join(refused)}" if refused else "no append was refused: no effect"


def refusals(member: LocalMember) -> int:
    """Return how often a server began to refuse appends because of space."""
    return member.server.log_path.read_bytes().count(b"appends are refused")


async def slow_disk(_: LocalServers, members: Sequence[LocalMember], duration_s: float) -> str:
    """Write and sync a file next to the data without pause, and stop the server in pulses as a slow disk
    does: the load alone has no effect on some disks.
    """
    ended, syncs = threading.Event(), list[float]()
    path = members[0].place.path / LOAD
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, write_and_sync, path, ended, syncs)
            try:
                with trio.move_on_after(duration_s):
                    while True:
                        for member in members:
                            member.server.pause()
                        await trio.sleep(STOPPED_S)
                        for member in members:
                            member.server.resume()
                        await trio.sleep(CONTINUED_S)
            finally:
                ended.set()
                for member in members:
                    member.server.resume()
    finally:
        path.unlink(missing_ok=True)
    syncs.sort()
    median = syncs[len(syncs) // 2]
    return f"{len(syncs)} syncs of {LOAD_CHUNK_BYTES // KIB} KiB beside it, median {median:.1f} ms"


def write_and_sync(path: Path, ended: threading.Event, sync_ms: list[float]) -> None:
    """Overwrite a file of bounded size, each chunk synced, at least once, until ended."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    position = 0
    try:
        while not sync_ms or not ended.is_set():
            begun = time.monotonic()
            os.pwrite(handle, os.urandom(LOAD_CHUNK_BYTES), position)
            os.fsync(handle)
            sync_ms.append(1_000 * (time.monotonic() - begun))
            position = (position + LOAD_CHUNK_BYTES) % LOAD_BYTES
    finally:
        os.close(handle)


async def wipe(ground: LocalServers, members: Sequence[LocalMember], _: float) -> str:
    """Lose a disk; the fault ends when its replacement is filled."""
    (member,) = members
    async with killed(members):
        await trio.to_thread.run_sync(shutil.rmtree, member.server.data)
    begun = trio.current_time()
    with trio.fail_after(REPLACED_S):
        while True:
            try:
                await replace_member(
                    ground.url, old=member.server.location, new=member.server.location, client="dos chaos"
                )
            except StoreNotReadyError:  # a server that was just started does not answer yet
                await trio.sleep(0.1)
            else:
                break
    return f"filled again in {trio.current_time() - begun:.1f} s"


INJECT: Final[dict[str, Callable[[LocalServers, Sequence[LocalMember], float], Awaitable[str]]]] = {
    KILL: kill,
    STOP: stop,
    DISK_FULL: fill_disk,
    SLOW_DISK: slow_disk,
    WIPE: wipe,
}
"""Kind -> the function that injects it, waits and undoes it."""
