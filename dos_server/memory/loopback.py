"""Real loopback sockets as the network of hosts in memory, so that other threads and processes reach them.

It does with real sockets what `MemoryNetwork` does for a host. A host without power looks like a killed
process here, because the kernel that has the sockets lives on.
"""

import contextlib
import socket
from weakref import WeakSet

from dos_server.embedded import listen_on


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
        """Release the ports that were reserved and never listened on."""
        for sock in self._reserved.values():
            sock.close()
