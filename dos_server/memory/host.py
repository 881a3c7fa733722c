"""A machine in memory: an address, a disk, and the successive incarnations of its server process.

The server is the real `server.ObjectServer`. An incarnation ends as a process ends: nothing that it does in
its last moment reaches the disk or a peer. Disk work takes virtual time: it begins, later it touches the
disk, later its end is reported. So a write during a sync is covered or not, as on a real disk. With real
loopback sockets a host without power looks like a killed process, because the kernel lives on.
"""

import contextlib
import random
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import trio

from dos_protocol.names import id_text
from dos_protocol.store_record import StoreRecord, encode_store_record
from dos_server.core import vocabulary as v
from dos_server.core.requests.scrub import NO_SCRUB, ScrubPlan
from dos_server.embedded import listen_on
from dos_server.memory.disk import MemoryDisk
from dos_server.memory.network import MemoryListener, MemorySocket, MemoryTimers
from dos_server.ports import Listener, WorkerPool, Workers
from dos_server.server import ObjectServer
from dos_server.storage import Storage
from dos_tls.readiness import Call, ReadyCall, Rounds

# --- The interfaces of `dos_server.ports` ------------------------------------------------------------------


T = TypeVar("T")
Job = TypeVar("Job")
Result = TypeVar("Result")


class MemoryRounds:
    """Rounds as of `readiness.Readiness`. `rng` shuffles the sockets that are ready at the same time."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng
        self._watched: dict[MemorySocket, tuple[ReadyCall, bool, bool]] = {}
        self._soon: deque[Call] = deque()
        self._done: deque[Call] = deque()
        self._ready: dict[MemorySocket, None] = {}
        self._lot = trio.lowlevel.ParkingLot()

    def watch(self, sock: MemorySocket, call: ReadyCall, *, reading: bool, writing: bool) -> None:
        if reading or writing:
            known = self._watched.get(sock)
            self._watched[sock] = (known[0] if known is not None else call, reading, writing)
            sock.moved = partial(self._moved, sock)
            self._moved(sock)
        elif self._watched.pop(sock, None) is not None:
            sock.moved = None

    async def wait_readable(self, sock: MemorySocket | MemoryListener) -> None:
        await trio.lowlevel.checkpoint()
        while not sock.readable:
            await sock.wait()

    def soon(self, call: Call) -> None:
        self._soon.append(call)
        self._ring()

    def done(self, call: Call) -> None:
        self._done.append(call)
        self._ring()

    def yield_to_loop(self) -> None:
        """Do nothing: there are no threads."""

    def _ring(self) -> None:
        self._lot.unpark_all()

    def _moved(self, sock: MemorySocket) -> None:
        if sock not in self._ready and self._is_ready(sock):
            self._ready[sock] = None
            self._ring()

    def _is_ready(self, sock: MemorySocket) -> bool:
        if sock not in self._watched:
            return False
        _, reading, writing = self._watched[sock]
        return sock.broken or (reading and sock.readable) or (writing and sock.writable)

    def _take_ready(self) -> list[MemorySocket]:
        ready, self._ready = [one for one in self._ready if self._is_ready(one)], {}
        self._ready.update(dict.fromkeys(ready))
        return ready

    async def run(self, round_ended: Call) -> None:
        while True:
            if self._done or self._soon or self._take_ready():
                await trio.lowlevel.checkpoint()
            else:
                await self._lot.park()
            ready = self._take_ready()
            if self._rng is not None:
                self._rng.shuffle(ready)
            for sock in ready:
                watched = self._watched.get(sock)
                if watched is not None:
                    call, reading, _ = watched
                    call(readable=sock.broken or (reading and sock.readable))
            while self._done:
                self._done.popleft()()
            for _ in range(len(self._soon)):
                self._soon.popleft()()
            round_ended()

    def close(self) -> None:
        for sock in self._watched:
            sock.moved = None
        self._watched.clear()


class MemoryWorkers(WorkerPool[Job, Result]):
    """A pool without threads. `durations_s`: seconds until a job touches the disk, and until its end is
    reported.
    """

    def __init__(
        self,
        work: Callable[[Job], Result],
        on_result: Callable[[Result], None],
        rounds: Rounds,
        threads_max: int,
        timers: MemoryTimers,
        durations_s: Callable[[], tuple[float, float]],
    ) -> None:
        super().__init__(work, on_result, threads_max)
        self._rounds = rounds
        self._timers = timers
        self._durations_s = durations_s
        self._begun: dict[int, Job] = {}
        self._last = 0
        self._closed = False

    def begin(self, job: Job) -> None:
        self._running += 1
        self._last += 1
        self._begun[self._last] = job
        before_s, after_s = self._durations_s()
        self._later(before_s, partial(self._touch, self._last, after_s))

    def _later(self, seconds: float, call: Call) -> None:
        if seconds > 0:
            self._timers.after(seconds, lambda: self._rounds.done(call))
        else:
            self._rounds.done(call)

    def _touch(self, number: int, after_s: float) -> None:
        job = self._begun.pop(number, None)
        if job is not None and not self._closed:
            self._later(after_s, partial(self._ended, self._work(job)))

    def _ended(self, result: Result) -> None:
        if not self._closed:
            super()._ended(result)

    def close(self) -> None:
        """Finish the jobs that have begun, at once, and report none of them."""
        self._closed = True
        while self._begun:
            self._work(self._begun.pop(next(iter(self._begun))))


class MemoryPorts:
    def __init__(
        self,
        timers: MemoryTimers,
        rng: random.Random | None = None,
        durations_s: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
        make_rounds: Callable[[random.Random | None], Rounds] = MemoryRounds,
        ids: random.Random | None = None,
    ) -> None:
        self._timers = timers
        self._rng = rng
        self._make_rounds = make_rounds
        self._ids = ids or rng or random.SystemRandom()
        self._durations_s = durations_s
        self.hurried = False
        """The machine is gone: remaining waits take no time."""

    def rounds(self) -> Rounds:
        return self._make_rounds(self._rng)

    def workers(
        self,
        work: Callable[[Job], Result],
        on_result: Callable[[Result], None],
        rounds: Rounds,
        threads_max: int,
    ) -> Workers[Job]:
        return MemoryWorkers(work, on_result, rounds, threads_max, self._timers, self._durations_s)

    async def in_thread(self, call: Callable[[], T], limiter: trio.CapacityLimiter | None = None) -> T:
        del limiter  # there are no threads to limit
        before_s, after_s = (0.0, 0.0) if self.hurried else self._durations_s()
        await trio.sleep(before_s)
        result = call()
        await trio.sleep(after_s)
        return result

    def monotonic(self) -> float:
        return trio.current_time()

    def fresh_id(self) -> bytes:
        return self._ids.randbytes(16)


# --- Real loopback sockets as the network of hosts in memory -----------------------------------------------


class LoopbackListener:
    """A listening socket that remembers the connections it accepted; the interface of a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._accepted: WeakSet[socket.socket] = WeakSet()

    def fileno(self) -> int:
        return self._sock.fileno()

    def setblocking(self, flag: bool, /) -> None:
        self._sock.setblocking(flag)

    def accept(self) -> tuple[socket.socket, object]:
        sock, peer = self._sock.accept()
        self._accepted.add(sock)
        return sock, peer

    def close(self) -> None:
        self._sock.close()

    def cut(self) -> None:
        """Close it, and shut down every accepted connection before the server can send anything more."""
        self._sock.close()
        for sock in list(self._accepted):
            with contextlib.suppress(OSError):  # the connection is already closed
                sock.shutdown(socket.SHUT_RDWR)


class Loopback:
    """The loopback network. A host is one of its addresses: 127.0.0.1, 127.0.0.2 and so on."""

    def __init__(self) -> None:
        self._reserved: dict[tuple[str, int], socket.socket] = {}
        self._listeners: dict[str, LoopbackListener] = {}

    def reserve(self, host: str) -> int:
        """Return a free port of a host, which is reserved until the host listens on it."""
        sock = listen_on(host, 0)
        port: int = sock.getsockname()[1]
        self._reserved[host, port] = sock
        return port

    def listen(self, host: str, port: int) -> LoopbackListener:
        sock = self._reserved.pop((host, port), None)
        listener = self._listeners[host] = LoopbackListener(listen_on(host, port) if sock is None else sock)
        return listener

    def process_died(self, host: str) -> None:
        listener = self._listeners.pop(host, None)
        if listener is not None:
            listener.cut()

    power_lost = process_died

    def power_back(self, host: str) -> None:
        """Do nothing: the kernel was never gone."""

    def close(self) -> None:
        for sock in self._reserved.values():
            sock.close()


# --- The machine -------------------------------------------------------------------------------------------


class HostNetwork(Protocol):
    def listen(self, host: str, port: int) -> Listener: ...

    def process_died(self, host: str) -> None: ...

    def power_lost(self, host: str) -> None: ...

    def power_back(self, host: str) -> None: ...


class MemoryHost:
    """A machine in memory. `make_ports`: the interfaces of each incarnation. `server`: of the current one, if
    any.
    """

    def __init__(
        self,
        network: HostNetwork,
        host: str,
        port: int,
        make_ports: Callable[[], MemoryPorts],
        *,
        disk: MemoryDisk | None = None,
        **options: Any,
    ) -> None:
        self.network = network
        self.host = host
        self.port = port
        self.disk = disk if disk is not None else MemoryDisk()
        self.server: ObjectServer | None = None
        self.without_power = False
        self._make_ports = make_ports
        self._ports = make_ports()
        self._options = options
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def up(self) -> bool:
        return self.server is not None and not self._scope.cancel_called

    def prepare(self, fresh_id: bytes, record: StoreRecord | None = None) -> None:
        storage = Storage(self.disk)
        storage.start(fresh_id)
        storage.add_stamp(fresh_id)  # with the identity, as in the start of a new server
        if record is not None:
            storage.store_record(v.WriteStoreRecord(0, 0, encode_store_record(record)))
        storage.stop()

    def start(self, nursery: trio.Nursery, scrub: ScrubPlan = NO_SCRUB, *, log_bytes: int = 0) -> None:
        assert self.server is None, "the server runs already"
        self.disk.off = False
        self._ports = self._make_ports()
        server = ObjectServer(
            Storage(self.disk), ports=self._ports, scrub=scrub, log_bytes=log_bytes, **self._options
        )
        if self.without_power:
            self.without_power = False
            self.network.power_back(self.host)
        listener = self.network.listen(self.host, self.port)
        self.server, self._scope, self._ended = server, trio.CancelScope(), trio.Event()
        nursery.start_soon(self._live, server, listener, self._scope, self._ended)

    async def _live(
        self, server: ObjectServer, listener: Listener, scope: trio.CancelScope, ended: trio.Event
    ) -> None:
        try:
            with scope:
                await server.serve(listener)
        finally:
            self.server = None
            ended.set()

    def stop(self) -> None:
        """End it as SIGTERM does: work that has begun is finished, files are synced and closed."""
        self._scope.cancel()

    def crash(self) -> None:
        """End it as SIGKILL does: what was written stays in the page cache, connections are closed."""
        if self._end_abruptly():
            self.network.process_died(self.host)
            self.disk.kill()

    def power_cut(self, rng: Random) -> None:
        """End the machine: unsynced data is lost at random, and no peer is notified."""
        self._end_abruptly()
        self.without_power = True
        self.network.power_lost(self.host)
        self.disk.power_cut(rng)

    def _end_abruptly(self) -> bool:
        """Cancel the server's tasks, before the disk and network change in a way that they would notice."""
        if self.server is None:
            return False
        self._scope.cancel()
        self.disk.off = True
        self._ports.hurried = True
        return True

    async def wait_ended(self) -> None:
        if self.server is not None:
            await self._ended.wait()

    @property
    def server_id(self) -> str:
        return id_text(self.server.server_id) if self.server is not None else ""
