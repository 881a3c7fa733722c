"""What a data directory may hold, by name: the server's own files, and what is nobody's.

    identity, store, lock       see `dos_server.storage`
    stamps, witnessed           see `dos_server.core.stamps`
    d/DIR/OBJECT                extents
    d/DIR/.claim, .marks        who may write; what is synced at least
    d/DIR/.mend.OBJECT.N        a new copy that was never finished, or is on its way in
    d/DIR/.broken.OBJECT.N      an old copy that was replaced
    d/DIR/.torn.OBJECT.POSITION a torn tail that was cut
    .NAME.new, .claim.new       a small file on its way to be replaced

Rules of this file: names and what they stand for. It knows no disk.
"""

from enum import Enum
from typing import Final

from dos_protocol.names import is_name

OBJECTS: Final = "d"
STAMPS: Final = "stamps"
WITNESSED: Final = "witnessed"
MEND: Final = ".mend."
BROKEN: Final = ".broken."
TORN: Final = ".torn."
_OWN: Final = frozenset({"identity", "store", "lock", STAMPS, WITNESSED, OBJECTS})
_TEMPORARY: Final = frozenset({".identity.new", ".store.new", f".{STAMPS}.new", f".{WITNESSED}.new"})


class Entry(Enum):
    """What a name stands for. The value of a leftover says what it is, and what becomes of it."""

    OWN = "a file of the server"
    OBJECT = "an object"
    MEND = "a new copy that was never finished: the next start takes it away"
    BROKEN = "a copy that was replaced by a new one, kept to be looked at: remove it when you have"
    TORN = "a torn tail that was cut, kept to be looked at: remove it when you have"
    TEMPORARY = (
        "a small file whose replacement was never finished: the old one counts, the next one overwrites it"
    )
    UNKNOWN = "not a name that the server gives: it neither reads nor removes it"


def entry_of_root(name: str) -> Entry:
    """What a name in the data directory itself stands for."""
    if name in _OWN:
        return Entry.OWN
    return Entry.TEMPORARY if name in _TEMPORARY else Entry.UNKNOWN


def entry_of_folder(name: str) -> Entry:
    """What a name in the folder of a directory stands for."""
    if is_name(name):
        return Entry.OBJECT
    if name in (".claim", ".marks"):
        return Entry.OWN
    if name == ".claim.new":
        return Entry.TEMPORARY
    for prefix, entry in ((MEND, Entry.MEND), (BROKEN, Entry.BROKEN), (TORN, Entry.TORN)):
        if name.startswith(prefix):
            return entry
    return Entry.UNKNOWN


def torn_name(name: str, position: int) -> str:
    """The file that keeps the tail of an object that was cut at a position of its file."""
    return f"{TORN}{name}.{position}"
