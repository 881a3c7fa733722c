"""Clients that go in the middle of an append, at every byte of it: the next one finds one consistent size."""

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.frames import encode_frame
from dos_server import embedded
from tests.support.core_harness import Harness
from tests.support.wire import Wire

FIRST, SECOND = b"a first append", b"and one behind it"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[embedded.EmbeddedServer]:
    with embedded.start(tmp_path / "data") as server:
        yield server


def append(content: bytes, payload: bytes, request_id: int) -> bytes:
    return encode_frame(m.encode(m.Append("o", len(content), prefix_digest(content), payload), request_id))


def test_a_client_that_goes_at_any_byte_leaves_whole_appends_or_none(server: embedded.EmbeddedServer) -> None:
    # EVIDENCE-OF: P-1, P-3, P-8
    content, epoch = b"", 0
    sizes = set()
    bytes_of_both = len(append(b"", FIRST, 9)) + len(append(b"", SECOND, 10))
    for cut in range(bytes_of_both + 1):
        epoch += 1
        with Wire(server.address) as wire:
            wire.claim("dir", epoch)
            both = append(content, FIRST, 9) + append(content + FIRST, SECOND, 10)
            wire.sock.sendall(both[:cut])
            if cut % 2:  # by RST, else by FIN
                wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        epoch += 1
        with Wire(server.address) as wire:
            opened = wire.claim("dir", epoch)
            size, digest = next(((one.synced, one.digest) for one in opened.entries), (0, 0))
            possible = [content, content + FIRST, content + FIRST + SECOND]
            (content,) = [one for one in possible if (len(one), prefix_digest(one)) == (size, digest)]
            sizes.add(possible.index(content))
            wire.append("o", content, b".")
            wire.wait_synced("o", size + 1)
            content += b"."
            assert wire.ask(m.Get("o", 0, 1 << 20)).payload == content
    assert sizes == {0, 1, 2}


@pytest.mark.parametrize("sync_ends", ["before the new session", "after its claim is asked for"])
@pytest.mark.parametrize("step", range(5))
def test_a_session_that_ends_at_any_step_of_an_append_leaves_a_size_to_continue_from(
    step: int, sync_ends: str
) -> None:
    # EVIDENCE-OF: P-1, P-2
    server = Harness()
    session = server.connect()
    server.ask(session, m.ChangeDirectory("dir", claim=True, epoch=1, writer_id=b"w" * 16))
    steps = [
        lambda: server.send(session, m.Append("o", 0, 0, FIRST), ends_batch=False),
        lambda: server.send(session, m.Append("o", len(FIRST), prefix_digest(FIRST), SECOND)),
        lambda: server.finish(),
        lambda: server.settle(),
    ]
    for one in steps[:step]:
        one()
    server.end(session)
    if sync_ends == "before the new session":
        server.settle()
    session = server.connect()
    request = server.send(session, m.ChangeDirectory("dir", claim=True, epoch=2, writer_id=b"x" * 16))
    server.settle()
    opened = server.answer(session, request)
    content = FIRST + SECOND if step >= 2 else FIRST if step == 1 else b""
    listed = {info.name: (info.received, info.synced, info.digest) for info in opened.entries}
    if content:
        assert listed == {"o": (len(content), len(content), prefix_digest(content))}
    server.ask(session, m.Append("o", len(content), prefix_digest(content), b"."))
    assert server.unasked(session, m.DurabilityAck)[-1].synced == len(content) + 1
    assert server.ask(session, m.Get("o", 0, 100)).payload == content + b"."
