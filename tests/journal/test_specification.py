"""The hot path against the executable specification in `construct`: both ways, both versions."""

from hypothesis import given

from dos_protocol.digests import digest64
from journal.core.decoder import decode_all
from journal.core.record import Record, encode_v0, encode_v1
from journal.ops import Op
from tests.journal.strategies import v0_records, v1_records
from tests.specifications.records import RECORD_V0, RECORD_V1


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
