"""Runs of appends: many, one behind the other, to one object, as a writer sends them that does not wait.

What is the same for all of a run is looked at once; for each append only its size, its digest, its room. An
append that anything speaks against is not taken here: it ends the run, and `appends` judges it alone, with
whatever it is to be told. So this decides nothing that `appends` would decide otherwise, it only takes less
time.

Rules of this file: the common case, quickly.
"""

import struct
from collections.abc import Sequence
from typing import Final

from dos_protocol.frames import Frame
from dos_protocol.limits import object_bytes_max
from dos_protocol.session_states import SessionState
from dos_server.core.session import Session
from dos_server.core.tables import Tables
from dos_server.limits import extent_header_bytes, extent_payload_bytes_max

_SIZE_AND_DIGEST: Final = struct.Struct(">QQ")
_NAME_AT: Final = _SIZE_AND_DIGEST.size
"""Of the meta of an APPEND, as `dos_protocol.messages` lays it out: here is the length of the name."""


def take_run(tables: Tables, session: Session, frames: Sequence[Frame], start: int) -> int:
    """Take what can be taken of the APPEND frames from `start` on; where the first is that was not."""
    directory = tables.directories.get(session.directory) if session.directory else None
    if directory is None or session.state is SessionState.NEW:
        return start
    if directory.claimed and directory.holder is not session:
        return start
    meta = frames[start].meta
    named = meta[_NAME_AT:]
    if not named or len(named) != 1 + named[0]:
        return start
    state = directory.objects.get(named[1:].decode("latin-1"))
    if state is None or not state.exists or state.refuses_session(session.number) is not None:
        return start
    fold, space, number = state.fold_to_change(), tables.space, session.number
    began_at, costs, index = fold.size, 0, start
    for index in range(start, len(frames)):
        _, request_id, meta, data, _ = frames[index]
        count = len(data)
        if meta[_NAME_AT:] != named or not 0 < count <= extent_payload_bytes_max:
            break
        size, digest = _SIZE_AND_DIGEST.unpack_from(meta)
        if size != fold.size or digest != fold.value or size + count > object_bytes_max:
            break
        costs += count + extent_header_bytes
        if not space.has_room(costs):
            costs -= count + extent_header_bytes
            break
        state.accept(data, number, request_id)
    else:
        index = len(frames)
    if index > start:
        space.take(costs)
        session.wrote = True
        session.unsynced_bytes += fold.size - began_at
        session.unsynced_appends += index - start
        tables.touched[state] = directory
    return index
