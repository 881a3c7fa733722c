"""GET that waits, LIST in pages, STAT with the digest of any prefix: each line of protocol.md about them."""

import errno
import random
import socket
from collections.abc import Iterator

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_protocol.limits import entries_max, get_wait_ms_max, payload_bytes_max
from dos_server import embedded
from tests.dos_server.test_mending import World
from tests.support.core_harness import Harness
from tests.support.wire import Wire

W1, W2 = b"1" * 16, b"2" * 16
CONTENT = random.Random(4).randbytes(300_000)


def claim(epoch: int = 1, writer: bytes = W1) -> m.ChangeDirectory:
    return m.ChangeDirectory("dir", claim=True, epoch=epoch, writer_id=writer)


def append(content: bytes, payload: bytes) -> m.Append:
    return m.Append("o", len(content), prefix_digest(content), payload)


def with_reader(content: bytes = b"hello") -> tuple[Harness, int, int]:
    """A server with an object, its writer's session, and a reader's."""
    server = Harness()
    writer, reader = server.connect(), server.connect()
    server.ask(writer, claim())
    server.ask(writer, append(b"", content))
    server.ask(reader, m.ChangeDirectory("dir"))
    return server, writer, reader


def code_of(answer: object) -> ErrorCode:
    assert isinstance(answer, m.Error), answer
    return ErrorCode(answer.code)


# GET


def test_a_get_that_waits_is_answered_by_the_first_bytes_that_are_durable() -> None:
    # EVIDENCE-OF: P-2
    server, writer, reader = with_reader()
    waits = [server.send(reader, m.Get("o", 5, size, 60_000)) for size in (3, 100)]
    server.send(writer, append(b"hello", b" world"))
    assert [server.answer(reader, one) for one in waits] == [None, None], "written, and not yet synced"
    server.settle()
    assert [server.answer(reader, one) for one in waits] == [
        m.Data("o", 5, 11, b" wo"),
        m.Data("o", 5, 11, b" world"),
    ]


def test_a_get_that_asks_for_no_bytes_or_below_the_end_does_not_wait() -> None:
    server, _, reader = with_reader()
    assert server.ask(reader, m.Get("o", 5, 0, 60_000)) == m.Data("o", 5, 5, b"")
    assert server.ask(reader, m.Get("o", 2, 0, 60_000)) == m.Data("o", 2, 5, b"")
    assert server.ask(reader, m.Get("o", 4, 100, 60_000)) == m.Data("o", 4, 5, b"o")
    assert code_of(server.ask(reader, m.Get("o", 6, 100, 60_000))) == ErrorCode.PAST_END
    assert code_of(server.ask(reader, m.Get("p", 0, 100, 60_000))) == ErrorCode.NOT_FOUND


@pytest.mark.parametrize(("asked_ms", "waited_s"), [(1, 0.001), (60_000, 60), (60_001, 60), (2**32 - 1, 60)])
def test_a_wait_ends_with_its_time_and_never_takes_longer_than_a_minute(
    asked_ms: int, waited_s: float
) -> None:
    server, _, reader = with_reader()
    assert get_wait_ms_max == 60_000
    waiting = server.send(reader, m.Get("o", 5, 100, asked_ms))
    server.tick(waited_s * 0.99)
    assert server.answer(reader, waiting) is None
    server.tick(waited_s * 0.02)
    assert server.answer(reader, waiting) == m.Data("o", 5, 5, b"")
    assert not server.core.wants_tick()


def test_a_sync_that_brings_no_bytes_does_not_begin_the_wait_anew() -> None:
    server = Harness()
    writer = server.connect()
    server.ask(writer, claim())
    server.send(writer, append(b"", b""))
    waiting = server.send(writer, m.Get("o", 0, 100, 1_000))
    server.tick(0.9)
    server.settle()
    assert server.answer(writer, waiting) is None
    server.tick(0.2)
    assert server.answer(writer, waiting) == m.Data("o", 0, 0, b"")


def test_a_wait_continues_through_a_claim_and_ends_with_the_new_writers_bytes() -> None:
    server, _, reader = with_reader()
    waiting = server.send(reader, m.Get("o", 5, 100, 60_000))
    taker = server.connect()
    server.ask(taker, claim(2, W2))
    assert server.answer(reader, waiting) is None
    server.ask(taker, append(b"hello", b"!"))
    assert server.answer(reader, waiting) == m.Data("o", 5, 6, b"!")


def test_the_wait_of_a_writer_continues_when_it_is_superseded() -> None:
    server, writer, _ = with_reader()
    waiting = server.send(writer, m.Get("o", 5, 100, 60_000))
    taker = server.connect()
    server.ask(taker, claim(2, W2))
    server.ask(taker, append(b"hello", b"!"))
    assert server.answer(writer, waiting) == m.Data("o", 5, 6, b"!")


@pytest.mark.parametrize("by_quit", [False, True])
def test_who_sends_no_more_gets_what_there_is_at_once(by_quit: bool) -> None:
    server, _, reader = with_reader()
    waiting = server.send(reader, m.Get("o", 5, 100, 60_000))
    if by_quit:
        bye = server.send(reader, m.Quit())
        assert server.heard[reader][-1] == (bye, m.Bye())
    else:
        server.half_close(reader)
    assert server.answer(reader, waiting) == m.Data("o", 5, 5, b"")
    assert reader in server.closed
    assert not server.core.wants_tick()


def test_a_wait_continues_when_its_session_looks_elsewhere() -> None:
    server, writer, reader = with_reader()
    waiting = server.send(reader, m.Get("o", 5, 100, 60_000))
    other = server.connect()
    server.ask(other, m.ChangeDirectory("elsewhere", claim=True, epoch=1, writer_id=W2))
    server.ask(other, append(b"", b"of another directory"))
    server.ask(reader, m.ChangeDirectory("elsewhere"))
    server.ask(writer, append(b"hello", b"!"))
    assert server.answer(reader, waiting) == m.Data("o", 5, 6, b"!")


def test_a_wait_ends_when_the_object_is_found_damaged_or_its_disk_fails() -> None:
    # EVIDENCE-OF: P-2
    server, writer, reader = with_reader()
    waiting = server.send(reader, m.Get("o", 5, 100, 60_000))
    server.disk.fail("sync", errno.EIO)
    server.ask(writer, append(b"hello", b"!"))
    assert code_of(server.answer(reader, waiting)) == ErrorCode.POISONED
    assert server.ask(reader, m.Get("o", 5, 100, 60_000)) == m.Data("o", 5, 5, b""), "nothing more will come"

    server, _, reader = with_reader()
    waiting = server.send(reader, m.Get("o", 5, 100, 60_000))
    server.disk.write(server.disk.open("d/dir/o", create=False), 66, [b"?"])
    assert code_of(server.ask(reader, m.Get("o", 0, 100))) == ErrorCode.CORRUPT
    answer = server.answer(reader, waiting)
    assert (code_of(answer), answer.actual) == (ErrorCode.CORRUPT, 0)
    assert code_of(server.ask(reader, m.Get("o", 5, 100, 60_000))) == ErrorCode.CORRUPT


def test_a_wait_is_answered_from_the_new_copy_of_a_repaired_object() -> None:
    world = World(b"short")
    reader = world.reader()
    waiting = world.send(reader, m.Get("o", 5, 100, 60_000))
    world.ask(
        world.reader(),
        m.RepairChunk(
            "o", 0, 12, prefix_digest(b"short longer"), 5, prefix_digest(b"short"), False, b"short longer"
        ),
    )
    assert world.answer(reader, waiting) == m.Data("o", 5, 12, b" longer")


def test_a_get_gives_no_more_than_one_payload_takes() -> None:
    content = CONTENT * 5
    server = Harness()
    session = server.connect()
    server.ask(session, claim())
    for start in range(0, len(content), 500_000):
        server.ask(session, append(content[:start], content[start : start + 500_000]))
    assert len(content) > payload_bytes_max
    for offset, most in ((0, 2**32 - 1), (7, payload_bytes_max), (len(content) - 3, 2**32 - 1), (65_535, 2)):
        answer = server.ask(session, m.Get("o", offset, most))
        assert 0 < len(answer.payload) <= min(most, payload_bytes_max)
        assert content[offset:].startswith(bytes(answer.payload))


def test_damage_that_is_found_while_a_sync_runs_is_remembered_and_nothing_above_it_is_acknowledged() -> None:
    # EVIDENCE-OF: P-2
    server, writer, reader = with_reader(CONTENT[:100_000])
    for start in (100_000, 200_000):
        server.ask(writer, append(CONTENT[:start], CONTENT[start : start + 100_000]))
    told = server.unasked(writer, m.DurabilityAck)
    appending = server.send(writer, append(CONTENT, b"more"))
    server.disk.write(server.disk.open("d/dir/o", create=False), 64 + 100_000 + 70, [b"?"])
    reading = server.send(reader, m.Get("o", 100_000, 100))
    server.finish(1)  # the read ends while the sync still runs
    assert code_of(server.answer(reader, reading)) == ErrorCode.CORRUPT
    server.tick(1)
    server.settle()
    answer = server.answer(writer, appending)
    assert (code_of(answer), answer.actual) == (ErrorCode.CORRUPT, 100_000)
    assert server.unasked(writer, m.DurabilityAck) == told, "a reported size covers everything below it"
    server.disk.kill()
    server.start()
    again = server.connect()
    (info,) = server.ask(again, m.ChangeDirectory("dir")).entries
    assert (info.synced, info.corrupt) == (0, True)


# STAT


def test_stat_gives_the_digest_of_every_prefix_up_to_the_synced_size() -> None:
    server, writer, reader = with_reader(b"")
    done = 0
    for size in (1, 10, 65_524, 1, 65_536, 100_000, 68_928):
        server.ask(writer, append(CONTENT[:done], CONTENT[done : done + size]))
        done += size
    assert done == len(CONTENT)
    edges = [edge + by for edge in (0, 65_536, 131_072, 196_608, 262_144) for by in (-1, 0, 1)]
    for at in {*(edge for edge in edges if edge >= 0), 11, 100_000, done - 1, done}:
        answer = server.ask(reader, m.Stat("o", at))
        assert (answer.digest_at, answer.digest) == (at, prefix_digest(CONTENT[:at]))
        assert (answer.info.synced, answer.info.digest) == (done, prefix_digest(CONTENT))
    answer = server.ask(reader, m.Stat("o", done + 1))
    assert (code_of(answer), answer.actual) == (ErrorCode.PAST_END, done)
    answer = server.ask(reader, m.Stat("o", 2**64 - 2))
    assert (code_of(answer), answer.actual) == (ErrorCode.PAST_END, done)
    none = server.ask(reader, m.Stat("o", 2**64 - 1))
    assert (none.digest_at, none.digest, none.info.synced) == (2**64 - 1, 0, done)


def test_stat_of_bytes_that_are_not_synced_yet_is_past_the_end() -> None:
    server, writer, reader = with_reader()
    server.send(writer, append(b"hello", b" world"))
    answer = server.answer(reader, server.send(reader, m.Stat("o", 6)))
    assert (code_of(answer), answer.actual) == (ErrorCode.PAST_END, 5)
    info = server.answer(reader, server.send(reader, m.Stat("o"))).info
    assert (info.received, info.synced, info.appending) == (11, 5, True)
    assert info.digest == prefix_digest(b"hello"), "the entry's own digest is that at synced"
    server.settle()
    assert server.ask(reader, m.Stat("o", 11)).digest == prefix_digest(b"hello world")


def test_stat_of_an_empty_object_and_of_none() -> None:
    server, _, reader = with_reader(b"")
    assert server.ask(reader, m.Stat("o", 0)) == m.StatResult(m.ObjectInfo("o"), 0, 0)
    assert code_of(server.ask(reader, m.Stat("o", 1))) == ErrorCode.PAST_END
    assert code_of(server.ask(reader, m.Stat("p", 0))) == ErrorCode.NOT_FOUND


def test_stat_of_a_damaged_object_gives_digests_below_the_damage_and_no_other() -> None:
    # EVIDENCE-OF: P-2
    server, writer, reader = with_reader(CONTENT[:1000])
    server.ask(writer, append(CONTENT[:1000], CONTENT[1000:2000]))
    server.disk.write(server.disk.open("d/dir/o", create=False), 64 + 1000 + 64 + 500, [b"??"])
    assert code_of(server.ask(reader, m.Get("o", 1000, 1000))) == ErrorCode.CORRUPT
    for at in (0, 1, 999, 1000):
        assert server.ask(reader, m.Stat("o", at)).digest == prefix_digest(CONTENT[:at])
    answer = server.ask(reader, m.Stat("o", 1001))
    assert (code_of(answer), answer.actual) == (ErrorCode.CORRUPT, 1000)


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


@pytest.mark.parametrize("most", [1_000, 999, 1_250, 2_499, 2_500, 2_501])
@pytest.mark.parametrize(("prefix", "after"), [("", ""), ("a.", ""), ("B1", "B11"), ("", "a.0599")])
def test_pages_give_every_name_once_in_byte_order(wire: Wire, prefix: str, after: str, most: int) -> None:
    found = pages(wire, prefix, after, most)
    wanted = [name for name in NAMES if name.startswith(prefix) and name > after]
    assert [name for page in found for name in names_of(page)] == wanted
    assert all(len(page.entries) == most for page in found[:-1])
    assert len(found) == max(1, -(-len(wanted) // most))


def test_entries_of_a_page_tell_sizes_and_digests(wire: Wire) -> None:
    for one in wire.ask(m.List("a.00", "", 50)).entries:
        size, digest = len(one.name), prefix_digest(one.name.encode())
        assert one == m.ObjectInfo(one.name, size, size, digest)


def test_a_page_of_none_of_one_and_beyond_the_limit(wire: Wire) -> None:
    assert wire.ask(m.List("", "", 0)) == m.Listing((), more=True)
    assert wire.ask(m.List("no such", "", 0)) == m.Listing((), more=False)
    one = wire.ask(m.List("", "", 1))
    assert (names_of(one), one.more) == (NAMES[:1], True)
    for most in (entries_max, entries_max + 1, 2**32 - 1):
        every = wire.ask(m.List("", "", most))
        assert (names_of(every), every.more) == (NAMES, False)


def test_a_page_is_never_larger_than_the_limit() -> None:
    server = Harness()
    for number in range(entries_max + 1):
        server.core._tables.directory_names.add(f"d{number:05}")
    page = server.ask(server.connect(), m.List("", "", 2**32 - 1))
    assert (len(page.entries), page.more) == (entries_max, True)


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
        ("a", "", [name for name in NAMES if name[0] == "a"]),
        ("a", "a.1198", ["a.1199"]),
        ("a.1199", "a.1199", []),
        ("a.1199", "a.1198x", ["a.1199"]),
        ("\xe9", "", []),
        ("0599", "", []),
        (".", "", []),
    ],
)
def test_prefixes_and_afters_at_their_ends(wire: Wire, prefix: str, after: str, wanted: list[str]) -> None:
    listing = wire.ask(m.List(prefix, after, 6_000))
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
