"""The codec of requests and answers: any split, any damage, anything between; against its specification."""

from itertools import pairwise

import pytest
from construct import Bytes, Const, Int8ub, Int16ub, Int32ub, Int64ub, Struct, this
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.core.requests import (
    HEADER_BYTES,
    MAGIC,
    Answer,
    RecordReader,
    Request,
    Skipped,
    encode_record,
)
from dos_protocol.digests import digest64

ID = "0123456789abcdef" * 2
RECORD = Struct(
    "magic" / Const(b"\xffDRQ"),
    "version" / Const(1, Int8ub),
    "kind" / Int8ub,
    "reserved" / Const(0, Int16ub),
    "payload_bytes" / Int32ub,
    "digest" / Int64ub,
    "payload" / Bytes(this.payload_bytes),
)


def a_request(**fields):
    return Request(
        **{"id": ID, "region": "words", "what": "status", "wall_time_ms": 1, "patience_ms": 2, **fields}
    )


def an_answer(**fields):
    return Answer(
        **{
            "requests": (ID,),
            "region": "words",
            "incarnation": 3,
            "verdict": "done",
            "wall_time_ms": 1,
            **fields,
        }
    )


texts = st.text(max_size=40)
records = st.one_of(
    st.builds(a_request, what=texts, asked_by=texts, region=texts, incarnation=st.integers(0, 2**63)),
    st.builds(
        an_answer,
        verdict=st.sampled_from(["accepted", "refused", "done", "failed"]),
        reason=texts,
        result=st.dictionaries(texts, st.one_of(texts, st.integers(-(2**53), 2**53), st.none()), max_size=4),
    ),
)


def read(*pieces: bytes):
    reader = RecordReader()
    return [found for piece in pieces for found in reader.feed(piece)]


def good(found):
    return [one for one in found if not isinstance(one, Skipped)]


@given(records)
def test_a_record_is_laid_out_as_the_docstring_says(record) -> None:
    data = encode_record(record)
    parsed = RECORD.parse(data)
    assert parsed.kind == (1 if isinstance(record, Request) else 2)
    assert len(data) == HEADER_BYTES + parsed.payload_bytes
    assert parsed.digest == digest64(data[:12] + parsed.payload)
    assert b"\xff" not in parsed.payload


@given(st.lists(records, min_size=1, max_size=4), st.lists(st.integers(0, 5000), max_size=6))
def test_records_come_out_however_the_bytes_are_cut(written, checkpoints) -> None:
    data = b"".join(map(encode_record, written))
    edges = [0, *sorted(min(checkpoint, len(data)) for checkpoint in checkpoints), len(data)]
    assert read(*(data[a:b] for a, b in pairwise(edges))) == written


def test_a_record_torn_anywhere_also_within_its_header_does_not_swallow_the_next() -> None:
    whole, after = encode_record(an_answer()), an_answer(reason="after")
    for length in range(1, len(whole)):
        assert good(read(whole[:length], encode_record(after))) == [after], length


@given(records, records, st.data())
def test_a_torn_record_costs_itself_and_nothing_after_it(torn, after, data) -> None:
    whole = encode_record(torn)
    kept = whole[: data.draw(st.integers(1, len(whole) - 1))]
    found = read(kept, encode_record(after))
    assert good(found) == [after]
    assert sum(one.count for one in found if isinstance(one, Skipped)) == len(kept)


@given(records, records, st.data())
def test_a_flipped_bit_costs_its_record_at_most(damaged, after, data) -> None:
    whole = bytearray(encode_record(damaged))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    filler = encode_record(after) * 3
    found = good(read(bytes(whole), filler))
    assert damaged not in found or damaged == after
    assert found.count(after) >= filler.count(MAGIC)


@given(st.lists(st.one_of(st.binary(max_size=60), st.just(MAGIC), records.map(encode_record)), max_size=8))
def test_whatever_lies_there_nothing_is_raised_and_every_byte_is_accounted_for(pieces) -> None:
    reader, skipped, taken = RecordReader(), 0, 0
    for piece in pieces:
        for found in reader.feed(piece):
            if isinstance(found, Skipped):
                assert found.count > 0
                assert found.why
                skipped += found.count
            else:
                taken += len(encode_record(found))
    assert skipped + taken <= sum(map(len, pieces))
    assert good(reader.feed(encode_record(a_request()) * 2))[-1:] in ([a_request()], [])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data[:4] + b"\x02" + data[5:], "version 2"),
        (lambda data: data[:5] + b"\x07" + data[6:], "kind 7"),
        (lambda data: data[:6] + b"\x00\x01" + data[8:], "reserved"),
        (lambda data: data[:8] + b"\xff\xff\xff\x00" + data[12:], "exceeds the limit"),
        (lambda data: data[:-1] + b"!", "wrong digest"),
    ],
)
def test_what_is_wrong_is_reported(change, why) -> None:
    found = read(change(encode_record(a_request())))
    assert why in found[0].why
    assert good(found) == []


def test_a_record_whose_json_is_not_ours_is_skipped_whole() -> None:
    def sealed(payload: bytes) -> bytes:
        head = b"\xffDRQ\x01\x01\x00\x00" + len(payload).to_bytes(4, "big")
        return head + digest64(head + payload).to_bytes(8, "big") + payload

    for payload in (b"", b"[]", b"null", b'{"id": 5}', b"[" * 3000, b"\xc3("):
        found = read(sealed(payload) + encode_record(a_request()))
        assert [type(one) for one in found] == [Skipped, Request], payload
        assert found[0].count == HEADER_BYTES + len(payload)


def test_a_record_too_large_is_refused_before_it_is_written() -> None:
    # EVIDENCE-OF: P-9
    with pytest.raises(ValueError, match="exceeds the limit 4096"):
        encode_record(a_request(asked_by="x" * 5000))
