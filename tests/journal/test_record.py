"""The codec: what is written is what is read, whole, in any pieces, in both versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol.errors import LocalProtocolError
from journal.core.decoder import RecordDecoder, decode_all, detect_version
from journal.core.record import Record, encode, encode_v1
from journal.core.record_layout import HEADER_V1
from journal.limits import record_body_bytes_max
from journal.ops import FILE_ARITY, Op
from tests.journal.strategies import records

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


@VERSIONS
def test_byte_by_byte_gives_the_same_as_all_at_once(version: int) -> None:
    written = [Record(Op.WRITE, 2, (10,), (b"/w/a", b"0\n")), Record(Op.REMOVE, 3, (), (b"/w/a",))]
    whole = b"".join(encode(record, version) for record in written)
    decoder = RecordDecoder(version)
    read = [record for index in range(len(whole)) for _, record in decoder.feed(whole[index : index + 1])]
    assert read == written
    assert decoder.finish() is None


def test_offsets_count_from_where_the_stream_began() -> None:
    data = encode(Record(Op.MARK, ints=(1,)))
    decoder = RecordDecoder(offset=1000)
    assert decoder.feed(data)[0][0] == 1000 + len(data)


def test_the_version_shows_in_the_first_bytes() -> None:
    assert detect_version(encode(Record(Op.REMOVE, strings=(b"a",)), 1)) == 1
    assert detect_version(encode(Record(Op.REMOVE, strings=(b"a",)), 0)) == 0
    assert detect_version(b"\xd0") is None
    assert detect_version(b"") is None


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


@VERSIONS
def test_a_body_beyond_the_limit_is_not_written(version: int) -> None:
    largest = record_body_bytes_max - 8 * 3 - 1
    assert len(encode(Record(Op.WRITE, ints=(0,), strings=(b"a", bytes(largest))), version)) > largest
    with pytest.raises(LocalProtocolError, match="split it into several records"):
        encode(Record(Op.WRITE, ints=(0,), strings=(b"a", bytes(largest + 1))), version)


def test_a_record_with_255_ints_and_255_strings_fits() -> None:
    record = Record(Op.OUTPUT, ints=tuple(range(255)), strings=tuple(bytes([i]) for i in range(255)))
    assert decode_all(encode(record))[0][0][1] == record


def test_the_header_says_how_long_a_record_is_before_its_body_exists() -> None:
    data = encode_v1(Record(Op.WRITE, ints=(0,), strings=(b"a", bytes(1000))))
    decoder = RecordDecoder()
    assert decoder.feed(data[: HEADER_V1.size]) == []
    assert decoder._needed == len(data)


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
    ]
    assert FILE_ARITY == {Op.TRUNCATE: (1, 1), Op.WRITE: (1, 2), Op.REMOVE: (0, 1)}
