"""Accepts connections, as many as there may be at once."""

import logging
from collections.abc import Callable, Sized
from typing import Final

import trio

from dos_server import sockets
from dos_server.limits import connections_max
from dos_server.ports import Listener, Rounds, Socket
from dos_server.tls_sockets import TlsPeers

logger = logging.getLogger("dos.server")
_PAUSE_SECONDS: Final = 0.1


class ConnectionGate:
    """open_now: the open connections. begin: takes what a new connection is read from."""

    def __init__(self, open_now: Sized, begin: Callable[[Socket], None], tls: TlsPeers | None) -> None:
        self._open, self._begin, self._tls = open_now, begin, tls
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
        """Begin a connection, or close it if there are too many."""
        if len(self._open) >= min(connections_max, self._descriptors):
            if self._tls is None:
                sockets.reject(sock, len(self._open))
            else:
                self._tls.reject(sock)
        elif (
            admitted := sock if self._tls is None else self._tls.wrap(sock, sockets.peer_of(sock))
        ) is not None:
            self._begin(admitted)
