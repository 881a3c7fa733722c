"""Runs of appends: consecutive appends to one object, as a pipelining writer sends them.

The checks that are the same for the whole run are made once; per append only size, digest and space are
checked. An append that fails any check is not accepted here: it ends the run, and `appends` handles it alone
and answers it. So the result is always that of `appends`, in less time.
"""

import struct
from collections.abc import Sequence
from typing import Final

from dos_protocol.frames import Frame
from dos_protocol.limits import object_bytes_max
from dos_protocol.messages import SessionState
from dos_server.core.access import Right
from dos_server.core.append_checks import refuses_session
from dos_server.core.session import Session
from dos_server.core.tables import Tables
from dos_server.limits import extent_header_bytes, extent_payload_bytes_max

_SIZE_AND_DIGEST: Final = struct.Struct(">QQ")
_NAME_AT: Final = _SIZE_AND_DIGEST.size
"""Offset of the name's length in the meta of an APPEND, as `dos_protocol.messages` lays it out."""


def take_run(tables: Tables, session: Session, frames: Sequence[Frame], start: int) -> int:
    """Accept APPEND frames from index `start` on until one fails a check. Return the index of that one."""
    directory = tables.directories.get(session.directory) if session.directory else None
    if directory is None or session.state is SessionState.NEW:
        return start
    if directory.claimed and directory.holder is not session:
        return start
    if not session.access.may(Right.APPEND, directory.name):
        return start
    meta = frames[start].meta
    named = meta[_NAME_AT:]
    if not named or len(named) != 1 + named[0]:
        return start
    state = directory.objects.get(named[1:].decode("latin-1"))
    if state is None or not state.exists or refuses_session(state, session.number) is not None:
        return start
    fold, space, number = state.fold_to_change(), tables.space, session.number
    began_at, costs, index = fold.size, 0, start
    end = min(object_bytes_max, began_at + tables.quotas.room_bytes(directory.name))
    for index in range(start, len(frames)):
        _, request_id, meta, data, _ = frames[index]
        count = len(data)
        if meta[_NAME_AT:] != named or not 0 < count <= extent_payload_bytes_max:
            break
        size, digest = _SIZE_AND_DIGEST.unpack_from(meta)
        if size != fold.size or digest != fold.value or size + count > end:
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
        tables.quotas.add(directory.name, fold.size - began_at)
        tables.quotas.spend(directory.name, index - start, tables.now)
        session.wrote = True
        tables.in_flight.appended(number, tables.now)
        session.unsynced_bytes += fold.size - began_at
        session.unsynced_appends += index - start
        tables.touched[state] = directory
    return index
