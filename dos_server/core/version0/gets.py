"""Reading in version 0: `g`, one frame that begins with its length, sent in pieces as they are read.

The range is fixed when the request arrives: what is durable then. If a part of it cannot be read correctly,
the connection ends, before the first byte or after any: a client would take any message for content.

Each piece is a GET of version 1, with its checks and its back-pressure.
"""

from dos_protocol import messages as m
from dos_protocol.limits import payload_bytes_max
from dos_server.core import vocabulary as v
from dos_server.core.requests import version0_wire as wire
from dos_server.core.requests.reads import Reads
from dos_server.core.tables import Tables
from dos_server.core.version0 import requests as r
from dos_server.core.version0.answers import V0Answers
from dos_server.core.version0.session import V0Session


class V0Gets:
    """Carries out `g`."""

    def __init__(self, tables: Tables, reads: Reads, answers: V0Answers) -> None:
        self._tables = tables
        self._reads = reads
        self._answers = answers

    def get(self, one: V0Session, request: r.V0Get) -> None:
        """Carry out a `g`: send the length and order the first piece, or end the connection."""
        directory = self._answers.directory_of(one)
        state = directory.objects.get(request.name) if directory is not None else None
        if state is None or not state.exists:
            self._answers.end(one, f"no file {request.name} to get")
            return
        start = max(request.offset, 0)
        wanted = start + request.bytes_max if request.bytes_max else None
        end = state.synced if wanted is None else min(wanted, state.synced)
        good_size = state.corrupt_from
        if good_size is not None and (wanted is None or wanted > good_size):
            self._answers.end(one, f"{state.name} is damaged from offset {good_size} on")
        elif end - start > wire.REPLY_BYTES_MAX:
            self._answers.end(one, f"{end - start} bytes of {state.name} do not fit in a frame of version 0")
        elif start >= end:
            self._answers.reply(one, b"")
        else:
            one.state, one.position, one.end = state, start, end
            self._answers.send(one, wire.head(end - start))
            self._next(one)

    def _next(self, one: V0Session) -> None:
        """Order the next piece. It is refused if the object was removed or repaired since."""
        count = min(one.end - one.position, payload_bytes_max)
        self._reads.get(one.session, m.Get(one.target.name, one.position, count), 0)

    def got(self, one: V0Session, piece: m.Data) -> None:
        """Send a piece that was read, and order the next one."""
        count = len(piece.payload)
        if not count:
            self._answers.end(one, f"{piece.name} ended at {one.position}, {one.end} were announced")
            return
        self._tables.effects.append(v.SendBytes(one.session.number, piece.payload))
        one.position += count
        if one.position == one.end:
            self._answers.answered(one)
        else:
            self._next(one)
