"""Reads for GETs, paced so that answers do not pile up in memory for peers that do not read them.

This module decides when a read goes to the disk and how much it reads; `storage` reads.
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from dos_server.buffers import OutgoingAccount
from dos_server.connection import ServerConnection
from dos_server.core import vocabulary as v
from dos_server.limits import (
    outgoing_bytes_max,
    outgoing_pressed_bytes,
    outgoing_total_bytes_max,
    read_bytes_in_flight_max,
    reads_in_flight_max,
)
from dos_server.ports import Ports, Rounds
from dos_server.storage import Storage


class PacedReads:
    """The GETs that are at the disk or waiting.

    `connections`: the open ones, by session. `on_result` is called in the event loop with each result. The
    reads of one session begin in the order of the requests.
    """

    def __init__(
        self,
        storage: Storage,
        connections: Mapping[int, ServerConnection],
        outgoing: OutgoingAccount,
        readiness: Rounds,
        on_result: Callable[[v.GotData], None],
        ports: Ports,
    ) -> None:
        self._connections = connections
        self._outgoing = outgoing
        self._reserved_bytes = 0
        self._on_result = on_result
        self._readiness = readiness
        self._threads = ports.workers(storage.read, self._ended, readiness, reads_in_flight_max)
        self.waiting: dict[int, deque[v.ReadData]] = {}

    @property
    def busy(self) -> bool:
        """Whether a read is in progress."""
        return self._threads.busy

    def submit(self, effect: v.ReadData) -> None:
        """Read as soon as the peer has taken enough of its earlier answers."""
        waiting = self.waiting.get(effect.session)
        if waiting is not None:
            waiting.append(effect)
        elif not self._begin(effect):
            self.waiting[effect.session] = deque((effect,))

    def inspect(self) -> None:
        """Begin the reads that have become possible, after answers were taken or a peer left."""
        sessions = deque(self.waiting)
        while sessions:  # one read of each, then the next one of each
            session = sessions.popleft()
            waiting = self.waiting[session]
            if not self._begin(waiting[0]):
                continue
            waiting.popleft()
            del self.waiting[session]
            if waiting:
                self.waiting[session] = waiting  # behind the others
                sessions.append(session)

    def _begin(self, effect: v.ReadData) -> bool:
        """Try to begin a read: a shorter one if many peers are slow, none for a peer that is gone."""
        connection = self._connections.get(effect.session)
        if connection is None:
            self._readiness.soon(partial(self._on_result, v.GotData(effect, b"")))
            return True
        wanted = effect.end - effect.start
        if self._reserved_bytes and self._reserved_bytes + wanted > read_bytes_in_flight_max:
            return False
        held = connection.outgoing_bytes + connection.reserved_bytes
        if held + wanted > outgoing_bytes_max:
            return False
        if self._outgoing.held + self._reserved_bytes > outgoing_total_bytes_max:
            if held:
                return False
            effect = effect._replace(end=min(effect.end, effect.start + outgoing_pressed_bytes))
        connection.reserved_bytes += effect.end - effect.start
        self._reserved_bytes += effect.end - effect.start
        self._threads.start(effect)
        return True

    def _ended(self, event: v.GotData) -> None:
        count = event.read.end - event.read.start
        self._reserved_bytes -= count
        connection = self._connections.get(event.read.session)
        if connection is not None:
            connection.reserved_bytes -= count
        self._on_result(event)

    def close(self) -> None:
        """Wait for the reads that have begun."""
        self._threads.close()
