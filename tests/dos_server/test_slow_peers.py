"""Peers that do not take their answers, or take their time: what they cost; and nobody waits for them."""

import contextlib
import gc
import socket
import weakref
from pathlib import Path

import pytest

from dos_protocol import messages as m
from dos_protocol.errors import RemoteProtocolError
from dos_protocol.frames import Frame, FrameDecoder, encode_frame, frame_head
from dos_protocol.limits import payload_bytes_max
from dos_server.buffers import BufferAccount
from dos_server.inflow import Inflow
from dos_server.limits import buffers_total_bytes_max
from tests.support.servers import ServerProcess
from tests.support.wire import Wire

pytestmark = pytest.mark.process


def test_a_frame_that_was_only_announced_keeps_what_it_was_granted_and_no_other_gets_it() -> None:
    # EVIDENCE-OF: P-9
    account = BufferAccount()
    promise = frame_head(Frame(3, 7, b"", bytes(payload_bytes_max)))[:32]
    granted = 0
    for _ in range(100):
        one = Inflow(account)
        one.writable()[:32] = promise
        one.wrote(32)
        assert one.decoder.next_frame() is None
        granted += one.find_room()
        one.give_back()
    assert granted == buffers_total_bytes_max // payload_bytes_max
    assert account.held <= buffers_total_bytes_max


@pytest.mark.parametrize("stranger", [b"x" * 64, b"\xd0\x5e\x01\x09" + bytes(28), b"GET"])
def test_a_decoder_that_failed_is_gone_with_its_connection(stranger: bytes) -> None:
    # EVIDENCE-OF: P-9
    decoder = FrameDecoder()
    decoder.receive(stranger)
    gc.disable()
    try:
        with contextlib.suppress(RemoteProtocolError):
            decoder.next_frame()
        known = weakref.ref(decoder)
        del decoder
        assert known() is None, "kept by its own error until the garbage collector comes by"
    finally:
        gc.enable()


def fill(server: ServerProcess) -> None:
    with Wire(server.address) as wire:
        wire.claim("dir")
        wire.append("large", b"", bytes(payload_bytes_max))
        wire.wait_synced("large", payload_bytes_max)


def asks_and_never_reads(server: ServerProcess, requests: int, *, behind: bytes = b"") -> Wire:
    """A session that asked for so many MiB, as far as the sockets take the questions."""
    wire = Wire(server.address)
    wire.ask(m.ChangeDirectory("dir"))
    wire.sock.setblocking(False)
    frames = b"".join(
        encode_frame(m.encode(m.Get("large", 0, payload_bytes_max), 100 + number))
        for number in range(requests)
    )
    with contextlib.suppress(BlockingIOError):
        wire.sock.send(frames + behind)
    return wire


@pytest.mark.parametrize("ending", ["garbage", "QUIT and more", "reset"])
def test_a_peer_that_ends_with_answers_untaken_holds_up_nobody(tmp_path: Path, ending: str) -> None:
    # EVIDENCE-OF: P-9
    behind = {"garbage": b"x" * 64, "QUIT and more": encode_frame(m.encode(m.Quit(), 9)) + b"x" * 64}
    with ServerProcess(tmp_path / "server") as server:
        fill(server)
        with asks_and_never_reads(server, 40, behind=behind.get(ending, b"")) as deaf:
            if ending == "reset":
                deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                deaf.close()
            for _ in range(20):
                with Wire(server.address) as other:
                    other.ask(m.ChangeDirectory("dir"))
                    assert other.ask(m.Get("large", 0, 100)).payload == bytes(100)
        assert server.stop() == 0
