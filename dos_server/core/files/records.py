"""The names in a data directory, and its small records: claim, mark, identity. Pure.

    identity, store, lock       see `dos_server.storage`
    stamps, witnessed           see `core.requests.stamps`
    directories                 see `dos_server.marks`
    life, log                   see `files.log_replay`
    d/DIR/OBJECT                extents
    d/DIR/.claim, .marks        the claim; lower bounds of the synced sizes
    d/DIR/.repair.OBJECT.N        a new copy that is being received or was never finished
    d/DIR/.broken.OBJECT.N      an old copy that was replaced
    d/DIR/.torn.OBJECT.POSITION a torn tail that was cut
    .NAME.new, .claim.new       a small file that is being replaced

Claim, in `d/DIR/.claim`. The file is replaced whole (temporary file, fsync, rename, fsync of the folder)
before the claim is answered. Its layout is `CLAIM`.

Mark, 256 bytes per object in `d/DIR/.marks`. It is overwritten in place after each sync and before that
sync is acknowledged. Marks with a flag are synced, others are not:

    name 128, zero-padded | synced u64 | flags u8 (1 poisoned, 2 damaged, 4 removed) | root u32 |
    reserved 107 | xxh3-64 over everything before

A mark is a *lower bound* of what was synced. It survives a killed process. After a power cut an older
one, or none, may be there. So bytes missing below the mark are damage, never a torn write. An invalid
mark is ignored.

- *Root*: the link of the object's first extent (`files.extent`). 0: the mark does not record it, and the next
  start reads it from the file.
- *Damaged*: the object was found damaged, and stays so until a new copy replaces it, whatever its file looks
  like later. Otherwise a second fault could make the first one look like a crash.
- *Removed*: the object is being removed; if it still exists, the removal is completed (`dos_server.marks`).

Identity, in `identity`: the server's id as 32 hex digits, a space, xxh3-64 of its 16 bytes as 16 hex
digits, a newline. A second line follows: `format N`, a space, xxh3-64 of these bytes as 16 digits, a
newline. N is the version of all formats in the data directory: a program that does not know it refuses
the directory and changes nothing. While the group log is in use, a third line `log 1` follows. Nothing
else is accepted.
"""

import re
import struct
from enum import Enum
from typing import Final, NamedTuple

from dos_protocol.digests import digest64
from dos_protocol.errors import CorruptDataError, LocalProtocolError
from dos_protocol.limits import id_bytes, name_bytes_max
from dos_protocol.names import NO_ID, check_id, check_name, id_text, is_name, parse_id
from dos_protocol.sealed import RESERVED, SealedField, SealedLayout
from dos_server.limits import mark_bytes

# --- The names in a data directory -------------------------------------------------------------------------


OBJECTS: Final = "d"
DIRECTORIES: Final = "directories"
STAMPS: Final = "stamps"
WITNESSED: Final = "witnessed"
REPAIR: Final = ".repair."
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
    REPAIR = "a new copy that was never finished: the next start deletes it"
    BROKEN = "a copy that was replaced by a new one, kept for inspection: delete it afterwards"
    TORN = "a torn tail that was cut, kept for inspection: delete it afterwards"
    TEMPORARY = (
        "a small file whose replacement was never finished: the old one counts, the next one overwrites it"
    )
    UNKNOWN = "not a file of the server: it neither reads nor deletes it"


def entry_of_root(name: str) -> Entry:
    if name in _OWN:
        return Entry.OWN
    return Entry.TEMPORARY if name in _TEMPORARY else Entry.UNKNOWN


def entry_of_folder(name: str) -> Entry:
    if is_name(name):
        return Entry.OBJECT
    if name in (".claim", ".marks"):
        return Entry.OWN
    if name == ".claim.new":
        return Entry.TEMPORARY
    for prefix, entry in ((REPAIR, Entry.REPAIR), (BROKEN, Entry.BROKEN), (TORN, Entry.TORN)):
        if name.startswith(prefix):
            return entry
    return Entry.UNKNOWN


def torn_name(name: str, position: int) -> str:
    return f"{TORN}{name}.{position}"


# --- Records -----------------------------------------------------------------------------------------------


CLAIM: Final = SealedLayout(
    "claim",
    b"\xd0\x4c",
    RESERVED,
    SealedField("epoch", "Q"),
    SealedField("writer id", "16s"),
    remedy="this copy of the directory cannot fence writers: replace the server",
)
_MARK: Final = struct.Struct(f">{name_bytes_max}sQBI107s")
_DIGEST: Final = struct.Struct(">Q")
FORMAT: Final = 1
"""The version of all formats in a data directory. It rises whenever an older program would misread anything
there: the bytes of a record or an extent, a name, or what one of them means."""
_FORMAT_LINE: Final = re.compile(rb"[^\n]{49}\n(format ([1-9][0-9]{0,8})) ([0-9a-f]{16})\n")
_LOG_IN_USE: Final = b"log 1\n"
assert _MARK.size + _DIGEST.size == mark_bytes


class ClaimRecord(NamedTuple):
    epoch: int
    writer_id: bytes


NO_CLAIM: Final = ClaimRecord(0, NO_ID)


class ObjectMark(NamedTuple):
    """A lower bound of an object's synced size, its state, and its root (0: unknown)."""

    name: str
    synced: int
    poisoned: bool = False
    damaged: bool = False
    removed: bool = False
    root: int = 0


def encode_claim(claim: ClaimRecord) -> bytes:
    return CLAIM.seal(claim.epoch, claim.writer_id)


def decode_claim(data: bytes, where: str) -> ClaimRecord:
    epoch, writer_id = CLAIM.open(data, where).values
    return ClaimRecord(epoch, writer_id)


def check_claim(claim: ClaimRecord, where: str, epoch_max: int) -> None:
    """Raise CorruptDataError if extents carry a higher epoch than the claim."""
    # A claim is on stable storage before anything is written under it: so the claim file was deleted or is an
    # older one, and the true epoch may be higher than that of any extent. Serving it would fence nobody.
    if epoch_max > claim.epoch:
        expected = f"a claim of epoch {epoch_max} or above, under which extents were written"
        found = f"epoch {claim.epoch}" if claim != NO_CLAIM else "no claim"
        raise CLAIM.damage(where, 0, expected, found)


def encode_mark(mark: ObjectMark) -> bytes:
    flags = mark.poisoned | mark.damaged << 1 | mark.removed << 2
    body = _MARK.pack(check_name(mark.name).encode("ascii"), mark.synced, flags, mark.root, b"")
    return body + _DIGEST.pack(digest64(body))


def decode_marks(data: bytes) -> list[ObjectMark | None]:
    """Return the marks by slot; None for a slot without a valid mark."""
    marks: list[ObjectMark | None] = []
    for start in range(0, len(data) - mark_bytes + 1, mark_bytes):
        body = data[start : start + _MARK.size]
        (digest,) = _DIGEST.unpack_from(data, start + _MARK.size)
        name, synced, flags, root, reserved = _MARK.unpack(body)
        text = name.rstrip(b"\0").decode("latin-1")
        valid = digest64(body) == digest and is_name(text) and flags <= 7 and not any(reserved)
        decoded = ObjectMark(text, synced, bool(flags & 1), bool(flags & 2), bool(flags & 4), root)
        marks.append(decoded if valid else None)
    return marks


def marks_damaged(data: bytes) -> list[int]:
    """Return the positions of slots that are neither a mark nor zeros."""
    slots = -(-len(data) // mark_bytes)
    marks = [*decode_marks(data), None]
    positions = [slot * mark_bytes for slot in range(slots) if marks[slot] is None]
    return [start for start in positions if any(data[start : start + mark_bytes])]


def encode_identity(server_id: bytes, *, log_in_use: bool = False) -> bytes:
    version = f"format {FORMAT}"
    lines = (
        f"{id_text(check_id(server_id, 'server_id'))} {digest64(server_id):016x}\n",
        f"{version} {digest64(version.encode('ascii')):016x}\n",
    )
    return "".join(lines).encode("ascii") + (_LOG_IN_USE if log_in_use else b"")


def check_format(identity: bytes | None) -> None:
    """Raise LocalProtocolError if a data directory has formats that this program does not know, before
    anything is changed. None: it is new.
    """
    found = _FORMAT_LINE.match(identity or b"")
    if found is None or int(found[3], 16) != digest64(found[1]):
        return  # not written by any program: `decode_identity` reports it
    if int(found[2]) != FORMAT:
        raise LocalProtocolError(
            f"the data directory has format {found[2].decode()}, and this program uses format {FORMAT};"
            " nothing was changed",
            remedy="use the release that wrote it, or a newer one",
        )


def is_log_in_use(identity: bytes) -> bool:
    return identity.endswith(_LOG_IN_USE)


def decode_identity(data: bytes, where: str) -> bytes:
    check_format(data)
    try:
        server_id = parse_id(data[: 2 * id_bytes].decode("ascii"))
    except (ValueError, UnicodeDecodeError) as error:
        raise CorruptDataError(where, 0, "32 hex digits", repr(data[:40]), "replace the server") from error
    expected = encode_identity(server_id, log_in_use=is_log_in_use(data))
    if data != expected:
        raise CorruptDataError(where, 0, repr(expected), repr(data[:60]), "replace the server")
    if server_id == NO_ID:
        raise CorruptDataError(where, 0, "an identity", "all zeros", "replace the server")
    return server_id
