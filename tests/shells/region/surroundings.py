"""The environment of the processes of a region, in memory: `checkpoint.runtime` for one run.

As `dos_server.memory.host`. `here` returns the process that calls; each has a host of its own.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Final, TypeVar

import trio

from dataflow.worker.spec import Clock
from dos_server.memory.network import MemoryNetwork, here
from tests.support.memory_streams import (
    MemoryTcpListener,
    MemoryTcpStream,
    open_memory_listeners,
    open_memory_stream,
)

T = TypeVar("T")
_BEGAN_NS: Final = 1_700_000_000 * 1_000_000_000
"""When runs begin, as their clocks say."""


class Threads:
    """The threads of one process. `end` when it is killed: what they were at is never done."""

    def __init__(self) -> None:
        self._scopes: dict[trio.CancelScope, None] = {}
        self._over = False

    def end(self) -> None:
        self._over = True
        for scope in self._scopes:
            scope.cancel()

    async def run(self, takes_s: tuple[float, float], call: Callable[..., T], *args: Any) -> T:
        """Begin the work; some time later it is done; some time later that is reported. A canceled caller
        waits for it, as with a real thread."""
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True) as scope:
            self._scopes[scope] = None
            try:
                await trio.sleep(takes_s[0])
                await trio.lowlevel.checkpoint_if_cancelled()
                result = call(*args)
                await trio.sleep(takes_s[1])
                return result
            finally:
                del self._scopes[scope]
        assert self._over, "nobody else cancels this"
        await trio.sleep_forever()  # the process is gone
        raise AssertionError("unreachable")


class Surroundings:
    """The environment of all processes of one run."""

    def __init__(self, network: MemoryNetwork, rng: Random) -> None:
        self._network = network
        self._rng = rng
        self.threads: dict[str, Threads] = {}

    async def connect(self, host: str, port: int) -> MemoryTcpStream:
        return await open_memory_stream(self._network, host, port)

    async def listen(self, host: str, port: int, backlog: int) -> list[MemoryTcpListener]:
        del backlog
        return await open_memory_listeners(self._network, host, port)

    def silent_s(self, stream: Any) -> float:
        return self._network.silent_s(stream.socket)

    async def in_thread(self, call: Callable[..., T], *args: Any) -> T:
        typical_s = 0.002 * self._rng.lognormvariate(0.0, 0.7)
        before_s = typical_s * self._rng.random()
        return await self.threads[here.get()].run((before_s, typical_s - before_s), call, *args)

    def wall_time_ns(self) -> int:
        return _BEGAN_NS + int(trio.current_time() * 1e9)

    def host_name(self) -> str:
        return here.get()

    def process_id(self) -> int:
        return 1

    def user_name(self) -> str:
        return "user"


class CircuitClock(Clock):
    """A circuit's time: a piece of work takes none in itself."""

    def seconds(self) -> float:  # type: ignore[override]
        return trio.current_time()

    def wall_ms(self) -> int:  # type: ignore[override]
        return (_BEGAN_NS + int(trio.current_time() * 1e9)) // 1_000_000
