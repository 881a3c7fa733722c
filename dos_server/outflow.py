"""The bytes that wait for one peer. They count towards the account of all connections."""

from collections import deque
from itertools import islice
from typing import Final

from dos_protocol.digests import Buffer
from dos_server.buffers import OutgoingAccount
from dos_server.ports import Socket

_IOV_MAX: Final = 64


class Outflow:
    """A queue of buffers. `bytes`: how many bytes are in it."""

    def __init__(self, account: OutgoingAccount) -> None:
        self._account = account
        self._queue: deque[Buffer] = deque()
        self.bytes = 0

    def add(self, data: Buffer) -> None:
        """Queue bytes; not empty."""
        self._queue.append(data)
        self._count(len(data))

    def send_some(self, sock: Socket) -> bool:
        """Send one group of buffers. False: the socket accepted only a part. Raises OSError."""
        group = list(islice(self._queue, _IOV_MAX))
        count = sock.sendmsg(group)
        if count == self.bytes:  # the usual case
            self.clear()
            return True
        complete = count == sum(map(len, group))
        self._count(-count)
        while count:
            first = self._queue.popleft()
            if count < len(first):
                self._queue.appendleft(memoryview(first)[count:])
                break
            count -= len(first)
        return complete

    def clear(self) -> None:
        """Drop everything."""
        self._queue.clear()
        self._count(-self.bytes)

    def _count(self, more: int) -> None:
        self.bytes += more
        self._account.held += more
