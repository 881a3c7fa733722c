"""LIST in pages, and GET that follows an object, through sockets: each line of protocol.md about them."""

import random
import socket
from collections.abc import Iterator

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_server import embedded
from dos_server.limits import list_entries_max
from tests.dos_server.core_requests import code_of
from tests.support.core_harness import Harness
from tests.support.wire import Wire

CONTENT = random.Random(4).randbytes(300_000)


# LIST, and all of it once more through sockets


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.EmbeddedServer]:
    """With 2,500 objects in one directory, and some directories."""
    with embedded.start(tmp_path_factory.mktemp("requests") / "data") as running:
        with Wire(running.address) as wire:
            for directory in ("app.w0000", "app.w0001", "app", "zoo"):
                wire.claim(directory)
            wire.claim("full")
            for name in NAMES:
                wire.append(name, b"", name.encode())
            synced: set[str] = set()
            while len(synced) < len(NAMES):
                mark = wire.unasked.pop(0) if wire.unasked else wire.receive()
                assert isinstance(mark, m.DurabilityAck), mark
                if mark.synced:
                    synced.add(mark.name)
        yield running


NAMES = sorted(
    [f"a.{number:04}" for number in range(1_200)]
    + [f"B{number}" for number in range(1_297)]
    + ["a", "a.", "z" * 128]
)


def names_of(listing: m.Listing) -> list[str]:
    return [one.name for one in listing.entries]


def pages(wire: Wire, prefix: str, after: str, most: int) -> list[m.Listing]:
    """Until there are no others, each after the last name of the one before."""
    found: list[m.Listing] = [wire.ask(m.List(prefix, after, most))]
    while found[-1].more:
        found.append(wire.ask(m.List(prefix, names_of(found[-1])[-1], most)))
    return found


@pytest.fixture
def wire(server: embedded.EmbeddedServer) -> Iterator[Wire]:
    with Wire(server.address) as wire:
        wire.ask(m.ChangeDirectory("full"))
        yield wire


@pytest.mark.parametrize("most", [1_000, 999, 1_250, 2**32 - 1])
@pytest.mark.parametrize(("prefix", "after"), [("", ""), ("a.", ""), ("B1", "B11"), ("", "a.0599")])
def test_pages_give_every_name_once_in_byte_order(wire: Wire, prefix: str, after: str, most: int) -> None:
    found = pages(wire, prefix, after, most)
    wanted = [name for name in NAMES if name.startswith(prefix) and name > after]
    assert [name for page in found for name in names_of(page)] == wanted
    size = min(most, list_entries_max)
    assert all(len(page.entries) == size for page in found[:-1])
    assert len(found) == max(1, -(-len(wanted) // size))


def test_entries_of_a_page_tell_sizes_and_digests(wire: Wire) -> None:
    for one in wire.ask(m.List("a.00", "", 50)).entries:
        size, digest = len(one.name), prefix_digest(one.name.encode())
        assert one == m.ObjectInfo(one.name, size, size, digest)


def test_a_page_of_none_of_one_and_beyond_the_limit(wire: Wire) -> None:
    assert wire.ask(m.List("", "", 0)) == m.Listing((), more=True)
    assert wire.ask(m.List("no such", "", 0)) == m.Listing((), more=False)
    one = wire.ask(m.List("", "", 1))
    assert (names_of(one), one.more) == (NAMES[:1], True)
    for most in (list_entries_max, list_entries_max + 1, 2**32 - 1):
        every = wire.ask(m.List("", "", most))
        assert (names_of(every), every.more) == (NAMES[:list_entries_max], True)


def test_a_page_is_never_larger_than_the_limit() -> None:
    server = Harness()
    for number in range(list_entries_max + 1):
        server.core._tables.directory_names.add(f"d{number:05}")
    page = server.ask(server.connect(), m.List("", "", 2**32 - 1))
    assert (len(page.entries), page.more) == (list_entries_max, True)


@pytest.mark.parametrize(
    ("prefix", "after", "wanted"),
    [
        ("no such", "", []),
        ("a.", "b", []),
        ("", "z" * 128, []),
        ("", "\xff", []),
        ("z" * 128, "", ["z" * 128]),
        ("z" * 129, "", []),
        ("", "z" * 127, ["z" * 128]),
        ("a.0", "", [name for name in NAMES if name.startswith("a.0")]),
        ("a", "a.1198", ["a.1199"]),
        ("a.1199", "a.1199", []),
        ("a.1199", "a.1198x", ["a.1199"]),
        ("\xe9", "", []),
        ("0599", "", []),
        (".", "", []),
    ],
)
def test_prefixes_and_afters_at_their_ends(wire: Wire, prefix: str, after: str, wanted: list[str]) -> None:
    listing = wire.ask(m.List(prefix, after, list_entries_max))
    assert (names_of(listing), listing.more) == (wanted, False)


def test_before_a_directory_is_opened_directories_are_listed(server: embedded.EmbeddedServer) -> None:
    with Wire(server.address) as wire:
        every = wire.ask(m.List("", "", 10))
        assert names_of(every) == ["app", "app.w0000", "app.w0001", "full", "zoo"]
        assert every.entries[0] == m.ObjectInfo("app")
        assert [names_of(page) for page in pages(wire, "app", "", 2)] == [["app", "app.w0000"], ["app.w0001"]]
        wire.ask(m.ChangeDirectory("nowhere"))
        assert wire.ask(m.List()) == m.Listing((), more=False)
    with Wire(server.address) as wire:
        assert "nowhere" not in names_of(wire.ask(m.List())), "it was only looked at"


def test_a_follower_gets_every_byte_once_through_a_socket(server: embedded.EmbeddedServer) -> None:
    # EVIDENCE-OF: P-2
    with Wire(server.address) as writer, Wire(server.address) as reader:
        writer.claim("followed")
        reader.ask(m.ChangeDirectory("followed"))
        writer.append("o", b"", b"")
        writer.wait_synced("o", 0)
        done, got = b"", b""
        for size in (1, 65_536, 7, 100_000):
            waiting = reader.send(m.Get("o", len(got), 1 << 20, 60_000))
            payload = CONTENT[len(done) : len(done) + size]
            writer.append("o", done, payload)
            done += payload
            got += reader.answer(waiting).payload
            assert got == done
        last = reader.send(m.Get("o", len(got), 1 << 20, 60_000))
        reader.ask(m.Ping(b"it waits, and others are answered"))
        assert writer.ask(m.Delete("o")) == m.Deleted("o")
        assert code_of(reader.answer(last)) == ErrorCode.NOT_FOUND


def test_a_half_closed_follower_is_answered_through_a_socket(server: embedded.EmbeddedServer) -> None:
    with Wire(server.address) as reader:
        reader.ask(m.ChangeDirectory("full"))
        waiting = reader.send(m.Get("a", 1, 10, 60_000))
        reader.sock.shutdown(socket.SHUT_WR)
        assert reader.answer(waiting) == m.Data("a", 1, 1, b"")
        assert reader.ends()
