"""The logs in a store's own directory `dos.store`: names and bytes. Pure: no I/O.

**Records.** A store record after the first counts as *decided* if it is an entry of this log that was synced
on a quorum under a claim of the directory. So two replacements cannot both decide a generation: the later one
takes the log over as any chain is taken over (R5 to R8), and continues after the last entry that it finds.
Only decided records are ever sent to a server.

**History** and **overrides** are for people: who changed the store, and what was forced on it. One decision
depends on the second: whether an interrupted recovery must be completed.

Each run writes one object of a log, named by the epoch of its claim.
"""

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Generic, TypeVar

from dos_client.core.quorum import deciding_record
from dos_protocol.errors import CorruptDataError
from dos_protocol.limits import store_record_bytes_max
from dos_protocol.messages import ObjectInfo
from dos_protocol.store_record import StoreRecord, decode_store_record, encode_store_record

DIRECTORY = "dos.store"
_LENGTH = struct.Struct(">I")
assert _LENGTH.size == 4


def record_in(record: StoreRecord, directory: str) -> StoreRecord:
    """Return the record whose quorums count in that directory: for record logs, with the tie-breaker."""
    return deciding_record(record) if directory == DIRECTORY else record


def longest(answers: Mapping[bytes, Mapping[str, ObjectInfo]], name: str) -> tuple[bytes, ObjectInfo] | None:
    copies = [(member, objects[name]) for member, objects in sorted(answers.items()) if name in objects]
    return max(copies, key=lambda pair: pair[1].synced, default=None)


Entry = TypeVar("Entry")


class StoreLog(Generic[Entry]):
    """The objects of one log, and its entries in bytes."""

    def __init__(
        self, prefix: str, encode: Callable[[Entry], bytes], decode: Callable[[bytes], list[Entry]]
    ) -> None:
        self._prefix, self.encode, self.decode = prefix, encode, decode

    def object_name(self, epoch: int) -> str:
        return f"{self._prefix}{epoch:016x}"

    def names(self, answers: Mapping[bytes, Mapping[str, ObjectInfo]]) -> list[str]:
        """Return the objects that any member holds, the oldest first."""
        return sorted({name for held in answers.values() for name in held if name.startswith(self._prefix)})


def _encode_record(record: StoreRecord) -> bytes:
    data = encode_store_record(record)
    return _LENGTH.pack(len(data)) + data


def decode_records(data: bytes) -> tuple[list[StoreRecord], int]:
    """Return the whole entries, and the number of their bytes."""
    records: list[StoreRecord] = []
    position = 0
    while len(data) - position >= _LENGTH.size:
        (count,) = _LENGTH.unpack_from(data, position)
        end = position + _LENGTH.size + count
        if count > store_record_bytes_max or end > len(data):
            break
        try:
            records.append(decode_store_record(data[position + _LENGTH.size : end]))
        except CorruptDataError:
            break
        position = end
    return records, position


RECORDS: Final = StoreLog("records.", _encode_record, lambda data: decode_records(data)[0])


def _encode_line(entry: Any) -> bytes:
    return json.dumps({"version": 1, **asdict(entry)}, sort_keys=True).encode() + b"\n"


def _decode_lines(data: bytes, entry: type[Entry]) -> list[Entry]:
    entries = []
    for line in data.split(b"\n"):
        try:
            fields: dict[str, Any] = json.loads(line)
            del fields["version"]
            entries.append(entry(**fields))
        except (ValueError, TypeError, KeyError):  # a beat, or a line that is cut off
            continue
    return entries


BEAT: Final = b"\n"


@dataclass(frozen=True, slots=True)
class Change:
    """One entry. `old`, `new`: addresses with server ids. `why`: empty if a person requested it. `automatic`:
    `dos store watch` decided it. `outcome`: empty in the first entry of a change; then "done", or why it
    failed.
    """

    what: str
    at: str
    by: str
    generation: int
    old: str = ""
    new: str = ""
    why: str = ""
    automatic: bool = False
    outcome: str = ""

    def same_change(self, other: "Change") -> bool:
        return replace(self, at="", generation=0, outcome="") == replace(
            other, at="", generation=0, outcome=""
        )


CHANGES: Final = StoreLog("history.", _encode_line, lambda data: _decode_lines(data, Change))


def merge(entries: Iterable[Change]) -> list[Change]:
    merged: list[Change] = []
    for entry in entries:
        if merged and entry.outcome and not merged[-1].outcome and entry.same_change(merged[-1]):
            merged[-1] = replace(entry, at=merged[-1].at)
        else:
            merged.append(entry)
    return merged


OTHER_IS_GONE: Final = "other-is-gone"
ACCEPT_LOSS: Final = "accept-loss"


@dataclass(frozen=True, slots=True)
class Override:
    """One entry. `what`: OTHER_IS_GONE or ACCEPT_LOSS. `finished`: set in the second entry of a run, after
    all its work was done. `details`: what was truncated or repaired.
    """

    what: str
    at: str
    by: str
    generation: int
    generation_before: int
    kept: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    finished: bool = False
    details: list[str] = field(default_factory=list)


OVERRIDES: Final = StoreLog("overrides.", _encode_line, lambda data: _decode_lines(data, Override))


def is_finished(entries: Iterable[Override], generation: int) -> bool:
    return any(entry.finished and entry.generation == generation for entry in entries)
