"""The fast path of valid WRITEs: it writes and reads what the general path does, and refuses nothing."""

from collections.abc import Callable
from typing import TypeVar

import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from journal.core import record as codec
from journal.core.decoder import decode_all
from journal.core.errors import CorruptRecordError
from journal.core.record import ParseResult, Record, encode, encode_v1, parse_v1
from journal.limits import record_body_bytes_max
from journal.ops import Op
from tests.journal.strategies import records, u64

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
