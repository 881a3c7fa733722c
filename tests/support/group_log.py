"""The group log in harnesses: which servers have one, and what their records say."""

from random import Random
from typing import Final

from dos_protocol.limits import KIB
from dos_server.core import vocabulary as v
from dos_server.core.files import log_record as r
from dos_server.limits import log_slots

LOG_SEEDS: Final = 1_000_000_000
"""In runs with seeds from this one on, most servers have a group log."""


def log_bytes_of(name: bytes, start: int) -> int:
    """Return the size of the group log for a start of a machine, most often the same, 0 for none.

    It is not drawn from the streams of a run, which are then the same without a log.
    """
    of_machine, of_start = Random(name), Random(name + bytes([start % 256]))
    size = of_machine.choice([0, 80, 128, 256]) * KIB * log_slots
    if of_start.random() < 0.15:
        return 0 if size else 128 * KIB * log_slots
    return size


def removals_in(effect: v.Effect) -> list[tuple[str, str]]:
    """Return the directories and names of the objects that an effect removes, or whose removal it logs."""
    if isinstance(effect, v.RemoveObject):
        return [(effect.directory, effect.name)]
    if not isinstance(effect, v.WriteLog):
        return []
    record = effect.record
    _, _, _, *fields = r._HEADER.unpack_from(record)
    header = r.LogHeader._make((*fields, 0))
    tables = r.decode_table(header, bytes(record[r.HEADER_BYTES : r.HEADER_BYTES + header.table_bytes]))
    assert tables is not None
    return [(one.directory, one.name) for one in tables[0] if one.kind is r.EntryKind.REMOVED]
