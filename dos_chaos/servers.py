"""The ground of a run in directories: the places on the user's disks, the servers in them, and the faults.

A run creates only the names of `OWN` in a directory, and deletes only these. A marker file identifies the
directory as a run's; it is locked while the run lasts. Servers are `dos serve` on loopback, ended by their
own process id. A fault undoes itself, also if it is cancelled.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

import trio

from dos_chaos import RunRefusedError, ServerStartError
from dos_chaos.core.plan import DISK_FULL, KILL, SLOW_DISK, STOP, WIPE, PlannedFault
from dos_chaos.story import FaultLog
from dos_client import StoreNotReadyError, init_store, replace_member
from dos_protocol.limits import KIB, MIB
from dos_protocol.store_record import default_ack_quorum

MARKER: Final = "dos-chaos.json"
EVIDENCE: Final = "evidence"
LOAD: Final = "load"
SERVERS_MAX: Final = 3
OWN: Final = frozenset(
    [MARKER, EVIDENCE, LOAD]
    + [f"s{number}{suffix}" for number in range(1, SERVERS_MAX + 1) for suffix in ("", ".log")]
)
RUNNING: Final = "running"
KEPT: Final = "kept"
FREE_BYTES_MIN: Final = 256 * MIB
"""Stays free on every file system, beyond the budget, for the programs that share the disk."""
PROBES: Final = 30


@dataclass(frozen=True, slots=True)
class PlaceInfo:
    """A directory as the report describes it. `sync_ms`: median and maximum of small synced writes."""

    path: str
    file_system: str
    device: str
    options: str
    free_bytes: int
    sync_ms: tuple[float, float]


class Place:
    """One directory, locked for one run. Raises RunRefusedError, with nothing changed, if it is unfit."""

    def __init__(self, path: Path, *, discard: bool) -> None:
        self.path = path.absolute()
        self._created = not self.path.exists()
        self._lock = -1
        self.state = ""
        found = self._found()
        if found and MARKER not in found:
            raise RunRefusedError(
                f"{self.path} is not empty: it has {', '.join(sorted(found)[:3])}; pass an empty directory"
            )
        if foreign := sorted(found - OWN):
            raise RunRefusedError(
                f"{self.path} is a run's, but also has {', '.join(foreign[:3])}; move that away, nothing of"
                " it is deleted"
            )
        try:
            if self._created:
                self.path.mkdir()
            self._take_lock()
        except OSError as error:
            raise RunRefusedError(f"{self.path} cannot be used: {error.strerror}") from error
        try:
            if found:
                self._take_over(discard=discard)
        except BaseException:
            os.close(self._lock)
            raise

    def _found(self) -> set[str]:
        try:
            return {path.name for path in self.path.iterdir()}
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise RunRefusedError(f"{self.path} cannot be used: {error.strerror}") from error

    def _take_lock(self) -> None:
        self._lock = os.open(self.path / MARKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise RunRefusedError(f"{self.path} is in use by another run of dos chaos") from None

    def _take_over(self, *, discard: bool) -> None:
        marker = self._read()
        if marker.get("program") != "dos chaos":
            raise RunRefusedError(f"{self.path / MARKER} is not the marker of a run; pass an empty directory")
        if marker.get("state") == KEPT and not discard:
            raise RunRefusedError(
                f"{self.path} has the evidence of an earlier run (seed {marker.get('seed')}); pass --discard"
                " to delete it, or another directory"
            )
        if pids := servers_in(self.path):
            raise RunRefusedError(
                f"servers of an earlier run still use {self.path}: end them with"
                f"  kill -9 {' '.join(map(str, pids))}  and run the command again"
            )
        self._delete_contents()

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(os.pread(self._lock, 10_000, 0))
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    def mark(self, state: str, seed: int) -> None:
        """Write into the marker what the directory holds: a run in progress, or evidence."""
        self.state = state
        content = json.dumps({"program": "dos chaos", "state": state, "seed": seed, "pid": os.getpid()})
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, content.encode(), 0)
        os.fsync(self._lock)

    def used_bytes(self) -> int:
        return sum(_used(self.path))

    def free_bytes(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def info(self) -> PlaceInfo:
        """Describe the directory, and measure its sync latency, which takes some small writes."""
        device, kind, options = mount_of(self.path)
        return PlaceInfo(str(self.path), kind, device, options, self.free_bytes(), self._sync_ms())

    def _sync_ms(self) -> tuple[float, float]:
        path, times = self.path / LOAD, list[float]()
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            for _ in range(PROBES):
                begun = time.monotonic()
                os.write(handle, bytes(4_096))
                os.fdatasync(handle)
                times.append(1_000 * (time.monotonic() - begun))
        finally:
            os.close(handle)
            path.unlink()
        times.sort()
        return times[len(times) // 2], times[-1]

    def remove(self) -> None:
        """Delete everything of the run, and the directory if the run created it."""
        self._delete_contents()
        (self.path / MARKER).unlink(missing_ok=True)
        self.close()
        if self._created:
            self.path.rmdir()

    def _delete_contents(self) -> None:
        for name in OWN - {MARKER}:
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock; what is there stays."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def take_places(paths: Sequence[Path], *, space_bytes: int, discard: bool) -> list[Place]:
    """Lock the directories. Raises RunRefusedError with all of them as they were, except for what earlier
    runs left in those that were accepted.
    """
    resolved = [path.resolve() for path in paths]
    for path, other in ((one, two) for one in resolved for two in resolved if one is not two):
        if path.is_relative_to(other):
            raise RunRefusedError(
                f"{path} is named twice, or is inside of {other}; pass separate directories"
            )
    places: list[Place] = []
    try:
        for path in resolved:
            places.append(Place(path, discard=discard))
            free = places[-1].free_bytes()
            if free < space_bytes + FREE_BYTES_MIN:
                raise RunRefusedError(
                    f"{path} has {free // MIB} MiB free; needed are the {space_bytes // MIB} MiB of"
                    f" --space-mib and {FREE_BYTES_MIN // MIB} MiB that stay free for other programs"
                )
    except RunRefusedError:
        for place in places:
            place.remove()
        raise
    return places


def _used(path: Path) -> Iterator[int]:
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _used(Path(entry.path))
                yield entry.stat(follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return


def servers_in(path: Path) -> list[int]:
    """Return the process ids of servers whose data directory is in `path`."""
    found, prefix = [], os.fsencode(path) + b"/"
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = command.read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if b"serve" in words and any(word.startswith(prefix) for word in words):
            found.append(int(command.parent.name))
    return sorted(found)


def mount_of(path: Path) -> tuple[str, str, str]:
    """Return device, type and mount options of the file system of a path, from `/proc/self/mountinfo`."""
    best, found = -1, ("unknown", "unknown", "unknown")
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        before, _, after = line.partition(" - ")
        point, options = before.split()[4:6]
        kind, device = after.split()[:2]
        point = point.encode().decode("unicode_escape")  # spaces are written as \040
        if path.is_relative_to(point) and len(point) >= best:
            best, found = len(point), (device, kind, options)
    return found


START_SECONDS_MAX = 90.0  # a machine that other tests keep busy


def hold_port(port: int, host: str = "127.0.0.1") -> socket.socket:
    """Return a socket bound to a port, a free one for 0, that does not listen."""
    # A server with SO_REUSEADDR still can, and the kernel gives the port to nobody else who asks for any.
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, port))
    return held


class ServerProcess:
    """One `dos serve`. Listens when the constructor returns. Attributes: data, address, server_id.

    `under`: a program that runs another one, and ends as that one. `host`: the address to listen on; one that
    is not of loopback needs `--insecure` or TLS in `options`.
    """

    def __init__(
        self,
        data: Path,
        *,
        port: int = 0,
        options: tuple[str, ...] = (),
        log_path: Path | None = None,
        under: tuple[str, ...] = (),
        host: str = "127.0.0.1",
    ) -> None:
        self.data = data
        self.under = under
        self.options = options
        self.log_path = log_path or data.with_name(data.name + ".log")
        held = hold_port(port, host)
        weakref.finalize(self, held.close)
        self.address: tuple[str, int] = held.getsockname()
        self.server_id = ""
        self._start()

    def _start(self) -> None:
        # the options here are all of its options: not those of a service of this machine
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DOS_SERVE_")}
        environment["DOS_CONFIG"] = os.devnull
        with self.log_path.open("ab") as log:
            arguments = ["serve", "--data", str(self.data), "--listen", self.location, "--verbose"]
            self.process = self._begin([*arguments, *self.options], environment, log)
        watchdog = threading.Timer(START_SECONDS_MAX, self.process.kill)
        watchdog.start()
        try:
            line = self.process.stdout.readline() if self.process.stdout else ""
        finally:
            watchdog.cancel()
        match = re.search(rf"at {re.escape(self.location)}, server id ([0-9a-f]{{32}})", line)
        if match is None:
            code = self.process.poll()
            self.kill()
            how = "it is silent" if code is None else f"it ended with exit code {code}"
            raise ServerStartError(f"server did not start, {how}: {line!r}\n{self.log_path.read_text()}")
        self.server_id = match[1]

    def _begin(
        self, arguments: list[str], environment: dict[str, str], log: IO[bytes]
    ) -> "subprocess.Popen[str]":
        command = [*self.under, sys.executable, "-m", "dos_cli", *arguments]
        return subprocess.Popen(  # noqa: S603 - our own program
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        return f"dos://{self.location}"

    @property
    def location(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, and wait for the clean end. Returns the exit code."""
        return self._end(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> int:
        if self.running:
            self.process.send_signal(number)
        try:
            code = self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def restart(self) -> None:
        """Start again on the same port and data, after `kill` or `stop`; kills it first if it still runs."""
        self.kill()
        self._start()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


LOAD_BYTES: Final = 8 * MIB
LOAD_CHUNK_BYTES: Final = 256 * KIB
STOPPED_S: Final = 0.12
CONTINUED_S: Final = 0.04
REPLACED_S: Final = 120.0


class LocalMember:
    def __init__(self, name: str, server: ServerProcess, place: Place) -> None:
        self.name = name
        self.server = server
        self.place = place

    async def kill(self) -> None:
        await trio.to_thread.run_sync(self.server.kill)

    async def restart(self, *options: str) -> None:
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
        return fault.kind == SLOW_DISK or self._count - len(fault.servers) >= default_ack_quorum(self._count)

    async def heal(self) -> None:
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
