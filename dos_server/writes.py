"""Writes of extents: in the event loop, where they are cheapest, or in threads while the disk is slow.

A write goes to the page cache: it is a memory copy, which no other thread could make cheaper (decision 0001).
But if the disk hangs, the write waits for room in the cache or for the journal of the file system, and with
it every client of the loop. So while a sync has been running for long, or if the last write in the loop was
slow, writes go to threads, and the loop continues with work that needs no disk. The payload is copied then,
because its receive buffer will soon be reused. After the slow syncs have ended, writes return to the loop.

The bytes that wait in threads are bounded: above the limit nothing more is read from any connection.
"""

from collections.abc import Callable

from dos_server.core import vocabulary as v
from dos_server.limits import slow_disk_seconds, slow_writes_bytes_max, write_threads_max
from dos_server.ports import Ports, Rounds, Workers
from dos_server.storage import Storage


class Writes:
    """The writes of one server. `on_result` is called in the event loop with each result of a thread."""

    def __init__(
        self, storage: Storage, on_result: Callable[[v.Event | None], None], rounds: Rounds, ports: Ports
    ) -> None:
        self._storage = storage
        self._on_result = on_result
        self._clock = ports.monotonic
        self._threads: Workers[v.Write] = ports.workers(self._work, self._ended, rounds, write_threads_max)
        self._syncs: dict[tuple[str, str], float] = {}
        self._slow_until = 0.0
        self._waiting_bytes = 0

    @property
    def full(self) -> bool:
        """Whether so much waits for the disk that no more input should be read."""
        return self._waiting_bytes > slow_writes_bytes_max

    @property
    def busy(self) -> bool:
        return self._threads.busy

    def sync_began(self, directory: str, name: str) -> None:
        """Note the start of a sync. An object has one at a time, as the log has; they end in any order."""
        self._syncs[directory, name] = self._clock()

    def sync_ended(self, directory: str, name: str) -> None:
        del self._syncs[directory, name]

    def write(self, effect: v.Write) -> v.Written | None:
        """Write now and return the result; None: a thread writes, and `on_result` gets the result."""
        began = self._clock()
        if self._is_slow(began):
            buffers = [bytes(one) for one in effect.buffers]
            self._waiting_bytes += sum(map(len, buffers))
            self._threads.start(effect._replace(buffers=list(buffers)))
            return None
        failure = self._storage.write(effect)
        ended = self._clock()
        if ended - began > slow_disk_seconds:
            self._slow_until = ended + slow_disk_seconds
        return v.Written(effect.directory, effect.name, failure)

    def _is_slow(self, now: float) -> bool:
        if now < self._slow_until or self._waiting_bytes:
            return True
        for began in self._syncs.values():  # the first is the oldest
            return now - began > slow_disk_seconds
        return False

    def _work(self, effect: v.Write) -> tuple[v.Write, v.Written]:
        return effect, v.Written(effect.directory, effect.name, self._storage.write(effect))

    def _ended(self, done: tuple[v.Write, v.Written]) -> None:
        effect, written = done
        self._waiting_bytes -= sum(map(len, effect.buffers))
        self._on_result(written)

    def close(self) -> None:
        """Wait until every write that has begun is finished."""
        self._threads.close()
