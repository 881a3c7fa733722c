"""Damage: whatever happens to a journal's bytes, a reader gets an exact prefix of its records and a named
fault.

The invariant of this file: for any bytes at all, the decoder hands out records that were written, in
order, from the first on, and then says nothing (a sound end), TornRecordError, CorruptRecordError or
UnknownRecordError. Never another exception, never memory beyond one record.
"""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol.digests import digest64
from dos_protocol.errors import LocalProtocolError
from journal.core.errors import CorruptRecordError, TornRecordError, UnknownRecordError
from journal.core.record import HEADER_V0, HEADER_V1, MAGIC, Op, Record, RecordDecoder, decode_all, encode
from journal.limits import record_body_bytes_max
from tests.journal.strategies import records

THREE = [
    Record(Op.WRITE, 1, (0,), (b"/w/my_app-worker3.tcp-control", b"localhost\n")),
    Record(Op.WRITE, 2, (10,), (b"/w/my_app-worker3.tcp-control", b"0\n")),
    Record(Op.TRUNCATE, 3, (0,), (b"/w/my_app-worker3.connection-addresses",)),
]
VERSIONS = pytest.mark.parametrize("version", [0, 1])
NAMED = (TornRecordError, CorruptRecordError, UnknownRecordError)


def three(version: int) -> tuple[bytes, list[int]]:
    """The journal of three records, and where each ends."""
    parts = [encode(record, version) for record in THREE]
    return b"".join(parts), [len(b"".join(parts[: n + 1])) for n in range(3)]


@VERSIONS
def test_every_truncation_of_a_journal_gives_the_whole_records_before_it_and_a_torn_tail(
    version: int,
) -> None:
    data, ends = three(version)
    for length in range(len(data) + 1):
        read, fault = decode_all(data[:length], version)
        whole = sum(end <= length for end in ends)
        assert [record for _, record in read] == THREE[:whole]
        if length in (0, *ends):
            assert fault is None
        else:
            assert type(fault) is TornRecordError, f"cut at {length}: {fault}"
            assert fault.offset == ([0, *ends][whole])


def test_every_bit_flip_of_a_version_1_journal_is_found_where_it_is() -> None:
    # EVIDENCE-OF: P-2
    data, ends = three(1)
    for bit in range(8 * len(data)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << (bit % 8)
        read, fault = decode_all(bytes(broken), 1)
        before = sum(end <= bit // 8 for end in ends)
        assert [record for _, record in read] == THREE[:before], f"bit {bit}"
        assert type(fault) is CorruptRecordError, f"bit {bit}: {fault!r}"
        start = [0, *ends][before]
        assert start <= fault.offset < ends[before]


def test_every_bit_flip_of_a_version_0_journal_leaves_the_records_before_it_and_no_other_exception() -> None:
    """Version 0 has no checksums: a flip in data shows as other data. What is before it is exact, though."""
    data, ends = three(0)
    silent = 0
    for bit in range(8 * len(data)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << (bit % 8)
        read, fault = decode_all(bytes(broken), 0)
        before = sum(end <= bit // 8 for end in ends)
        assert [record for _, record in read][:before] == THREE[:before], f"bit {bit}"
        assert fault is None or isinstance(fault, NAMED), f"bit {bit}"
        silent += fault is None
        if bit // 8 < [0, *ends][before] + 4:  # in its length: not taken for a record that was cut off
            assert type(fault) is CorruptRecordError, f"bit {bit}"
    free = sum(8 + 8 * len(r.ints) + sum(len(s) for s in r.strings) for r in THREE)
    assert silent == 8 * free, "only tags, ints and strings can change unseen"


@VERSIONS
@given(data=st.data())
def test_any_damage_leaves_an_exact_prefix_and_a_named_fault(version: int, data: st.DataObject) -> None:
    written = data.draw(st.lists(records(1), min_size=1, max_size=4))
    if version == 0:
        written = data.draw(st.lists(records(0), min_size=1, max_size=4))
    parts = [encode(record, version) for record in written]
    whole = b"".join(parts)
    at = data.draw(st.integers(0, len(whole)))
    removed = data.draw(st.integers(0, 30))
    inserted = data.draw(st.binary(max_size=30))
    damaged = whole[:at] + inserted + whole[at + removed :]
    read, fault = decode_all(damaged, version)
    intact = sum(len(b"".join(parts[: n + 1])) <= at for n in range(len(parts)))
    assert [record for _, record in read][:intact] == written[:intact]
    assert fault is None or isinstance(fault, NAMED)
    if version == 1 and fault is None:
        assert damaged == b"".join(encode(record) for _, record in read)


@VERSIONS
@given(garbage=st.binary(max_size=400))
def test_garbage_is_a_named_fault_and_never_another_exception(version: int, garbage: bytes) -> None:
    read, fault = decode_all(garbage, None)
    assert isinstance(fault, NAMED) or garbage == b"" or read
    decode_all(encode(Record(Op.REMOVE, strings=(b"a",)), version) + garbage, version)


@VERSIONS
@pytest.mark.parametrize("zeros", [1, 2, 3, 4, 5, 16, 23, 24, 25, 4096, 100_000])
def test_a_tail_of_zeros_is_the_end_and_not_a_record(version: int, zeros: int) -> None:
    """A file's size can reach the disk before its data (reliability row 8)."""
    data, ends = three(version)
    for pieces in (1, 7):
        decoder = RecordDecoder(version)
        whole = data + bytes(zeros)
        step = len(whole) // pieces + 1
        read = [one for at in range(0, len(whole), step) for one in decoder.feed(whole[at : at + step])]
        fault = decoder.finish()
        assert [record for _, record in read] == THREE
        assert type(fault) is TornRecordError
        assert fault.offset == ends[-1]


@VERSIONS
def test_zeros_in_the_middle_are_damage_and_not_an_end(version: int) -> None:
    data, ends = three(version)
    decoder = RecordDecoder(version)
    assert len(decoder.feed(data)) == 3
    assert decoder.feed(bytes(5000)) == []
    with pytest.raises(CorruptRecordError) as caught:
        decoder.feed(data)
    assert caught.value.offset == ends[-1]
    assert "zero bytes, then others" in str(caught.value)


def test_two_journals_of_different_versions_joined_are_not_read_as_one() -> None:
    for first, second in ((0, 1), (1, 0)):
        data, ends = three(first)
        read, fault = decode_all(data + three(second)[0], None)
        assert [record for _, record in read] == THREE
        assert type(fault) is CorruptRecordError
        assert fault.offset == ends[-1]


def test_pickle_bytes_are_no_journal() -> None:
    _, fault = decode_all(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00K\x01K\x02K\x03\x87\x94.", None)
    assert type(fault) is CorruptRecordError


def with_header_digest(header: bytes) -> bytes:
    return header[:20] + (digest64(header[:20]) & 0xFFFFFFFF).to_bytes(4)


HUGE = [
    with_header_digest(HEADER_V1.pack(MAGIC, 1, 6, 0, 0, 1, 0, 0xFFFFFFFF, 0)),
    with_header_digest(HEADER_V1.pack(MAGIC, 1, 6, 0, 0, 1, 0, record_body_bytes_max + 1, 0)),
    HEADER_V0.pack(0x7FFFFFFF, 0, 1, 1, 2, 0),
    HEADER_V0.pack(12 + record_body_bytes_max + 1, 0, 1, 1, 2, 0),
]


@pytest.mark.parametrize("header", HUGE)
def test_a_length_beyond_the_limit_is_refused_before_anything_is_kept(header: bytes) -> None:
    # EVIDENCE-OF: P-9
    decoder = RecordDecoder(None)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError, match="bytes"):
            decoder.feed(header)
        with pytest.raises(CorruptRecordError):
            decoder.feed(bytes(1000))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_sizes_field_of_2_to_the_64_allocates_nothing() -> None:
    body = (0).to_bytes(8) + (2**64 - 1).to_bytes(8) + (2**64 - 9).to_bytes(8)
    head = with_header_digest(HEADER_V1.pack(MAGIC, 1, 1, 0, 1, 2, 0, len(body), 0))
    data = head + body
    _, fault = decode_all(data + digest64(data).to_bytes(8))
    assert type(fault) is CorruptRecordError
    assert "arguments that fill a body of 24 bytes" in str(fault)
    _, fault = decode_all(HEADER_V0.pack(12 + 24, 0, 1, 1, 2, 0) + body, 0)
    assert type(fault) is CorruptRecordError


def test_a_fault_is_raised_after_the_good_records_and_again_at_each_later_call() -> None:
    decoder = RecordDecoder()
    good = encode(THREE[0])
    assert len(decoder.feed(good + b"garbage, and more of it than a header has")) == 1
    for call in (lambda: decoder.feed(b""), lambda: decoder.feed(good), decoder.finish):
        with pytest.raises(CorruptRecordError) as caught:
            call()
        assert caught.value.offset == len(good)
        assert caught.value.where == "journal"
        assert caught.value.hint


def test_a_finished_decoder_takes_nothing_more() -> None:
    decoder = RecordDecoder()
    assert decoder.finish() is None
    with pytest.raises(LocalProtocolError):
        decoder.feed(b"")
    with pytest.raises(LocalProtocolError, match="version 0 or 1"):
        RecordDecoder(7)
