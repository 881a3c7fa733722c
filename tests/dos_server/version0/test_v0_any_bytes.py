"""Any bytes of a peer of version 0, at the inlet and the core: nothing crashes, cuts make no difference."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from dos_protocol.names import is_name
from dos_server.core.requests import version0_wire as wire
from tests.dos_server.version0.frames import framed
from tests.support.core_harness import Harness


class Peer:
    """What a connection does with bytes of version 0, without a socket: see `Connection._feed_version0`."""

    def __init__(self, server: Harness) -> None:
        self.server = server
        self.session = server.connect0()
        self.inlet = wire.Inlet(1 << 16)
        self.refused = False

    def receive(self, data: bytes) -> None:
        while data and not self.refused and self.session not in self.server.closed:
            room = len(self.inlet.writable())
            self.inlet.receive(data[:room])
            data = data[room:]
            self._feed()

    def _feed(self) -> None:
        core = self.server.core
        while self.session not in self.server.closed:
            if not core.may_read(self.session):
                self.server.settle()
            if core.is_streaming(self.session):
                if not self.inlet.buffered:
                    return
                self.server.stream(self.session, bytes(self.inlet.take()))
                continue
            try:
                body = self.inlet.next_request()
            except wire.RequestTooLongError:
                self.refused = True
                return
            if body is None:
                return
            self.server.request(self.session, body)

    def finish(self) -> bytes:
        """The peer sends no more; everything it was sent."""
        if self.session not in self.server.closed and not self.refused:
            self.server.half_close(self.session)
        self.server.settle()
        return bytes(self.server.bytes_heard[self.session])


CONVERSATION = (
    framed(b"udir", b"l", b"?", b"sf", b"df", b"ag\t0", b"uother", b"gg\t0\t0") + bytes(range(256)) * 300
)


@given(cuts=st.lists(st.integers(0, len(CONVERSATION)), max_size=12))
@settings(max_examples=60)
def test_it_makes_no_difference_where_the_bytes_are_cut(cuts: list[int]) -> None:
    whole = Peer(Harness())
    whole.receive(CONVERSATION)
    expected = whole.finish()
    server = Harness()
    peer = Peer(server)
    edges = [0, *sorted(cuts), len(CONVERSATION)]
    for start, end in itertools.pairwise(edges):
        peer.receive(CONVERSATION[start:end])
    assert peer.finish() == expected
    content = CONVERSATION.partition(b"ag\t0")[2]
    size = len(content)
    assert server.ask0(server.connect0("dir"), "gg\t0\t0") == content
    assert expected.endswith(framed(b"%d\t%d" % (size, size)))


words = st.sampled_from(
    [b"u", b"a", b"l", b"g", b"d", b"s", b"\t", b"0", b"f", b"dir", b"..", b"/", b"\0", b"-1"]
)
bodies = st.one_of(st.binary(max_size=20), st.lists(words, max_size=8).map(b"".join))
chunks = st.one_of(bodies.map(framed), st.binary(max_size=40))


@given(first=bodies, data=st.lists(chunks, max_size=15))
@settings(max_examples=150)
def test_no_bytes_crash_the_server_or_write_where_they_must_not(first: bytes, data: list[bytes]) -> None:
    # EVIDENCE-OF: P-8
    server = Harness()
    peer = Peer(server)
    peer.receive(framed(b"udir", first))
    for chunk in data:
        peer.receive(chunk)
    peer.finish()
    folders = server.disk.names("d") or []
    assert all(is_name(name) for name in folders)
    for folder in folders:
        for name in server.disk.names(f"d/{folder}") or []:
            assert is_name(name) or name == ".marks"
    other = server.connect0("dir")
    assert server.ask0(other, "l") is not None


@given(body=st.binary(min_size=1, max_size=255))
def test_a_request_is_parsed_or_what_is_wrong_is_said_in_print(body: bytes) -> None:
    request = wire.parse(body)
    if isinstance(request, wire.V0InvalidRequest):
        assert request.text.isascii()
        assert request.text.isprintable()
        return
    for field in request:
        assert is_name(field) if isinstance(field, str) else -(2**63) < field < 2**63


def test_requests_are_what_the_table_says() -> None:
    assert wire.parse(b"ua.b") == wire.V0Use("a.b")
    assert wire.parse(b"af\t0") == wire.V0Append("f", 0)
    assert wire.parse(b"af\t9223372036854775807") == wire.V0Append("f", 2**63 - 1)
    assert wire.parse(b"l") == wire.V0List()
    assert wire.parse(b"gf\t-9223372036854775807\t12") == wire.V0Get("f", -(2**63) + 1, 12)
    assert wire.parse(b"df") == wire.V0Delete("f")
    assert wire.parse(b"sf") == wire.V0Sync("f")


def test_the_memory_of_an_inlet_grows_only_when_it_is_filled_and_is_given_back() -> None:
    # EVIDENCE-OF: P-9
    inlet = wire.Inlet(1 << 18)
    inlet.receive(bytes(20_000))
    assert inlet.take() == bytes(20_000)
    inlet.shrink()
    inlet.receive(bytes(100))
    inlet.take()
    inlet.writable()
    assert inlet.capacity == 1 << 14
    inlet.receive(bytes(1 << 14))
    inlet.take()
    inlet.writable()
    assert inlet.capacity == 1 << 18
    inlet.shrink()
    assert inlet.capacity == 1 << 14
    inlet.receive(b"\0\0\0\x02xy\0\0")
    assert inlet.next_request() == b"xy"
    inlet.shrink()
    assert inlet.next_request() is None
    inlet.receive(b"\0\x01z")
    assert inlet.next_request() == b"z"
