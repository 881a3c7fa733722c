"""Writes of extents: in the event loop, where they cost least, or in threads while the disk takes its time.

A write goes to the page cache: a memory copy, and no other thread could make it cheaper (decision 0001). But
a disk that hangs makes it wait too, for room in the cache or for the journal of the file system, and with it
everybody whom the loop serves. So while a sync has been under way for long, or when the last write in the
loop took long, writes are handed to threads, and the loop goes on with what needs no disk. The payload is
copied then: it lies in a buffer that is soon used again. When the syncs end, so does that.

What waits in threads is bounded: beyond that nothing more is read from any connection.

Rules of this file: where a write is made. What it means, the core says; what is written, `storage`.
"""

from collections.abc import Callable

from dos_server.core import vocabulary as v
from dos_server.limits import slow_disk_seconds, slow_writes_bytes_max, write_threads_max
from dos_server.ports import Ports, Rounds, Workers
from dos_server.storage import Storage


class Writes:
    """See the module. `hear`: what a thread has done."""

    def __init__(
        self, storage: Storage, hear: Callable[[v.Event | None], None], rounds: Rounds, ports: Ports
    ) -> None:
        self._storage = storage
        self._hear = hear
        self._clock = ports.monotonic
        self._threads: Workers[v.Write] = ports.workers(self._work, self._ended, rounds, write_threads_max)
        self._syncs: dict[tuple[str, str], float] = {}
        self._slow_until = 0.0
        self._waiting_bytes = 0

    @property
    def full(self) -> bool:
        """So much waits for the disk that no more should come."""
        return self._waiting_bytes > slow_writes_bytes_max

    @property
    def busy(self) -> bool:
        return self._threads.busy

    def sync_began(self, sync: v.Sync) -> None:
        """One at a time an object; they end in any order."""
        self._syncs[sync.directory, sync.name] = self._clock()

    def sync_ended(self, synced: v.Synced) -> None:
        del self._syncs[synced.directory, synced.name]

    def write(self, effect: v.Write) -> v.Written | None:
        """Write now, and say how that ended; None: a thread does it, and it is heard of later."""
        began = self._clock()
        if self._is_slow(began):
            buffers = [bytes(one) for one in effect.buffers]
            self._waiting_bytes += sum(map(len, buffers))
            self._threads.start(effect._replace(buffers=list(buffers)))
            return None
        trouble = self._storage.write(effect)
        ended = self._clock()
        if ended - began > slow_disk_seconds:
            self._slow_until = ended + slow_disk_seconds
        return v.Written(effect.directory, effect.name, trouble)

    def _is_slow(self, now: float) -> bool:
        if now < self._slow_until or self._waiting_bytes:
            return True
        for began in self._syncs.values():  # the oldest is the first
            return now - began > slow_disk_seconds
        return False

    def _work(self, effect: v.Write) -> tuple[v.Write, v.Written]:
        return effect, v.Written(effect.directory, effect.name, self._storage.write(effect))

    def _ended(self, done: tuple[v.Write, v.Written]) -> None:
        effect, written = done
        self._waiting_bytes -= sum(map(len, effect.buffers))
        self._hear(written)

    def close(self) -> None:
        """Wait until every write that began has ended."""
        self._threads.close()
