"""docs/protocol/worked-session.txt, replayed against a real server from the bytes in the file.

Nothing of ours reads or builds a frame here: what is compared is the file and the server.
"""

import re
import socket
import struct
from pathlib import Path
from typing import NamedTuple

import pytest
import xxhash

from tests.support.servers import NO_LOG, ServerProcess

pytestmark = pytest.mark.process

SESSION = Path(__file__).parent.parent.parent / "docs" / "protocol" / "worked-session.txt"
WELCOME, DURABILITY_ACK = 129, 131
_BLOCK = re.compile(r"^(client|server), \*\*(\w+)\*\*[^\n]*\n\n((?:    [0-9a-f ]+\n)+)", re.MULTILINE)


class DocumentedFrame(NamedTuple):
    """A frame as the file shows it."""

    sender: str
    name: str
    frame: bytes


def documented_session() -> list[DocumentedFrame]:
    text = SESSION.read_text(encoding="utf-8")
    section = text.split("<!-- table: worked session -->")[1].split("<!-- end -->")[0] + "\n"
    found = [
        DocumentedFrame(sender, name, bytes.fromhex(digits))
        for sender, name, digits in _BLOCK.findall(section)
    ]
    assert len(found) == section.count("**") // 2, "every frame of the section is read"
    return found


def receive(sock: socket.socket) -> bytes:
    """One whole frame; empty at the end of the connection."""
    head = receive_exactly(sock, 32)
    if not head:
        return b""
    meta_bytes, payload_bytes = struct.unpack_from(">II", head, 16)
    return head + receive_exactly(sock, meta_bytes + payload_bytes)


def receive_exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            assert not data, "the connection ended in a frame"
            return b""
        data += more
    return data


def as_documented(frame: bytes, documented: bytes, server_id: str) -> bytes:
    """The frame, with what a server chooses for itself put as the file has it: its identity in WELCOME, and
    so the digest."""
    assert frame[24:32] == digest(frame), "the frame's own digest"
    if frame[3] != WELCOME:
        return frame
    assert frame[33:49].hex() == server_id
    frame = frame[:33] + documented[33:49] + frame[49:]
    return frame[:24] + digest(frame) + frame[32:]


def digest(frame: bytes) -> bytes:
    return xxhash.xxh3_64_digest(frame[:24] + frame[32:])


@pytest.mark.parametrize("options", [NO_LOG, ("--group-log", "1")], ids=["each object synced", "group log"])
def test_the_worked_session_is_what_a_server_answers(tmp_path: Path, options: tuple[str, ...]) -> None:
    # EVIDENCE-OF: P-3
    with (
        ServerProcess(tmp_path / "data", options=options) as one_server,
        socket.create_connection(one_server.address, timeout=30) as sock,
    ):
        for sender, name, documented in documented_session():
            assert documented[24:32] == digest(documented), f"the digest of {name} in the file"
            if sender == "client":
                sock.sendall(documented)
                continue
            frame = receive(sock)
            while frame and frame[3] == DURABILITY_ACK and frame != documented:
                received, synced = struct.unpack_from(">QQ", frame, 32)
                assert synced <= received <= 12, "one with lower sizes"
                frame = receive(sock)
            assert as_documented(frame, documented, one_server.server_id).hex() == documented.hex(), name
        assert receive(sock) == b"", "the server ended the connection"


def test_the_worked_session_shows_every_request_of_a_usual_client() -> None:
    requested = {name for sender, name, _ in documented_session() if sender == "client"}
    usual = {"HELLO", "CHANGE_DIRECTORY", "APPEND", "STAT", "LIST", "GET", "DELETE", "QUIT"}
    assert requested == usual
