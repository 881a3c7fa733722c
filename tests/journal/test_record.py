"""The codec: what is written is what is read, whole, in any pieces, in both versions, and as the executable
specification says; the fast path of valid WRITEs does what the general path does, and refuses nothing.
"""

from collections.abc import Callable
from typing import TypeVar

import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from dos_protocol.digests import digest64
from dos_protocol.errors import LocalProtocolError
from journal.core import record as codec
from journal.core.errors import CorruptRecordError
from journal.core.record import (
    FILE_ARITY,
    Op,
    ParseResult,
    Record,
    RecordDecoder,
    decode_all,
    encode,
    encode_v0,
    encode_v1,
    parse_v1,
)
from journal.limits import record_body_bytes_max
from tests.journal.strategies import records, u64, v0_records, v1_records
from tests.specifications.records import RECORD_V0, RECORD_V1

VERSIONS = pytest.mark.parametrize("version", [0, 1])


@VERSIONS
@given(data=st.data())
def test_what_was_encoded_is_decoded_with_its_boundaries(version: int, data: st.DataObject) -> None:
    written = data.draw(st.lists(records(version), max_size=6))
    parts = [encode(record, version) for record in written]
    read, fault = decode_all(b"".join(parts), version)
    assert fault is None
    assert [record for _, record in read] == written
    assert [end for end, _ in read] == [len(b"".join(parts[: i + 1])) for i in range(len(parts))]


@VERSIONS
@given(data=st.data())
def test_it_does_not_matter_into_which_pieces_the_bytes_are_cut(version: int, data: st.DataObject) -> None:
    written = data.draw(st.lists(records(version), min_size=1, max_size=5))
    whole = b"".join(encode(record, version) for record in written)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    detect = data.draw(st.booleans())
    decoder = RecordDecoder(None if detect else version)
    read = []
    for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        read += decoder.feed(whole[start:stop])
    assert decoder.finish() is None
    assert read == decode_all(whole, version)[0]
    assert decoder.version == version
    assert decoder.offset == len(whole)


def test_offsets_count_from_where_the_stream_began() -> None:
    data = encode(Record(Op.MARK, ints=(1,)))
    decoder = RecordDecoder(offset=1000)
    assert decoder.feed(data)[0][0] == 1000 + len(data)


@pytest.mark.parametrize(
    ("record", "version", "text"),
    [
        (Record(Op.MARK, ints=(1,)), 0, "version 0 has only TRUNCATE, WRITE and REMOVE, not MARK"),
        (Record(Op.REMOVE, strings=(b"a",), flags=1), 0, "version 0 has no flags"),
        (Record(Op.REMOVE), 0, "REMOVE has 0 ints and 1 strings, got 0 and 0"),
        (Record(Op.WRITE, ints=(1,), strings=(b"a",)), 1, "WRITE has 1 ints and 2 strings"),
        (Record(Op.MARK, ints=(2**64,)), 1, "0 to 2\\^64-1"),
        (Record(Op.MARK, ints=(-1,)), 1, "0 to 2\\^64-1"),
        (Record(Op.MARK, tag=2**64), 1, "0 to 2\\^64-1"),
        (Record(Op.MARK, ints=(0,) * 256), 1, "at most 255 ints"),
        (Record(Op.MARK, strings=(b"",) * 256), 1, "at most 255 ints and 255 strings"),
        (Record(Op.MARK, flags=0x100), 1, "flags of version 1 are within 0x00ff"),
        (Record(Op.MARK, flags=0x10000), 1, "flags of version 1 are within 0x00ff"),
        (Record(Op.MARK), 2, "records have version 0 or 1, not 2"),
    ],
)
def test_a_record_that_no_reader_would_take_is_not_written(record: Record, version: int, text: str) -> None:
    with pytest.raises(LocalProtocolError, match=text):
        encode(record, version)


def test_a_record_with_255_ints_and_255_strings_fits() -> None:
    record = Record(Op.OUTPUT, ints=tuple(range(255)), strings=tuple(bytes([i]) for i in range(255)))
    assert decode_all(encode(record))[0][0][1] == record


def test_a_large_record_in_small_pieces_is_joined_once() -> None:
    """Not once a piece: 16 MiB in 4 KiB pieces would be 32 GiB copied, and this test would time out."""
    data = encode_v1(Record(Op.WRITE, ints=(0,), strings=(b"a", bytes(16 * 2**20))))
    decoder = RecordDecoder()
    read = [one for at in range(0, len(data), 4096) for one in decoder.feed(data[at : at + 4096])]
    assert len(read) == 1


def test_ops_are_numbered_for_ever() -> None:
    assert [(op.value, op.name) for op in Op] == [
        (0, "TRUNCATE"),
        (1, "WRITE"),
        (2, "REMOVE"),
        (3, "SEGMENT_START"),
        (4, "MARK"),
        (5, "CHECKPOINT"),
        (6, "STATE_BLOCK"),
        (7, "SNAPSHOT_BEGIN"),
        (8, "SNAPSHOT_END"),
        (9, "DIVISION"),
        (10, "OUTPUT"),
        (11, "INPUT"),
        (12, "INPUT_CLOSED"),
        (13, "CONSUMERS"),
        (14, "INPUT_MARK"),
        (15, "DEPLOYMENT"),
        (16, "REPORT"),
        (17, "FS_CHANGE"),
        (18, "FS_DATA"),
        (19, "INDEX"),
    ]
    assert FILE_ARITY == {Op.TRUNCATE: (1, 1), Op.WRITE: (1, 2), Op.REMOVE: (0, 1)}


Result = TypeVar("Result")
LARGE = bytes(range(256)) * 12
"""More than the short way copies for a digest."""

writes = st.builds(
    lambda tag, offset, path, data: Record(Op.WRITE, tag, (offset,), (path, data)),
    u64,
    u64,
    st.binary(max_size=20),
    st.binary(max_size=60) | st.just(LARGE),
)


def the_long_way(call: Callable[[], Result]) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "_write_v1", lambda *_: None)
        patch.setattr(codec, "_take_writes", lambda _data, _view, at, *_: at)
        return call()


def parsed(data: bytes) -> tuple[ParseResult, str, list[tuple[int, Record]]]:
    out: list[tuple[int, Record]] = []
    found = parse_v1(data, 0, out, 1000, "J")
    return found._replace(fault=None), repr(found.fault), out


@given(record=writes)
def test_both_ways_write_the_same_bytes(record: Record) -> None:
    assert encode_v1(record) == the_long_way(lambda: encode_v1(record))


@given(
    written=st.lists(writes | records(1), min_size=1, max_size=5),
    at=st.integers(0, 10_000),
    flip=st.integers(0, 255),
    cut=st.integers(0, 3000),
)
@example(written=[Record(Op.WRITE, 1, (2,), (b"a", LARGE))] * 2, at=2500, flip=1, cut=0)
@example(written=[Record(Op.WRITE, 1, (2,), (b"a", LARGE))] * 2, at=0, flip=0, cut=1)
def test_both_ways_take_the_same_of_any_damaged_bytes(
    written: list[Record], at: int, flip: int, cut: int
) -> None:
    data = bytearray(b"".join(map(encode, written)))
    data[at % len(data)] ^= flip
    damaged = bytes(data[: max(len(data) - cut, 0)])
    assert parsed(damaged) == the_long_way(lambda: parsed(damaged))


def digested(header: bytes, body: bytes, header_digest: int | None = None) -> bytes:
    """A record with these first 20 bytes and this body, with its digests right unless one is given."""
    right = xxhash.xxh3_64_intdigest(header) & 0xFFFFFFFF
    whole = header + (right if header_digest is None else header_digest).to_bytes(4) + body
    return whole + xxhash.xxh3_64_digest(whole)


GOOD = encode_v1(Record(Op.WRITE, 7, (0,), (b"path", LARGE)))
HEADER, BODY = GOOD[:20], GOOD[24:-8]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (digested(HEADER, BODY, header_digest=0), "header digest"),
        (digested(HEADER[:16] + (len(BODY) + 8).to_bytes(4), BODY) + bytes(8), "record digest"),
        (digested(HEADER, BODY[:8] + (5).to_bytes(8) + BODY[16:]), "arguments that fill a body"),
        (digested(HEADER[:6] + b"\x02\x01" + HEADER[8:], BODY), "1 ints and 2 strings for WRITE"),
    ],
    ids=["header digest", "body that is larger than what fills it", "sizes that do not add up", "arity"],
)
def test_a_write_with_a_good_digest_that_breaks_a_rule_is_refused(data: bytes, text: str) -> None:
    assert digested(HEADER, BODY) == GOOD
    read, fault = decode_all(GOOD + data)
    assert read == decode_all(GOOD)[0]
    assert isinstance(fault, CorruptRecordError)
    assert text in str(fault)
    assert fault.offset >= len(GOOD)


def test_a_write_with_a_body_beyond_the_limit_is_refused_although_it_is_whole() -> None:
    size = record_body_bytes_max + 1 - 24 - 1
    text = b"".join(word.to_bytes(8) for word in (0, 1, size))
    data = digested(HEADER[:16] + (record_body_bytes_max + 1).to_bytes(4), text + b"a" + bytes(size))
    read, fault = decode_all(data)
    assert read == []
    assert isinstance(fault, CorruptRecordError)
    assert "a body of 24 to" in str(fault)


def by_specification_v1(record: Record) -> bytes:
    """A record built by construct alone; only the two digests are filled in here."""
    fields = {
        "op": record.op,
        "flags": record.flags,
        "tag": record.tag,
        "body_bytes": 8 * (len(record.ints) + len(record.strings)) + sum(map(len, record.strings)),
        "header_digest": 0,
        "ints": record.ints,
        "sizes": [len(string) for string in record.strings],
        "strings": record.strings,
        "digest": 0,
    }
    fields["header_digest"] = digest64(RECORD_V1.build(fields)[:20]) & 0xFFFFFFFF
    fields["digest"] = digest64(RECORD_V1.build(fields)[:-8])
    return bytes(RECORD_V1.build(fields))


def by_specification_v0(record: Record) -> bytes:
    body = 8 * (len(record.ints) + len(record.strings)) + sum(map(len, record.strings))
    fields = {
        "length": 12 + body,
        "op": record.op,
        "tag": record.tag,
        "ints": record.ints,
        "sizes": [len(string) for string in record.strings],
        "strings": record.strings,
    }
    return bytes(RECORD_V0.build(fields))


@given(v1_records)
def test_version_1_is_written_as_the_specification_builds_it(record: Record) -> None:
    assert encode_v1(record) == by_specification_v1(record)


@given(v0_records)
def test_version_0_is_written_as_the_specification_builds_it(record: Record) -> None:
    assert encode_v0(record) == by_specification_v0(record)


@given(v1_records)
def test_version_1_is_read_as_the_specification_parses_it(record: Record) -> None:
    data = by_specification_v1(record)
    parsed = RECORD_V1.parse(data)
    [(end, read)], fault = decode_all(data)
    assert fault is None
    assert end == len(data)
    assert read == Record(Op(parsed.op), parsed.tag, tuple(parsed.ints), tuple(parsed.strings), parsed.flags)


@given(v0_records)
def test_version_0_is_read_as_the_specification_parses_it(record: Record) -> None:
    data = by_specification_v0(record)
    parsed = RECORD_V0.parse(data)
    [(end, read)], fault = decode_all(data, 0)
    assert fault is None
    assert end == len(data) == parsed.length + 4
    assert read == Record(Op(parsed.op), parsed.tag, tuple(parsed.ints), tuple(parsed.strings))
