"""The log of the first release that had one stays readable: a slot, the file `life` and the file `seen`.

The slot has three records: a new object and a claim, bytes of two objects, a removal and a repair.
"""

from pathlib import Path

from dos_server.core.files.log_record import (
    HEADER_BYTES,
    EntryKind,
    LogEntry,
    LogPlace,
    encode_entry,
    encode_record,
    log_seed,
)
from dos_server.core.files.log_replay import (
    Life,
    LiveRecord,
    LogState,
    RecordPlace,
    decode_life,
    decode_seen,
    encode_life,
    scan_slot,
    survey,
)

GOLDEN = Path(__file__).parent / "golden"
KEY = bytes(range(16))
SLOT, LIFE, SEEN = (GOLDEN / name for name in ("slot-v1.bin", "life-v1.bin", "seen-v1.bin"))
ENTRIES = (
    (LogEntry(EntryKind.CREATED, "app.w0000", "empty", 7, 0, 0, 0), b""),
    (LogEntry(EntryKind.CLAIM, "app.w0000", "", 0, 0, 3, 36), bytes(36)),
), (
    (LogEntry(EntryKind.EXTENTS, "app.w0000", "steps", 9, 0, 11, 75), b"x" * 75),
    (LogEntry(EntryKind.EXTENTS, "app.w0001", "steps", 10, 640, 512, 5), b"bytes"),
), (
    (LogEntry(EntryKind.REMOVED, "app.w0000", "empty", 7, 0, 0, 0), b""),
    (LogEntry(EntryKind.REPLACED, "app.w0001", "steps", 10, 11, 512, 0), b""),
)  # fmt: skip


def written() -> tuple[bytes, bytes]:
    """Return the slot and `seen` as this release writes them."""
    seed, before, digest, slot, seen = log_seed(KEY), list[bytes](), 0, b"", b""
    for sequence, entries in enumerate(ENTRIES, start=41):
        place = LogPlace(5, 8, sequence, 8, 41, digest)
        own = [encode_entry(one) for one, _ in entries]
        record, digest = encode_record(place, own, [content for _, content in entries], before, seed)
        seen, before = bytes(record[: HEADER_BYTES + len(b"".join((*own, *before)))]), own
        slot += record
    return slot + bytes(8192), seen


def test_the_golden_log_is_read() -> None:
    slot, seed = SLOT.read_bytes(), log_seed(decode_life(LIFE.read_bytes()).key)
    found = list(scan_slot(lambda at, count: slot[at : at + count], 2, len(slot), seed))
    assert all(one.valid for one in found)
    seen = decode_seen(SEEN.read_bytes(), seed)
    assert seen is not None
    assert seen.header == found[-1].header
    result = survey(found, seen, 5)
    assert result.records == tuple(
        LiveRecord(41 + index, tuple(one for one, _ in entries), RecordPlace(2, 4096 * index), "A")
        for index, entries in enumerate(ENTRIES)
    )
    assert (result.next_segment, result.next_sequence) == (9, 44)


def test_this_release_writes_the_same_bytes() -> None:
    assert written() == (SLOT.read_bytes(), SEEN.read_bytes())
    assert encode_life(Life(5, LogState.IN_USE, KEY)) == LIFE.read_bytes()
