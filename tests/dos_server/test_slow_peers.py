"""Peers that do not take their answers, or take their time: what they cost; and nobody waits for them."""

import contextlib
import gc
import resource
import socket
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dos_protocol import messages as m
from dos_protocol.errors import RemoteProtocolError
from dos_protocol.frames import Frame, FrameDecoder, encode_frame
from dos_protocol.limits import payload_bytes_max
from dos_server import embedded
from dos_server.buffers import BufferAccount, Inflow, OutgoingAccount
from dos_server.core.requests import version0_wire as wire0
from dos_server.limits import buffers_needed_bytes_max, descriptors_min
from tests.support.servers import ServerProcess, one_server

__all__ = ["one_server"]
from tests.support.wire import Wire

pytestmark = pytest.mark.process


def test_a_frame_that_was_only_announced_holds_nothing_and_what_was_granted_no_other_gets() -> None:
    # EVIDENCE-OF: P-9
    account = BufferAccount()
    begun = encode_frame(Frame(3, 7, b"", bytes(payload_bytes_max)))
    granted = 0
    for _ in range(100):
        one = Inflow(account, lambda: None)
        one.welcome()
        one.writable()[:32] = begun[:32]
        one.wrote(32)
        assert one.decoder.next_frame() is None
        held = account.held
        assert one.make_room()
        assert account.held == held, "of a frame that was only announced"
        rest = one.writable()
        rest[:] = begun[32 : 32 + len(rest)]
        one.wrote(len(rest))
        assert one.decoder.next_frame() is None
        granted += one.make_room() and one.lacks_bytes == 0
        one.release()
    assert granted == buffers_needed_bytes_max // payload_bytes_max
    assert account.held <= buffers_needed_bytes_max


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


HUGE = {
    "a payload of 4 GiB": b"\xd0\x5e\x01\x03" + bytes(12) + b"\xff" * 8 + bytes(8),
    "one more than allowed": b"\xd0\x5e\x01\x03"
    + bytes(12)
    + (65_536).to_bytes(4)
    + (1_048_577).to_bytes(4)
    + bytes(8),
    "version 0, 16 MiB": b"\0\xff\xff\xff" + b"a" * 60,
}


@pytest.mark.parametrize("what", HUGE)
def test_a_huge_length_costs_no_memory_and_is_refused_at_once(one_server: ServerProcess, what: str) -> None:
    # EVIDENCE-OF: P-9
    def send() -> None:
        with Wire(one_server.address, greet=False) as wire:
            wire.sock.sendall(HUGE[what])
            assert wire.sock.recv(64)

    for _ in range(20):
        send()
    process = psutil.Process(one_server.pid)
    before = process.memory_info().rss
    for _ in range(100):
        send()
    assert process.memory_info().rss - before < 1 << 20


def test_a_reader_that_never_reads_a_gigabyte_costs_a_bounded_part_of_it(one_server: ServerProcess) -> None:
    # EVIDENCE-OF: P-9
    fill(one_server)
    process = psutil.Process(one_server.pid)
    before = process.memory_info().rss
    with asks_and_never_reads(one_server, 1_024), Wire(one_server.address) as other:
        other.ask(m.ChangeDirectory("dir"))
        for _ in range(200):
            assert other.ask(m.Get("large", 0, 100)).payload == bytes(100)
        assert process.memory_info().rss - before < 32 << 20


FEW_FILES = ("sh", "-c", f'ulimit -n {descriptors_min}; exec "$@"', "sh")
CROWD = descriptors_min + 76


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process may have a connection of each client of a crowd."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * CROWD)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_with_the_fewest_descriptors_and_more_clients_nothing_acknowledged_is_lost_and_it_recovers(
    tmp_path: Path,
) -> None:
    # EVIDENCE-OF: P-1, P-9, P-10
    with ServerProcess(tmp_path / "server", under=FEW_FILES) as server:
        synced: set[str] = set()
        with Wire(server.address) as writer:
            writer.claim("dir")
            with contextlib.ExitStack() as crowd:
                for _ in range(CROWD):
                    one = crowd.enter_context(socket.create_connection(server.address, timeout=60))
                    with contextlib.suppress(ConnectionError):  # turned away
                        one.sendall(encode_frame(m.encode(m.Hello(), 1)))
                for number in range(CROWD):
                    writer.append(f"o{number}", b"", b"x" * 100)
                refused = 0
                while len(synced) + refused < CROWD:
                    message = writer.receive()
                    refused += isinstance(message, m.Error)
                    if isinstance(message, m.DurabilityAck) and message.synced == 100:
                        synced.add(message.name)
        assert synced
        list_all(server, synced)
        with soon(server) as after:
            after.claim("elsewhere")
            after.append("after", b"", b"recovered")
            after.wait_synced("after", 9)
        server.restart()
        list_all(server, synced)


def soon(server: ServerProcess) -> Wire:
    """A session, once those that went have left room: until then a client is turned away, and tries again."""
    deadline = time.monotonic() + 60
    while True:
        wire = Wire(server.address, greet=False)
        try:
            wire.ask(m.Hello(client="again"))
        except (ConnectionError, EOFError):
            wire.close()
            assert time.monotonic() < deadline, "it did not recover"
        else:
            return wire


def list_all(server: ServerProcess, names: set[str]) -> None:
    with soon(server) as reader:
        reader.ask(m.ChangeDirectory("dir"))
        for name in names:
            assert reader.ask(m.Get(name, 0, 200)).payload == b"x" * 100, name


def test_opening_and_listing_wait_while_too_much_stands_before_peers_and_continue_when_they_are_cut_off(
    tmp_path: Path,
) -> None:
    # EVIDENCE-OF: P-9, P-10
    with embedded.start(tmp_path / "server") as server:
        with Wire(server.address) as wire:
            wire.claim("dir")
            for number in range(300):
                wire.append("x" * 120 + f"{number:03}", b"", b"")
            wire.wait_synced("x" * 120 + "299", 0)
        with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as crowd:
            patch.setattr("dos_server.buffers.outgoing_full_bytes", 1 << 20)
            patch.setattr("dos_server.buffers.full_send_seconds_max", 0.5)
            opened = encode_frame(m.encode(m.ChangeDirectory("dir"), 7))
            for _ in range(50):
                deaf = crowd.enter_context(Wire(server.address))
                deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                deaf.sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    deaf.sock.send(opened * 200)
            with Wire(server.address) as honest:
                assert honest.ask(m.Ping(b"?")).payload == b"?"
                assert len(honest.ask(m.ChangeDirectory("dir")).entries) == 300
                assert len(honest.ask(m.List("", "", 6_000)).entries) == 300


class Recorded(OutgoingAccount):
    """Knows the most that ever stood before all peers."""

    most = 0

    @property
    def held(self) -> int:
        return self._held

    @held.setter
    def held(self, count: int) -> None:
        self._held = count
        Recorded.most = max(Recorded.most, count)


def test_listing_in_version_0_waits_like_listing_while_too_much_stands_before_peers(tmp_path: Path) -> None:
    # EVIDENCE-OF: P-9, P-10
    bound, names, Recorded.most = 1 << 20, 300, 0
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as crowd:
        patch.setattr("dos_server.server.OutgoingAccount", Recorded)
        patch.setattr("dos_server.buffers.outgoing_full_bytes", bound)
        patch.setattr("dos_server.buffers.full_send_seconds_max", 0.5)
        server = crowd.enter_context(embedded.start(tmp_path / "server"))
        with Wire(server.address) as wire:
            wire.claim("dir")
            for number in range(names):
                wire.append("x" * 120 + f"{number:03}", b"", b"")
            wire.wait_synced("x" * 120 + "299", 0)
        use, listing = wire0.reply(b"udir"), wire0.reply(b"l")
        for _ in range(50):
            deaf = crowd.enter_context(socket.socket())
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            deaf.connect(server.address)
            deaf.sendall(use + listing * 200)
        answer = (
            100 << 10
        )  # more than one has; where the kernel takes a part at once, the bound is just not met
        deadline = time.monotonic() + 60
        while Recorded.most <= bound - answer and time.monotonic() < deadline:
            time.sleep(0.01)  # the server, in its own thread, answers the deaf ones until the bound
        with socket.create_connection(server.address, timeout=60) as honest, honest.makefile("rb") as answers:
            honest.sendall(use + listing)
            assert answers.read(int.from_bytes(answers.read(4), "big")) == b"ok"
            assert answers.read(int.from_bytes(answers.read(4), "big")).count(b"\n") == names
    assert bound - answer < Recorded.most < bound + answer, "one answer more, at most"
