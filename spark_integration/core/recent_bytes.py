"""The bytes of a split that a scan read last, so that they can be sent to tasks. Pure: no I/O.

A scan has read these bytes on the driver anyway. A task of a small micro-batch that gets them with its
partition need not read them from the store.
"""


class RecentBytes:
    """At least the last `keep_bytes` that were read of the newest object, if it has that many."""

    def __init__(self, keep_bytes: int) -> None:
        self._keep = keep_bytes
        self._object = ""
        self._begin = 0
        self._data = bytearray()

    def add(self, name: str, offset: int, data: bytes) -> None:
        """Add bytes that were read. Forgets earlier bytes that these do not continue."""
        if name != self._object or offset != self._begin + len(self._data):
            self._object, self._begin, self._data = name, offset, bytearray()
        elif len(self._data) >= self._keep:
            self._forget(len(self._data) - self._keep)
        self._data += data

    def get(self, name: str, begin: int, end: int) -> bytes | None:
        """Return the bytes from `begin` to `end` of an object; None if they are not all kept."""
        first, last = begin - self._begin, end - self._begin
        if name != self._object or first < 0 or last > len(self._data):
            return None
        return bytes(self._data[first:last])

    def _forget(self, size: int) -> None:
        del self._data[:size]
        self._begin += size
