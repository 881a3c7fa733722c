"""The tables of protocol.md and its parts, drawn from the code: `python -m tests.support.protocol_tables`
writes them into the pages.

Each stands between `<!-- table: NAME -->` and `<!-- end -->`, in any of the pages. A test demands that pages
and code agree; to change a format, change the code, run this, and review the difference.
"""

import logging
import re
from pathlib import Path

from dos_client.core import claim, replica
from dos_protocol import messages as m
from dos_protocol.digests import digest64, prefix_digest
from dos_protocol.errors import CLOSING, VERDICTS, ErrorCode
from dos_protocol.frames import encode_frame
from dos_protocol.messages import diagram
from dos_protocol.sealed import KINDS
from dos_protocol.store_record import STORE_RECORD, Member, StoreRecord, encode_store_record
from dos_server.core.files.extent import ExtentHeader, encode_header, object_seed
from dos_server.core.files.log_replay import LIFE
from dos_server.core.files.records import CLAIM, ClaimRecord, ObjectMark, encode_claim, encode_mark
from dos_server.core.requests.stamps import STAMPS_LAYOUT, WITNESSED_LAYOUT
from dos_server.core.requests.version0 import diagram as version0_diagram
from tests.support.object_lives import answers_table
from tests.support.object_lives import diagram as object_diagram
from tests.support.worked_session import session_text

ROOT = Path(__file__).parent.parent.parent
WIRE = ROOT / "docs" / "protocol" / "wire.md"
SESSION = WIRE.with_name("worked-session.txt")
PAGES = (ROOT / "protocol.md", WIRE, SESSION, WIRE.with_name("store.md"), WIRE.with_name("journals.md"))
SEALED = (STORE_RECORD, STAMPS_LAYOUT, WITNESSED_LAYOUT, LIFE, CLAIM)
_PAYLOADS = {"": "none", "info": "one entry", "entries": "entries"}


def content(size: int) -> bytes:
    """The content of the digest vectors: byte i is 31 * i mod 251."""
    return bytes(i * 31 % 251 for i in range(size))


def messages_table() -> str:
    lines = ["| opcode | message | meta, in order | payload |", "|---|---|---|---|"]
    for opcode, row in sorted(m.TABLE.items()):
        fields = [f"{name} {KINDS[code]}" for name, code in row.fixed]
        fields += [f"{name} {kind}" for name, kind in row.variable]
        payload = "bytes" if row.payload else _PAYLOADS[row.entries]
        lines.append(f"| {opcode} | {opcode.name} | {', '.join(fields) or 'none'} | {payload} |")
    return "\n".join(lines)


def errors_table() -> str:
    lines = ["| code | name | who must act | session | `actual` | remedy |", "|---|---|---|---|---|---|"]
    for code in ErrorCode:
        verdict = VERDICTS[code]
        ends = "closed" if code in CLOSING else "usable"
        who, number = verdict.blame.name.lower(), verdict.actual or "0"
        lines.append(f"| {code} | {code.name} | {who} | {ends} | {number} | {verdict.remedy} |")
    return "\n".join(lines)


def _hex(data: bytes) -> str:
    text = data.hex()
    return "\n".join(f"    {text[start : start + 96]}" for start in range(0, len(text), 96))


def frame_vectors() -> str:
    append = encode_frame(m.encode(m.Append("state.1", 65536, 0x1122334455667788, b"payload"), 42))
    quit_ = encode_frame(m.encode(m.Quit(), 1))
    return (
        "QUIT with request id 1:\n\n"
        f"{_hex(quit_)}\n\n"
        'APPEND with request id 42, name "state.1", expected size 65536, prefix digest 1122334455667788, '
        'payload "payload":\n\n'
        f"{_hex(append)}"
    )


def digest_vectors() -> str:
    lines = ["| bytes of content | prefix digest |", "|---|---|"]
    sizes = (0, 1, 100, 65_536, 65_537, 3 * 65_536)
    lines += [f"| {size} | `{prefix_digest(content(size)):016x}` |" for size in sizes]
    return "\n".join(lines)


def store_record_vector() -> str:
    members = (
        Member(b"\x11" * 16, "10.0.0.1:9999"),
        Member(b"\x22" * 16, "10.0.0.2:9999"),
        Member(b"\x33" * 16, "10.0.0.3:9999", "joining"),
    )
    return _hex(encode_store_record(StoreRecord(bytes(range(16)), 1, 2, members)))


def extent_vector() -> str:
    header = ExtentHeader(5, 10, 3, 7, digest64(b"hello"), 0, 0x01020304)
    return _hex(encode_header(header, object_seed("dir", "obj")) + b"hello")


def small_record_vectors() -> str:
    mark = encode_mark(ObjectMark("obj", 15, root=0x01020304))
    return (
        "Claim of epoch 7 by writer 000102..0f:\n\n"
        f"{_hex(encode_claim(ClaimRecord(7, bytes(range(16)))))}\n\n"
        f'Mark of "obj" at 15, root 01020304: bytes 0 to 2 `{mark[:3].hex()}`, '
        f"128 to 135 `{mark[128:136].hex()}`, "
        f"137 to 140 `{mark[137:141].hex()}`, 248 to 255 `{mark[248:].hex()}`, the others zero."
    )


def sealed_table() -> str:
    lines = ["| record | bytes, in order |", "|---|---|"]
    return "\n".join([*lines, *(f"| {one.what} | {one.as_text()} |" for one in SEALED)])


def mermaid(text: str) -> str:
    return f"```mermaid\n{text}\n```"


TABLES = {
    "messages": messages_table,
    "errors": errors_table,
    "frame vectors": frame_vectors,
    "digest vectors": digest_vectors,
    "store record vector": store_record_vector,
    "extent vector": extent_vector,
    "small record vectors": small_record_vectors,
    "sealed records": sealed_table,
    "session diagram": lambda: mermaid(diagram()),
    "version 0 diagram": lambda: mermaid(version0_diagram()),
    "claim diagram": lambda: mermaid(claim.diagram()),
    "replica diagram": lambda: mermaid(replica.diagram()),
    "worked session": session_text,
    "object diagram": object_diagram,
    "object answers": answers_table,
}


def with_tables(text: str) -> str:
    """The text with every table as the code says it. Raises KeyError for an unknown table."""

    def draw(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n\n{TABLES[match[1]]()}\n\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w ]+) -->.*?<!-- end -->", draw, text, flags=re.DOTALL)


if __name__ == "__main__":
    logging.disable()  # some tables are answers of a server that has trouble
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
