"""The worked session of protocol.md: what a client and a server say to each other, frame by frame, in hex.

Drawn into the file by `protocol_tables`; a test sends the client's bytes, as the file has them, to a server,
and compares what that answers.
"""

import struct
from typing import NamedTuple

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import VERDICTS, ErrorCode
from dos_protocol.frames import encode_frame
from dos_protocol.limits import entries_max, payload_bytes_max
from dos_server.limits import in_flight_bytes_max

SERVER_ID = bytes.fromhex("5e" * 16)
"""Stands for the identity that a server made for itself."""
WRITER_ID = bytes(range(16))
_HELLO, _WORLD = b"hello, ", b"world"
_BOTH = _HELLO + _WORLD
_NAME = "greeting"


class Line(NamedTuple):
    """One frame: who sends it, its request id, and what it says."""

    sender: str
    request_id: int
    message: m.Message
    says: str


def _refusal() -> m.Error:
    text = f"{_NAME} has {len(_BOTH)} bytes, not {len(_HELLO)}"
    return m.Error(ErrorCode.SIZE_MISMATCH, text, VERDICTS[ErrorCode.SIZE_MISMATCH].remedy, actual=len(_BOTH))


INFO = m.ObjectInfo(_NAME, len(_BOTH), len(_BOTH), prefix_digest(_BOTH))

SESSION = [
    Line(
        "client", 1, m.Hello(client="example"), "version 1, to this one server: store id and generation are 0"
    ),
    Line(
        "server",
        1,
        m.Welcome(1, SERVER_ID, payload_bytes_max, in_flight_bytes_max, entries_max),
        "its identity (here 5e5e..), its limits, no store record",
    ),
    Line(
        "client",
        2,
        m.ChangeDirectory("demo", claim=True, epoch=1, writer_id=WRITER_ID),
        "claims `demo` with epoch 1, as writer 000102..0f",
    ),
    Line("server", 2, m.DirectoryOpened(1, WRITER_ID), "the claim is on stable storage; no objects"),
    Line("client", 3, m.Append(_NAME, 0, 0, _HELLO), "`hello, ` at size 0, where the prefix digest is 0"),
    Line(
        "client",
        4,
        m.Append(_NAME, len(_HELLO), prefix_digest(_HELLO), _WORLD),
        "`world` after it, without waiting: expected size and prefix digest are those with `hello, `",
    ),
    Line(
        "server",
        0,
        m.DurabilityAck(_NAME, len(_BOTH), len(_BOTH)),
        "all 12 bytes are on stable storage. Others with lower sizes may precede it",
    ),
    Line("client", 5, m.Stat(_NAME, len(_HELLO)), "with the prefix digest at 7"),
    Line(
        "server",
        5,
        m.StatResult(INFO, len(_HELLO), prefix_digest(_HELLO)),
        "the digest of `hello, `; the entry has that of the whole object",
    ),
    Line("client", 6, m.List("gr", "", 10), "at most 10 objects whose name begins with `gr`"),
    Line("server", 6, m.Listing((INFO,)), "one object; no others follow"),
    Line("client", 7, m.Get(_NAME, len(_HELLO), 100), "at most 100 bytes from 7 on, without waiting"),
    Line("server", 7, m.Data(_NAME, len(_HELLO), len(_BOTH), _WORLD), "all remaining bytes; 12 are synced"),
    Line(
        "client",
        8,
        m.Append(_NAME, len(_HELLO), prefix_digest(_HELLO), b"again"),
        "at size 7 again, as after a lost answer",
    ),
    Line("server", 8, _refusal(), "SIZE_MISMATCH, `actual` 12. The text is for people and may differ"),
    Line("client", 9, m.Delete(_NAME), "removes the object"),
    Line("server", 9, m.Deleted(_NAME), "the object is gone, durably"),
    Line("client", 10, m.Quit(), ""),
    Line("server", 10, m.Bye(), "then the connection ends"),
]


def session_text() -> str:
    """As protocol.md shows it: header, then meta field by field, then payload, each on a line of its own."""
    blocks = []
    for line in SESSION:
        opcode = m.Opcode(m.encode(line.message).opcode).name
        number = f", request {line.request_id}" if line.request_id else ""
        says = f": {line.says}" if line.says else ""
        lines = [f"{line.sender}, **{opcode}**{number}{says}", ""]
        lines += [f"    {part}" for part in _spaced(line) if part]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _spaced(line: Line) -> list[str]:
    frame = encode_frame(m.encode(line.message, line.request_id))
    meta_bytes, payload_bytes = struct.unpack_from(">II", frame, 16)
    assert len(frame) == 32 + meta_bytes + payload_bytes
    meta, payload = frame[32 : 32 + meta_bytes], frame[32 + meta_bytes :]
    row = m.TABLE[m.Opcode(m.encode(line.message).opcode)]
    return [
        _checkpoint(frame[:32], [2, 1, 1, 2, 2, 8, 4, 4, 8]),
        *_lines(_checkpoint(meta, _widths(row, meta))),
        *_lines(_checkpoint(payload, _entry_widths(payload) if row.entries else [len(payload)])),
    ]


def _checkpoint(data: bytes, widths: list[int]) -> str:
    """In hex, a space between fields of these widths."""
    parts, start = [], 0
    for width in widths:
        parts.append(data[start : start + width].hex())
        start += width
    assert start == len(data), (widths, data)
    return " ".join(part for part in parts if part)


def _lines(text: str) -> list[str]:
    """Not wider than a page."""
    lines = [""]
    for word in text.split(" "):
        for start in range(0, max(1, len(word)), 96):
            part = word[start : start + 96]
            if len(lines[-1]) + 1 + len(part) > 100:
                lines.append("")
            lines[-1] = f"{lines[-1]} {part}".strip()
    return lines


def _widths(row: m.MessageLayout, meta: bytes) -> list[int]:
    widths = [struct.calcsize(f">{code}") for _, code in row.fixed]
    for _, kind in row.variable:
        start = sum(widths)
        count_bytes = 1 if kind == "name" else 2
        widths += [count_bytes, int.from_bytes(meta[start : start + count_bytes], "big")]
    return widths


def _entry_widths(payload: bytes) -> list[int]:
    widths = [4]
    while sum(widths) < len(payload):
        widths += [1, payload[sum(widths)], 8, 8, 8, 1]
    return widths
