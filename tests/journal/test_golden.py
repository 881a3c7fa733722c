"""Golden files: bytes of records as they were first written. They never change; a codec that disagrees is
wrong.

`v0-example.journal` is the original's, entry by entry from its published dump; `v1-every-op.journal` has one
record of each operation there was then, `v1-inputs.journal` those of input handles, `v1-consumers.journal`
those of their consumers, `v1-entry.journal` those of entry points. To add a file for a new
version: write it once with that version, and keep it for ever.
"""

from pathlib import Path

import pytest

from dos_protocol.digests import digest64, prefix_digest
from journal.core.chain import Predecessor, SegmentStart, start_record
from journal.core.record import Op, Record, decode_all, encode

GOLDEN = Path(__file__).parent / "golden"

V0_EXAMPLE = [
    Record(Op.WRITE, 1, (0,), (b"/w/my_app-worker3.tcp-control", b"localhost\n")),
    Record(Op.WRITE, 2, (10,), (b"/w/my_app-worker3.tcp-control", b"0\n")),
    Record(Op.TRUNCATE, 3, (0,), (b"/w/my_app-worker3.connection-addresses",)),
    Record(Op.REMOVE, 0, (), (b"/w/my_app-worker3.workers",)),
    Record(Op.WRITE, 2**64 - 1, (2**40,), (b"/w/\xff\x00", b"")),
]

START = SegmentStart(
    chain="state",
    epoch=7,
    base=4242,
    predecessor=Predecessor("state.0000000000000006.0000000000000010", 4226, 0xFEDCBA9876543210),
    generation=3,
    writer="000102030405060708090a0b0c0d0e0f",
    pipelined=False,
)

V1_EVERY_OP = [
    start_record(START),
    Record(Op.SNAPSHOT_BEGIN),
    Record(Op.STATE_BLOCK, 0, (1,), (b"counts", b"\xff\xff\xff\xff" + bytes(40))),
    Record(Op.SNAPSHOT_END, ints=(1,)),
    *V0_EXAMPLE[:4],
    Record(Op.MARK, ints=(1_732_147_200_000,)),
    Record(Op.CHECKPOINT, 5, (12, 340, 7), (b'{"cut":12}',)),
    Record(Op.DIVISION, ints=(341, 1_732_147_200_123), strings=(b'{"lines":{"a.txt":[0,100]}}',)),
    Record(Op.OUTPUT, 2**64 - 1, (341,), (b"word\t1\n", b""), flags=0x00FF),
]

V1_INPUTS = [
    Record(Op.INPUT, ints=(1, 0, 0, 2, 0, 1_732_147_200_000), strings=(b"a part", b"")),
    Record(Op.INPUT, ints=(1, 1, 1, 1, 0x7FC1E4A75B2C9D10, 1_732_147_200_000), strings=(b"the last", b"17")),
    Record(Op.INPUT_CLOSED, ints=(1_732_147_200_123,), strings=(b'{"producers":{"till-1":4242}}',)),
]

_REGISTER = (
    b'{"version":1,"consumers":{"shop":{"sources":["orders"],"since_ms":1732147200000}},'
    b'"rule":{"bytes_max":1073741824,"age_max_s":604800.0,"set_by":"ops@h1","set_ms":1732147200123}}'
)
V1_CONSUMERS = [
    Record(
        Op.CONSUMERS,
        ints=(1_732_147_200_123,),
        strings=(_REGISTER,),
    ),
    Record(
        Op.CONSUMERS,
        ints=(1_732_147_200_456,),
        strings=(b'{"version":1,"consumers":{},"rule":{"by_consumers":false}}',),
    ),
]

V1_ENTRY = [
    Record(Op.INPUT_MARK, ints=(1_732_147_199_999_999, 2, 1, 0, 0, 0, 1_732_147_200_000), strings=(b"",)),
    Record(
        Op.INPUT,
        ints=(1, 0, 1, 2, 0, 1_732_147_200_001, 1_732_147_200_001_000),
        strings=(b"rows", b"17", b"late rows"),
    ),
    Record(
        Op.INPUT_MARK,
        ints=(
            1_732_147_200_999_999,
            3,
            1,
            1_732_147_200_001_000,
            1,
            0x7FC1E4A75B2C9D10,
            1_732_147_201_000,
        ),
        strings=(b"17",),
    ),
]

_DEPLOYED = (
    b'{"version":1,"number":3,"replicas":{"joined":["purdue","osu"]},"streams":[[["joined","osu"],'
    b'["board","osu"]],[["loads","purdue"],["joined","osu"]]],"starts":{"joined@osu":"joined@purdue"},'
    b'"forgotten":["wisc"],"revived_ms":1732147200000,"young":[[[["loads","purdue"],["joined","osu"]],'
    b'1732147200000]],"decisions":[{"at_ms":1732147200000,"text":"revived","cost":420.5}]}'
)
_READER = (
    b'{"version":1,"reader":["board","osu"],"at_ms":1732147200123,"streams":[{"sender":["joined","osu"],'
    b'"ranks":[40,2],"mark":1732147199000000,"moved_s":0.5,"late_s":1.25,"whole":true},'
    b'{"sender":["joined","purdue"]}],"mark":1732147199000000,"moved_s":0.5}'
)
_SITE = b'{"version":1,"site":"osu","at_ms":1732147200456,"number":3,"regions":{"joined":"RUNNING"}}'
V1_SITES = [
    Record(Op.DEPLOYMENT, ints=(1_732_147_200_000,), strings=(_DEPLOYED,)),
    Record(Op.REPORT, ints=(1_732_147_200_123,), strings=(_READER,)),
    Record(Op.REPORT, ints=(1_732_147_200_456,), strings=(_SITE,)),
]

FILES = [
    ("v0-example.journal", 0, V0_EXAMPLE),
    ("v1-every-op.journal", 1, V1_EVERY_OP),
    ("v1-inputs.journal", 1, V1_INPUTS),
    ("v1-consumers.journal", 1, V1_CONSUMERS),
    ("v1-entry.journal", 1, V1_ENTRY),
    ("v1-sites.journal", 1, V1_SITES),
]


@pytest.mark.parametrize(("name", "version", "records"), FILES)
def test_golden_files_are_read_and_written_byte_for_byte(
    name: str, version: int, records: list[Record]
) -> None:
    data = (GOLDEN / name).read_bytes()
    read, fault = decode_all(data, None, where=name)
    assert fault is None
    assert [record for _, record in read] == records
    assert b"".join(encode(record, version) for record in records) == data


def test_the_golden_files_themselves_have_not_changed() -> None:
    found = {
        path.name: (path.stat().st_size, prefix_digest(path.read_bytes()))
        for path in GOLDEN.glob("*.journal")
    }
    assert found == {
        "v0-example.journal": (314, 0xFB24429ADC7734EF),
        "v1-every-op.journal": (1036, 0x191337EE5DCBEB5F),
        "v1-inputs.journal": (285, 0x69726897C341A971),
        "v1-consumers.journal": (330, 0x143E7C4E8488260D),
        "v1-entry.journal": (321, 0x601F0B8C2281E922),
        "v1-sites.journal": (851, 0x78901B62F002D07C),
    }


def test_a_version_0_record_laid_out_by_hand() -> None:
    by_hand = (
        bytes.fromhex(
            "00000043"  # 67 bytes follow
            "00 01 01 02"  # version 0, op 1 (write), 1 int, 2 strings
            "0000000000000002"  # tag
            "000000000000000a"  # the int: offset 10
            "000000000000001d"  # 29 bytes of path
            "0000000000000002"  # 2 bytes of data
        )
        + b"/w/my_app-worker3.tcp-control0\n"
    )
    assert encode(V0_EXAMPLE[1], 0) == by_hand


def test_a_version_1_record_laid_out_by_hand() -> None:
    head = bytes.fromhex("d04a 01 04 0000 01 00 0000000000000005 00000008")
    body = bytes.fromhex("0000000000000001")
    low = (digest64(head) & 0xFFFFFFFF).to_bytes(4)
    by_hand = head + low + body + digest64(head + low + body).to_bytes(8)
    assert encode(Record(Op.MARK, 5, (1,))) == by_hand
