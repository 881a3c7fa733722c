"""The seeds of each target, made from values whose bytes are in protocol.md: `python -m tests.fuzz.corpus`
writes them to tests/fuzz/corpus, and a test keeps the two equal.
"""

from pathlib import Path

from checkpoint.core.links import frames as channel
from dos_protocol import messages as m
from dos_protocol.frames import encode_frame
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from dos_server.core.access import FILE_VERSION, Grant, GrantedToken, Right, TokenFile, encode_settings
from dos_server.core.files import records
from dos_server.core.files.extent import ExtentHeader, encode_header
from journal.core.record import Op, Record, encode
from tests.fuzz.disk_targets import SEED

_TOKENS = TokenFile(
    FILE_VERSION,
    (
        GrantedToken("operator", "0" * 64, (Grant("*", tuple(Right)),)),
        GrantedToken("shop", "a" * 64, (Grant("shop", (Right.READ, Right.APPEND)),), 1e9),
    ),
)
FOLDER = Path(__file__).parent / "corpus"

_MESSAGES = [
    m.Hello(token=b"t", client="c"), m.ChangeDirectory("dir", claim=True, epoch=7, writer_id=b"w" * 16),
    m.Append("state.1", 65536, 0x1122334455667788, b"payload"), m.Get("o", 1, 2, 3), m.List("a", "b", 9),
    m.Stat("o", 5), m.Delete("o"), m.Configure(b"r"), m.Ping(b"p"), m.Quit(),
    m.Listing((m.ObjectInfo("o", 3, 2, 1, True),), True), m.Error(1, "w", "r", 5, b"x"),
]  # fmt: skip


_ARROW = bytes.fromhex(
    "ffffffff780000001000000000000a000c000600050008000a000000000104000c0000000800080000000400"
    "08000000040000000100000014000000100014000800060007000c0000001000100000000000010210000000"
    "1c0000000400000000000000010000006e00000008000c0008000700080000000000000140000000ffffffff"
    "8800000014000000000000000c0016000600050008000c000c00000000030400180000001000000000000000"
    "00000a0018000c00040008000a0000003c000000100000000200000000000000000000000200000000000000"
    "0000000000000000000000000000000000000000100000000000000000000000010000000200000000000000"
    "000000000000000001000000000000000200000000000000ffffffff00000000"
)
"""An Arrow stream of one column with two numbers, as pyarrow 26 writes it."""


def seeds() -> dict[str, dict[str, bytes]]:
    """By target and name."""
    frames = [encode_frame(m.encode(message, 42)) for message in _MESSAGES]
    record = StoreRecord(b"s" * 16, 1, 1, (Member(b"a" * 16, "10.0.0.1:9999"),))
    rows = [Record(Op.WRITE, 5, (7,), (b"path", b"data")), Record(Op.TRUNCATE, 0, (9,), (b"path",))]
    step_end = channel.ChannelFrame(channel.FrameType.STEP_END, 3, 5, 7, 42, 5, 9, 1, 1)
    requests = [b"udir", b"l", b"af\t0", b"gf\t-5\t10", b"df", b"sf", b"?", b""]
    return {
        "wire": {
            "stream": b"\0\x10" + b"".join(frames),
            **{f"frame-{frame[3]}": b"\0\x07" + frame for frame in frames},
            "built": b"\2\5" + b"".join(
                bytes((one.opcode, 0, len(one.meta), *one.meta, len(one.payload), *one.payload, 7))
                for one in map(m.encode, _MESSAGES)
            ),
        },
        "version0": {"stream": b"\3" + b"".join(len(one).to_bytes(4) + one for one in requests)},
        "extent": {"hello": b"\1" + encode_header(ExtentHeader(5, 10, 3, 7, 0, 0, 9), SEED)[:56] + b"hello"},
        "scan": {
            "three": b"\4\x10" + b"".join(bytes((20,)) + b"x" * 21 + b"\0" for _ in range(3)),
            "hole": b"\0\0\x09" + b"y" * 10 + b"\0\xa5\0\x40\x09" + b"z" * 10 + b"\0",
        },
        "records": {
            "claim": b"\0" + records.encode_claim(records.ClaimRecord(7, b"w" * 16)),
            "mark": b"\0" + records.encode_mark(records.ObjectMark("obj", 15, root=9)),
            "identity": b"\0" + records.encode_identity(bytes(range(16))),
            "store": b"\0" + encode_store_record(record),
        },
        "tokens": {"two": encode_settings(_TOKENS)},
        "journal": {
            "version-1": b"\1\5" + b"".join(encode(one) for one in rows),
            "version-0": b"\0\5" + b"".join(encode(one, 0) for one in rows),
            "built": b"\3\5" + bytes((1, 0, 1, 2, 5, 7, 4)) + b"path" + b"\4data",
        },
        "arrow": {"stream": b"\x09" + _ARROW * 2, "whole": b"\xff" + _ARROW[:-8]},
        "channel": {"step-end": b"\0\x09" + channel.encode(step_end) * 2},
    }  # fmt: skip


def write() -> None:
    for target, inputs in seeds().items():
        (FOLDER / target).mkdir(parents=True, exist_ok=True)
        for name, data in inputs.items():
            (FOLDER / target / f"{name}.bin").write_bytes(data)


if __name__ == "__main__":
    write()
