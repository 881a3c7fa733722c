"""Which headers are valid: every rule at its boundary, by tables and an oracle written as the rules are.

A header has right digests here, so that each rule decides alone. All that look at headers are held to one
oracle: the parser, the search that goes from header to header, and the words for what is wrong.
"""

from itertools import product

import pytest

from dos_protocol.digests import digest64
from dos_protocol.errors import CorruptDataError, LocalProtocolError
from journal.core import record as codec
from journal.core.errors import CorruptRecordError, TornRecordError, UnknownRecordError
from journal.core.record import (
    FILE_ARITY,
    HEADER_V0,
    HEADER_V1,
    OPS_BY_NUMBER,
    DecoderState,
    Op,
    Record,
    RecordDecoder,
    decode_all,
    detect_version,
    encode,
    encode_v1,
    parse_header_v1,
    parse_v0,
    parse_v1,
    partial_fault_v0,
    partial_fault_v1,
)
from journal.limits import record_body_bytes_max

MAGIC = b"\xd0\x4a"
OPS = len(OPS_BY_NUMBER)
COUNTS = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 1), (255, 255)]
BODIES = [-1, 0, 1]
"""Bytes of a body, counted from the least that the arguments need."""


def header_v1(
    op: int = Op.MARK, ints: int = 1, strings: int = 0, body: int = 8, flags: int = 0, version: int = 1
) -> bytes:
    head = HEADER_V1.pack(MAGIC, version, op, flags, ints, strings, 7, body, 0)[:20]
    return head + (digest64(head) & 0xFFFFFFFF).to_bytes(4)


def place_v1(op: int, ints: int, strings: int, body: int, flags: int, version: int) -> int | None:
    """Where the header is wrong, None if it is right; rules 1, 3, 4, 7 and 5 of the layout, in this order."""
    if version != 1:
        return 2
    if flags > 0xFF:
        return 4
    if op >= OPS:
        return 3
    if op in FILE_ARITY and (ints, strings) != FILE_ARITY[Op(op)]:
        return 6
    if not 8 * (ints + strings) <= body <= 64 * 2**20:
        return 16
    return None


def cases_v1() -> list[tuple[int, int, int, int, int, int]]:
    bodies = [(ints, strings, 8 * (ints + strings) + more) for ints, strings in COUNTS for more in BODIES]
    limits = [(1, 2, 64 * 2**20 + more) for more in BODIES] + [(1, 2, 2**32 - 1)]
    return [
        (op, ints, strings, body, flags, version)
        for op, (ints, strings, body), flags, version in product(
            [*range(OPS + 2), 255], bodies + limits, [0, 0xFF, 0x100, 0x8000], [0, 1, 2]
        )
        if body >= 0
    ]


def test_every_rule_of_a_header_of_version_1_is_kept_at_its_boundary() -> None:
    for op, ints, strings, body, flags, version in cases_v1():
        case = (op, ints, strings, body, flags, version)
        head, wrong = header_v1(*case), place_v1(*case)
        parsed = parse_v1(b"??" + head, 2, [], 1000, "J")
        if wrong is None:
            assert parsed == (2, 24 + body + 8, None), case
            assert parse_header_v1(b"??" + head, 2, 1000, "J") == (OPS_BY_NUMBER[op], 24 + body + 8), case
            continue
        assert (parsed.end, parsed.needed) == (2, 0), case
        kind = CorruptRecordError if wrong in (6, 16) else UnknownRecordError
        assert isinstance(parsed.fault, kind), case
        assert (parsed.fault.where, parsed.fault.offset) == ("J", 1002 + wrong), (case, parsed.fault)
        if wrong != 6:  # a search skips what it does not need, and has no use for the arity
            with pytest.raises(kind) as caught:
                parse_header_v1(b"??" + head, 2, 1000, "J")
            assert caught.value.args == parsed.fault.args, case


def test_what_is_reported_of_a_header_is_what_it_holds() -> None:
    expected_texts = {
        header_v1(version=9): ("version 9", "newer release"),
        header_v1(flags=0x300): ("flags within 0x00ff", "0x0300", "newer release"),
        header_v1(op=77): (f"an op below {OPS}", "op 77", "newer release"),
        header_v1(Op.WRITE, 2, 1, 24): ("1 ints and 2 strings for WRITE", "2 and 1"),
        header_v1(ints=3, strings=2, body=39): (f"a body of 40 to {record_body_bytes_max} bytes", "39 bytes"),
    }
    for head, words in expected_texts.items():
        fault = parse_v1(head, 0, [], 0, "J").fault
        assert fault is not None
        assert all(word in str(fault) or word in fault.hint for word in words), (str(fault), fault.hint)


def test_a_version_that_its_digest_contradicts_is_damage_and_one_that_it_fits_is_a_later_release() -> None:
    for version in (0, 2, 255):
        flipped = header_v1()[:2] + bytes([version]) + header_v1()[3:]
        fault = parse_v1(flipped, 0, [], 500, "J").fault
        assert type(fault) is CorruptRecordError
        assert (fault.offset, fault.found) == (502, str(version))
        assert type(parse_v1(header_v1(version=version), 0, [], 500, "J").fault) is UnknownRecordError


def test_fewer_bytes_than_a_header_of_version_1_are_wrong_as_soon_as_one_of_them_is() -> None:
    head = header_v1()
    for size in range(24):
        assert partial_fault_v1(b"?" + head[:size], 1, 500, "J") is None, size
        assert parse_v1(b"?" + head[:size], 1, [], 500, "J") == (1, 24, None)
    for size, byte, offset in ((1, 0, 0), (2, 0, 0), (2, 1, 0), (3, 1, 0), (3, 2, 2), (23, 2, 2)):
        broken = bytearray(head[:size])
        broken[byte] ^= 1
        fault = partial_fault_v1(b"?" + broken, 1, 500, "J")
        assert fault is not None, (size, byte)
        assert fault.offset == 501 + offset


def header_v0(
    op: int = 1, ints: int = 1, strings: int = 2, more: int = 0, version: int = 0, length: int | None = None
) -> bytes:
    return HEADER_V0.pack(
        12 + 8 * (ints + strings) + more if length is None else length, version, op, ints, strings, 7
    )


def place_v0(head: bytes) -> int | None:
    """Where a header of version 0 is wrong, with the length's bounds first; None if it is right."""
    length, version, op, ints, strings, _ = HEADER_V0.unpack(head)
    if not 12 <= length <= 12 + 64 * 2**20:
        return 0
    if version:
        return 4
    if op > 2:
        return 5
    if (ints, strings) != [(1, 1), (1, 2), (0, 1)][op]:
        return 6
    return 0 if length < 12 + 8 * (ints + strings) else None


def heads_v0() -> list[bytes]:
    lengths = [
        0,
        11,
        12,
        13,
        27,
        28,
        29,
        35,
        36,
        37,
        64 * 2**20 + 11,
        64 * 2**20 + 12,
        64 * 2**20 + 13,
        2**32 - 1,
    ]
    arities = [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2)]
    return [
        header_v0(op, ints, strings, version=version, length=length)
        for op, (ints, strings), version, length in product(range(4), arities, (0, 1, 3), lengths)
    ]


def test_every_rule_of_a_header_of_version_0_is_kept_at_its_boundary() -> None:
    for head in heads_v0():
        parsed, wrong = parse_v0(b"??" + head, 2, [], 1000, "J"), place_v0(head)
        if wrong is None:
            words = head[6] + head[7]
            assert parsed == (2, 16 + 8 * words, None), head.hex()
            continue
        assert (parsed.end, parsed.needed) == (2, 0)
        assert type(parsed.fault) is (UnknownRecordError if wrong == 4 else CorruptRecordError), head.hex()
        assert parsed.fault is not None
        assert parsed.fault.offset == 1002 + wrong, (head.hex(), parsed.fault)
        held = {0: f"{int.from_bytes(head[:4])}", 4: f"version {head[4]}", 5: f"op {head[5]}"}
        assert parsed.fault.found == held.get(wrong, f"{head[6]} and {head[7]}")


def test_fewer_bytes_than_a_header_of_version_0_are_wrong_as_soon_as_they_cannot_become_right() -> None:
    """The arity is judged with the whole header; length and version with 5 bytes, the op with 6."""
    for head in heads_v0():
        length, version, op, *_ = HEADER_V0.unpack(head)
        for size in range(16):
            wrong = size >= 5 and (version != 0 or not 12 <= length <= 12 + 64 * 2**20)
            wrong = wrong or (size >= 6 and op > 2)
            fault = partial_fault_v0(b"??" + head[:size], 2, 1000, "J")
            assert (fault is not None) == wrong, (head.hex(), size)
            parsed = parse_v0(b"??" + head[:size], 2, [], 1000, "J")
            assert (parsed.end, parsed.needed, parsed.fault is not None) == (2, 16, wrong)


def test_a_record_of_version_0_is_waited_for_in_three_steps() -> None:
    whole = encode(Record(Op.WRITE, 1, (5,), (b"path", b"data!")), 0)
    needed = [parse_v0(whole[:size], 0, [], 0, "J").needed for size in range(len(whole))]
    assert needed == [16] * 16 + [16 + 24] * 24 + [len(whole)] * 9


def test_a_record_of_version_1_is_waited_for_in_two_steps() -> None:
    whole = encode(Record(Op.OUTPUT, 1, (5, 6), (b"abc", b"")))
    needed = [parse_v1(whole[:size], 0, [], 0, "J").needed for size in range(len(whole))]
    assert needed == [24] * 24 + [len(whole)] * (len(whole) - 24)


@pytest.mark.parametrize(("op", "version"), [(Op.OUTPUT, 1), (Op.WRITE, 1), (Op.WRITE, 0)])
@pytest.mark.parametrize("over", [0, 1])
def test_the_largest_body_is_written_and_read_and_one_byte_more_is_neither(
    op: Op, version: int, over: int
) -> None:
    record = Record(op, 0, (0,), (b"a", bytes(record_body_bytes_max - 25 + over)))
    if over:
        with pytest.raises(LocalProtocolError, match="split it into several records"):
            encode(record, version)
        return
    data = encode(record, version)
    assert decode_all(data, version) == ([(len(data), record)], None)


SIZES = [0, 1, 2047 - 24, 2048 - 24, 2049 - 24, 5000]


def test_every_sound_write_goes_the_short_way() -> None:
    """It is half of the speed of a replay, and no result would tell that it is not gone."""
    written = [Record(Op.WRITE, 3, (size,), (b"", bytes(size))) for size in SIZES]
    for record in written:
        assert codec._write_v1(record.tag, record.ints, record.strings) == encode_v1(record)
    data = b"".join(map(encode_v1, written))
    out: list[tuple[int, Record]] = []
    assert codec._take_writes(b"?" + data, memoryview(b"?" + data), 1, out, 100) == 1 + len(data)
    assert [record for _, record in out] == written
    assert [end for end, _ in out] == [
        101 + len(b"".join(map(encode_v1, written[: n + 1]))) for n in range(len(written))
    ]


def test_the_short_way_leaves_what_breaks_a_rule() -> None:
    assert codec._write_v1(0, (1, 2), (b"a", b"")) is None
    assert codec._write_v1(0, (1,), (b"a",)) is None
    assert codec._write_v1(0, (), (b"a", b"")) is None
    assert codec._write_v1(-1, (1,), (b"a", b"")) is None
    for other in (Record(Op.WRITE, 0, (1,), (b"a", b"b"), 1), Record(Op.TRUNCATE, 0, (1,), (b"a" * 30,))):
        data = encode_v1(other)
        assert codec._take_writes(data, memoryview(data), 0, [], 0) == 0


def sizes_that_do_not_add_up(version: int, sizes: tuple[int, int]) -> bytes:
    body = b"".join(word.to_bytes(8) for word in (0, *sizes)) + b"abcd"
    if version == 0:
        return header_v0(more=4) + body
    data = header_v1(Op.WRITE, 1, 2, len(body)) + body
    return data + digest64(data).to_bytes(8)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("sizes", [(1, 2), (2, 3), (0, 0), (4, 1), (0, 5), (2**64 - 1, 5)])
def test_strings_that_do_not_fill_the_body_are_refused_with_their_sizes(
    version: int, sizes: tuple[int, int]
) -> None:
    good = sizes_that_do_not_add_up(version, (1, 3))
    [(_, record)], fault = decode_all(good, version)
    assert (record.strings, fault) == ((b"a", b"bcd"), None)
    read, fault = decode_all(good + sizes_that_do_not_add_up(version, sizes), version)
    assert len(read) == 1
    assert type(fault) is CorruptRecordError
    assert fault.offset == len(good) + (0 if version == 0 else 32)
    assert fault.expected == "arguments that fill a body of 28 bytes"
    assert fault.found == f"strings of {sizes[0]}, {sizes[1]} bytes"


def test_a_fault_in_many_sizes_shows_the_first_eight() -> None:
    body = b"".join(size.to_bytes(8) for size in range(1, 11))
    data = header_v1(Op.OUTPUT, 0, 10, len(body)) + body
    _, fault = decode_all(data + digest64(data).to_bytes(8))
    assert fault is not None
    assert fault.found == "strings of 1, 2, 3, 4, 5, 6, 7, 8 bytes"


def test_a_body_that_changed_is_told_by_both_digests() -> None:
    data = bytearray(encode(Record(Op.OUTPUT, 0, (5,), (b"abc",))))
    right, data[30] = digest64(bytes(data[:-8])), data[30] ^ 1
    _, fault = decode_all(encode(Record(Op.MARK, 0, (1,))) + data)
    assert type(fault) is CorruptRecordError
    assert (fault.offset, fault.found) == (40, f"{right:016x}")
    assert fault.expected == f"record digest {digest64(bytes(data[:-8])):016x}"


# --- the decoder ---


@pytest.mark.parametrize(
    ("begun", "version"),
    [
        (b"", None),
        (b"\xd0", None),
        (b"\xd1", 0),
        (b"\0", 0),
        (MAGIC, 1),
        (b"\xd0\x4b", 0),
        (MAGIC + b"\0", 1),
        (b"\0\0", 0),
    ],
)
def test_two_bytes_tell_the_version_and_one_does_where_it_can(begun: bytes, version: int | None) -> None:
    assert detect_version(begun) == version


def test_zeros_at_the_end_are_counted_and_so_are_those_before_other_bytes() -> None:
    decoder = RecordDecoder(where="J", offset=100)
    good = encode(Record(Op.MARK, 0, (1,)))
    for piece in (good, bytes(30), bytes(12), b"", bytes(1)):
        decoder.feed(piece)
    assert (decoder.state, decoder.buffered, decoder.offset) == (DecoderState.ZEROS, 43, 140)
    torn = decoder.finish()
    assert isinstance(torn, TornRecordError)
    assert (torn.offset, torn.found) == (140, "43 zero bytes")

    decoder = RecordDecoder(where="J")
    decoder.feed(good + bytes(30))
    with pytest.raises(CorruptRecordError) as caught:
        decoder.feed(bytes(5) + b"x" + bytes(9))
    assert (caught.value.offset, caught.value.found) == (40, "35 zero bytes, then others")


def test_a_cut_off_record_is_told_with_what_exists_and_what_it_needs() -> None:
    good, half = encode(Record(Op.MARK, 0, (1,))), encode(Record(Op.MARK, 0, (2,)))
    for size in range(1, len(half)):
        decoder = RecordDecoder(where="J")
        decoder.feed(good + half[:size])
        assert decoder.buffered == size
        torn = decoder.finish()
        assert isinstance(torn, TornRecordError)
        assert (torn.offset, torn.found) == (40, f"the end after {size}")
        assert torn.expected == f"a record of at least {24 if size < 24 else 40} bytes"


def test_a_version_is_judged_with_the_header_whole_or_at_the_end() -> None:
    """Its digest tells a later release from a flipped bit, and comes last."""
    good, flipped = encode(Record(Op.MARK, 0, (1,))), bytearray(header_v1())
    flipped[2] = 2
    for head, kind in ((bytes(flipped), CorruptRecordError), (header_v1(version=2), UnknownRecordError)):
        decoder = RecordDecoder()
        assert len(decoder.feed(good + head[:10])) == 1
        assert decoder.feed(head[10:23]) == []
        with pytest.raises(CorruptDataError) as caught:
            decoder.feed(head[23:])
        assert type(caught.value) is kind
        decoder = RecordDecoder()
        assert len(decoder.feed(good + head[:23])) == 1
        with pytest.raises(UnknownRecordError):
            decoder.finish()
