"""The names in a data directory: files of the server, leftovers, and unknown files.

    identity, store, lock       see `dos_server.storage`
    stamps, witnessed           see `dos_server.core.requests.stamps`
    directories                 see `dos_server.directory_register`
    d/DIR/OBJECT                extents
    d/DIR/.claim, .marks        the claim; lower bounds of the synced sizes
    d/DIR/.mend.OBJECT.N        a new copy that is being received or was never finished
    d/DIR/.broken.OBJECT.N      an old copy that was replaced
    d/DIR/.torn.OBJECT.POSITION a torn tail that was cut
    .NAME.new, .claim.new       a small file that is being replaced

Pure: names and their meanings, without access to a disk.
"""

from enum import Enum
from typing import Final

from dos_protocol.names import is_name

OBJECTS: Final = "d"
DIRECTORIES: Final = "directories"
STAMPS: Final = "stamps"
WITNESSED: Final = "witnessed"
MEND: Final = ".mend."
BROKEN: Final = ".broken."
TORN: Final = ".torn."
_OWN: Final = frozenset({"identity", "store", "lock", "life", "log", STAMPS, WITNESSED, DIRECTORIES, OBJECTS})
_TEMPORARY: Final = frozenset(
    {".identity.new", ".store.new", ".life.new", f".{STAMPS}.new", f".{WITNESSED}.new"}
)


class Entry(Enum):
    """What a name stands for. The value of a leftover says what it is and what happens to it."""

    OWN = "a file of the server"
    OBJECT = "an object"
    MEND = "a new copy that was never finished: the next start deletes it"
    BROKEN = "a copy that was replaced by a new one, kept for inspection: delete it afterwards"
    TORN = "a torn tail that was cut, kept for inspection: delete it afterwards"
    TEMPORARY = (
        "a small file whose replacement was never finished: the old one counts, the next one overwrites it"
    )
    UNKNOWN = "not a file of the server: it neither reads nor deletes it"


def entry_of_root(name: str) -> Entry:
    """Return what a name in the data directory itself stands for."""
    if name in _OWN:
        return Entry.OWN
    return Entry.TEMPORARY if name in _TEMPORARY else Entry.UNKNOWN


def entry_of_folder(name: str) -> Entry:
    """Return what a name in the folder of a directory stands for."""
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
    """Return the name of the file that keeps the tail of an object that was cut at a position of its file."""
    return f"{TORN}{name}.{position}"
