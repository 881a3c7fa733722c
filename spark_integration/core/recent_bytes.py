"""The last bytes that a scan has read of a split, for tasks that are to have them: pure.

Rules of this file: bytes of one object at a time, side by side. What a scan reads lies in the memory of the
driver anyway; a small micro-batch that is handed to its tasks costs them no question to the store.
"""


class RecentBytes:
    """At least the last `keep_bytes` that were taken of the newest object, if it has so many."""

    def __init__(self, keep_bytes: int) -> None:
        self._keep = keep_bytes
        self._object = ""
        self._begin = 0
        self._data = bytearray()

    def take(self, name: str, offset: int, data: bytes) -> None:
        """The next bytes that were read. What they do not go on from is forgotten."""
        if name != self._object or offset != self._begin + len(self._data):
            self._object, self._begin, self._data = name, offset, bytearray()
        elif len(self._data) >= self._keep:
            self._forget(len(self._data) - self._keep)
        self._data += data

    def given(self, name: str, begin: int, end: int) -> bytes | None:
        """Those from `begin` to `end` of an object; None if they are not all here."""
        first, last = begin - self._begin, end - self._begin
        if name != self._object or first < 0 or last > len(self._data):
            return None
        return bytes(self._data[first:last])

    def _forget(self, size: int) -> None:
        del self._data[:size]
        self._begin += size
