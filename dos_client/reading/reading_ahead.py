"""Read-ahead for sequential reads: the next piece is already in memory when it is requested.

Read-ahead changes when bytes are requested, never which bytes are returned. A piece that was read ahead is
used only if it is as long as the request; bytes that did not exist yet are requested again. It begins with
the second read that continues the previous one, and ends with a read that does not.

A restore reads a segment this way and decodes in between. Without read-ahead, disk and network would be idle
meanwhile.
"""

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import trio

from dos_client.limits import (
    read_ahead_bytes_max,
    read_ahead_bytes_min,
    read_ahead_kept_s,
    read_ahead_pieces_max,
    read_ahead_streams_max,
)
from dos_protocol.errors import DosError

Read = Callable[[str, int, int, bytes | None], Awaitable[bytes]]
Key = tuple[str, bytes | None]


class _Piece:
    """A piece that is being read: `size` bytes from `offset`. `data` is None if that failed."""

    def __init__(self, offset: int, size: int) -> None:
        self.offset = offset
        self.size = size
        self.data: bytes | None = None
        self.ended = trio.Event()
        self.scope = trio.CancelScope()


class _Sequence:
    """One object that is read in order. Its pieces are contiguous, and the first begins at `next`."""

    def __init__(self) -> None:
        self.next = 0
        self.pieces: deque[_Piece] = deque()

    def drop(self) -> None:
        for piece in self.pieces:
            piece.scope.cancel()
        self.pieces.clear()


class ReadAhead:
    """Wraps `read` so that the next pieces are read before they are requested, in tasks that `start` runs."""

    def __init__(self, start: Callable[[Callable[[], Awaitable[None]]], None], read: Read) -> None:
        self._start = start
        self._read = read
        self._sequences: OrderedDict[Key, _Sequence] = OrderedDict()

    async def read(self, name: str, offset: int, max_bytes: int, member: bytes | None) -> bytes:
        """Read bytes, from a piece read ahead if possible. Raises the errors of the read."""
        key = (name, member)
        sequence = self._sequences.get(key)
        continues = sequence is not None and sequence.next == offset and offset > 0
        if sequence is None or not continues:
            sequence = self._start_sequence(key)
        data = await self._take_piece(sequence, offset, max_bytes)
        if data is None:
            data = await self._read(name, offset, max_bytes, member)
        sequence.next = offset + len(data)
        full = len(data) == max_bytes and read_ahead_bytes_min <= max_bytes <= read_ahead_bytes_max
        if continues and full and self._sequences.get(key) is sequence:
            self._top_up(key, sequence, max_bytes)
        return data

    def drop(self) -> None:
        """Discard all pieces to free the memory."""
        for sequence in self._sequences.values():
            sequence.drop()
        self._sequences.clear()

    def _start_sequence(self, key: Key) -> _Sequence:
        old = self._sequences.pop(key, None)
        if old is not None:
            old.drop()
        while len(self._sequences) >= read_ahead_streams_max:
            _, oldest = self._sequences.popitem(last=False)
            oldest.drop()
        sequence = self._sequences[key] = _Sequence()
        return sequence

    async def _take_piece(self, sequence: _Sequence, offset: int, max_bytes: int) -> bytes | None:
        """Return the piece that was read ahead, if it is what is requested."""
        if not sequence.pieces:
            return None
        piece = sequence.pieces.popleft()
        await piece.ended.wait()
        piece.scope.cancel()
        if piece.offset == offset and piece.data is not None and len(piece.data) >= max_bytes:
            if len(piece.data) > max_bytes:
                sequence.drop()
            return piece.data[:max_bytes]
        sequence.drop()
        return None

    def _top_up(self, key: Key, sequence: _Sequence, size: int) -> None:
        pieces = sequence.pieces
        while len(pieces) < read_ahead_pieces_max:
            offset = pieces[-1].offset + pieces[-1].size if pieces else sequence.next
            piece = _Piece(offset, size)
            pieces.append(piece)
            self._start(partial(self._fetch, key, piece))

    async def _fetch(self, key: Key, piece: _Piece) -> None:
        name, member = key
        with piece.scope:
            try:
                with suppress(DosError):  # the consumer requests it again and gets the error
                    piece.data = await self._read(name, piece.offset, piece.size, member)
            finally:
                piece.ended.set()
            await trio.sleep(read_ahead_kept_s)
            piece.data = None  # not requested in time: free the memory
