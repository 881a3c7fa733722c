"""Accepts connections, as many as there may be at once.

A new connection is preferred to one whose peer has not shown yet that it may use the server: peers that
connect and send nothing lock nobody out. Of these, the oldest one of the host that has most of them ends. A
session that has greeted is never ended for another one.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import trio

from dos_server import limits, sockets
from dos_server.connection import ServerConnection
from dos_server.ports import Listener, Rounds, Socket
from dos_server.tls_sockets import TlsPeers

logger = logging.getLogger("dos.server")
_PAUSE_SECONDS: Final = 0.1


class ConnectionGate:
    """open_now: the open connections, the oldest first. begin: takes what a new connection is read from."""

    def __init__(
        self,
        open_now: Mapping[int, ServerConnection],
        begin: Callable[[Socket], None],
        tls: TlsPeers | None,
        warn: Callable[[str, str], object],
    ) -> None:
        self._open, self._begin, self._tls, self._warn = open_now, begin, tls, warn
        self._descriptors = sockets.descriptors_for_connections()

    async def run(self, listener: Listener, readiness: Rounds) -> None:
        """Accept until cancelled."""
        while True:
            await readiness.wait_readable(listener)
            try:
                for sock in sockets.accept_some(listener):
                    self._take(sock)
            except OSError as error:  # no free descriptor, or the peer is gone: continue with the others
                logger.warning("accept: %s", error)
                await trio.sleep(_PAUSE_SECONDS)

    def _take(self, sock: Socket) -> None:
        """Begin a connection, in place of an older one if there are too many; close it if none gives way."""
        if len(self._open) >= min(limits.connections_max, self._descriptors):
            if not self._make_place("greeted", lambda one: not one.has_greeted):
                if self._tls is None:
                    sockets.reject(sock, len(self._open))
                else:
                    self._tls.reject(sock)
                return
        elif self._tls is not None and self._tls.handshakes >= limits.handshakes_max:
            self._make_place("completed the TLS handshake", lambda one: one.in_handshake)
        self._begin(sock if self._tls is None else self._tls.wrap(sock, sockets.peer_of(sock)))

    def _make_place(self, what: str, gives_way: Callable[[ServerConnection], bool]) -> bool:
        """End one of these connections. Return whether there was one."""
        found = [one for one in self._open.values() if not one.closing and gives_way(one)]
        if not found:
            return False
        count = Counter(one.host for one in found)
        most = max(count.values())
        oldest = next(one for one in found if count[one.host] == most)
        self._warn(
            "busy",
            f"{len(self._open)} connections, {len(found)} that have not {what}: {oldest.peer} was closed",
        )
        oldest.give_way(len(self._open))
        return True
