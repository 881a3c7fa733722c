"""Logs for people beside the record log: entries as lines of JSON. Pure: no I/O.

Each run that writes entries has its own object, PREFIX + `<epoch, 16 hex>`, in the directory of the record
log, under its claim of that directory.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dos_protocol.messages import ObjectInfo

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Entry = TypeVar("Entry", bound="DataclassInstance")


class JsonLog(Generic[Entry]):
    """The format of one log: the beginning of its objects' names, and the class of its entries."""

    def __init__(self, prefix: str, entry: type[Entry]) -> None:
        self._prefix = prefix
        self._entry = entry

    def object_name(self, epoch: int) -> str:
        """Return the name of the object that the run with that epoch writes."""
        return f"{self._prefix}{epoch:016x}"

    def names(self, answers: Mapping[bytes, Mapping[str, ObjectInfo]]) -> list[str]:
        """Return the log's objects that any member has, oldest first."""
        return sorted({name for held in answers.values() for name in held if name.startswith(self._prefix)})

    def encode(self, entry: Entry) -> bytes:
        """Encode an entry as a line."""
        return json.dumps({"version": 1, **asdict(entry)}, sort_keys=True).encode() + b"\n"

    def decode(self, data: bytes) -> list[Entry]:
        """Return the complete entries in the bytes. Lines that cannot be parsed are skipped."""
        entries = []
        for line in data.split(b"\n"):
            try:
                fields: dict[str, Any] = json.loads(line)
                del fields["version"]
                entries.append(self._entry(**fields))
            except (ValueError, TypeError, KeyError):
                continue
        return entries
