"""The small files of the log: every flipped bit and every cut is noticed."""

import pytest

from dos_protocol.errors import CorruptDataError
from dos_server.core.files.log_record import (
    EntryKind,
    LogEntry,
    LogPlace,
    decode_header,
    encode_entry,
    encode_record,
    log_seed,
)
from dos_server.core.files.log_replay import Life, LogState, decode_life, decode_seen, encode_life

KEY = bytes(range(16))
SEED = log_seed(KEY)


@pytest.mark.parametrize("state", LogState)
def test_life_is_whole_or_refused(state: LogState) -> None:
    life = Life(7, state, KEY)
    data = encode_life(life)
    assert decode_life(data) == life
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptDataError):
            decode_life(bytes(flipped))
    for size in (0, len(data) - 1, len(data) + 1):
        with pytest.raises(CorruptDataError):
            decode_life((data + b"x")[:size])


def test_seen_is_whole_or_ignored() -> None:
    entry = LogEntry(EntryKind.EXTENTS, "d", "o", 7, 0, 9, 9)
    own = encode_entry(entry)
    record, _ = encode_record(LogPlace(1, 1, 1, 1, 1, 0), [own], [bytes(9)], [], SEED)
    seen = bytes(record[: 88 + len(own)])
    found = decode_seen(seen, SEED)
    assert found is not None
    assert (found.header, found.entries) == (decode_header(record, SEED), (entry,))
    assert decode_seen(seen + bytes(500), SEED) == found, "a longer one was there before"
    for bit in range(8 * len(seen)):
        flipped = bytearray(seen)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_seen(bytes(flipped), SEED) is None
    for size in range(len(seen)):
        assert decode_seen(seen[:size], SEED) is None
    assert decode_seen(None, SEED) is None
    assert decode_seen(seen, SEED + 1) is None
