"""The state of the core as numbers, for metrics and health checks. Pure."""

from typing import NamedTuple

from dos_protocol.messages import SessionState
from dos_server.core.directory_state import LoadState
from dos_server.core.quotas import QuotaGauge
from dos_server.core.tables import Tables


class CoreGauges(NamedTuple):
    """sessions: connections, and how many of them have greeted. directories: on the disk. objects: in memory.
    damaged: directories that are known to hold a damaged object. unsynced_bytes: accepted, and not on stable
    storage. room_bytes: free for appends, above the reserve. refuses_appends: because the disk is full.
    rolled_back: the disk is known to have gone back in time. generation: of the store record, 0 without one.
    quotas: their limits.
    """

    sessions: int
    welcome: int
    directories: int
    objects: int
    damaged: int
    unsynced_bytes: int
    room_bytes: int
    refuses_appends: bool
    rolled_back: bool
    generation: int
    quotas: tuple[QuotaGauge, ...] = ()


def gauges_of(tables: Tables, *, rolled_back: bool) -> CoreGauges:
    """Return the gauges. Looks at each session and each directory in memory, and at no object."""
    sessions = tables.sessions.values()
    broken = {one.name for one in tables.directories.values() if one.loading is LoadState.BROKEN}
    return CoreGauges(
        sessions=len(sessions),
        welcome=sum(one.state not in (SessionState.NEW, SessionState.CLOSED) for one in sessions),
        directories=len(tables.directory_names),
        objects=tables.objects,
        damaged=len(tables.damaged_names | broken),
        unsynced_bytes=sum(one.unsynced_bytes for one in sessions),
        room_bytes=max(tables.space.room_bytes, 0),
        refuses_appends=tables.space.refusing,
        rolled_back=rolled_back,
        generation=0 if tables.record is None else tables.record.generation,
        quotas=tables.quotas.gauges(),
    )
