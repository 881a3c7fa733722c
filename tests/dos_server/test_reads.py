"""Reads in the core, event by event on the fake disk: GET, STAT, LIST, QUIT, and directories nobody uses."""

import errno
import random
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol import messages as m
from dos_protocol.digests import PrefixDigest, prefix_digest
from dos_protocol.errors import ErrorCode
from dos_protocol.limits import KIB, MIB, get_wait_ms_max, payload_bytes_max
from dos_server import embedded
from dos_server.core.files.extent import AcceptedBytes, build_extents, link_after, object_seed
from dos_server.core.files.records import ObjectMark
from dos_server.core.files.recovery import recover
from dos_server.core.files.scan import (
    DamagedExtentError,
    ExtentStart,
    ReadAt,
    ReadWindow,
    SparseIndex,
    payload_of,
    prefix_fold,
    read_content,
    read_part,
    walk,
)
from dos_server.core.tables import WaitingRead, WaitingReads
from dos_server.limits import extent_payload_bytes_max, list_entries_max, read_extents_max
from tests.dos_server.core_requests import W1, W2, append, claimed, code_of, to_claim, writing
from tests.dos_server.store_member import StoreMember
from tests.support.core_harness import Harness
from tests.support.wire import Wire


def test_quit_is_answered_after_everything_before_it() -> None:
    server, session = writing()
    server.send(session, append(b"", b"abc"))
    bye = server.send(session, m.Quit())
    assert server.answer(session, bye) is None
    server.settle()
    kinds = [type(message) for _, message in server.heard[session]][-2:]
    assert kinds == [m.DurabilityAck, m.Bye]
    assert session in server.closed


def test_directories_that_nobody_uses_are_forgotten_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    # EVIDENCE-OF: P-9
    monkeypatch.setattr("dos_server.core.tables.directories_loaded_max", 3)
    server = Harness()
    for number in range(10):
        session = claimed(server, 1, W1, f"dir{number}")
        server.ask(session, append(b"", b"x"))
        server.end(session)
    assert len(server.core._tables.directories) <= 3
    session = claimed(server, 2, W2, "dir0")
    assert server.ask(session, m.Get("o", 0, 9)).payload == b"x"


# --- A GET reads what it needs, not what lies before it ----------------------------------------------------


SEED = object_seed("dir", "o")


def file_of(content: bytes, append_bytes: int) -> bytes:
    """The extents of appends, each written alone."""
    fold, parts, link = PrefixDigest(), [], 1
    for start in range(0, len(content), append_bytes):
        piece = AcceptedBytes(start, fold.blocks_digest, content[start : start + append_bytes])
        for _, buffers in build_extents([piece], seed=SEED, epoch=0, durable=0, link=link):
            link = link_after(buffers[0])
            parts += buffers
        fold.update(piece.data)
    return b"".join(parts)


@pytest.mark.parametrize("append_bytes", [100, 5_000, 64 * KIB, extent_payload_bytes_max])
@pytest.mark.parametrize(
    ("start", "end"), [(0, 1), (3 * MIB + 7, 3 * MIB + 9), (MIB, 2 * MIB), (3_000_000, 4 * MIB)]
)
def test_a_get_reads_little_more_than_its_extents(append_bytes: int, start: int, end: int) -> None:
    content = random.Random(1).randbytes(4 * MIB)
    file = file_of(content, append_bytes)
    content_reads = []

    def read(position: int, count: int) -> bytes:
        if count > 20 * KIB:
            content_reads.append(count)
        return file[position : position + count]

    assert read_content(read, SEED, ExtentStart(0, 0), start, end) == content[start:end]
    needed = end - start
    assert sum(content_reads) <= 1.7 * needed + 4 * append_bytes + 64 * KIB, content_reads


def test_a_get_that_continues_the_last_one_costs_one_read() -> None:
    content = random.Random(3).randbytes(3 * MIB)
    file, extent, reads = file_of(content, 64 * KIB), ExtentStart(0, 0), 0

    def read(position: int, count: int) -> bytes:
        nonlocal reads
        reads += 1
        return file[position : position + count]

    for start in range(0, 3 * MIB, MIB):
        part = read_part(read, SEED, extent, start, start + MIB)
        assert b"".join(part.parts) == content[start : start + MIB]
        assert part.after is not None
        extent = part.after
    assert reads == 3


def part_by_single_steps(
    read: ReadAt, extent: ExtentStart, start: int, end: int, extents_max: int
) -> tuple[bytes, ExtentStart]:
    """What `read_part` returns, by the walk that decodes one header after the other."""
    window, parts = ReadWindow(read, 64), list[memoryview]()
    for located in walk(window, SEED, extent, start):
        header, payload = located.header, payload_of(window, located)
        if payload is None:
            raise DamagedExtentError(header.offset, "the payload digest does not match")
        parts.append(payload[max(start - header.offset, 0) : end - header.offset])
        if header.end > end:
            return b"".join(parts), ExtentStart(header.offset, located.position, header.link)
        if header.end == end or len(parts) == extents_max:
            return b"".join(parts), ExtentStart(header.end, located.after, located.link_after)
    raise AssertionError("unreachable")


@given(
    sizes=st.lists(st.integers(1, 2_000), min_size=1, max_size=20),
    damage=st.lists(st.tuples(st.integers(0, 60_000), st.integers(1, 255)), max_size=2),
    cut=st.integers(0, 100),
    extents_max=st.integers(1, 30),
    data=st.data(),
)
def test_a_part_is_what_single_steps_return_or_the_damage_that_they_find(
    sizes: list[int], damage: list[tuple[int, int]], cut: int, extents_max: int, data: st.DataObject
) -> None:
    # EVIDENCE-OF: P-2
    content, parts, link, fold, starts = random.Random(5).randbytes(sum(sizes)), [], 1, PrefixDigest(), []
    for size in sizes:
        piece = AcceptedBytes(fold.size, fold.blocks_digest, content[fold.size : fold.size + size])
        starts.append(ExtentStart(fold.size, sum(map(len, parts)), data.draw(st.sampled_from([link, None]))))
        ((_, buffers),) = build_extents([piece], seed=SEED, epoch=0, durable=0, link=link)
        link = link_after(buffers[0])
        parts += buffers
        fold.update(piece.data)
    file = bytearray(b"".join(parts))
    for place, flip in damage:
        if place < len(file):
            file[place] ^= flip
    file = file[: len(file) - cut] if cut < 10 else file
    extent = data.draw(st.sampled_from(starts))
    start = data.draw(st.integers(extent.offset, len(content) - 1))
    end = data.draw(st.integers(start + 1, len(content)))

    def read(position: int, count: int) -> bytes:
        return bytes(file[position : position + count])

    def outcome(part: Callable[[], object]) -> object:
        try:
            return part()
        except DamagedExtentError as error:
            return error.offset, error.what

    def found() -> object:
        part = read_part(read, SEED, extent, start, end, extents_max)
        return b"".join(part.parts), part.after

    assert outcome(found) == outcome(lambda: part_by_single_steps(read, extent, start, end, extents_max))


def test_a_get_refuses_an_extent_whose_link_is_of_another_chain() -> None:
    # EVIDENCE-OF: P-2
    file, link = b"", 1
    for start, own_link in ((0, None), (100, None), (200, 99)):
        piece = AcceptedBytes(start, 0, bytes(100))
        ((_, buffers),) = build_extents([piece], seed=SEED, epoch=0, durable=0, link=own_link or link)
        file, link = file + b"".join(buffers), link_after(buffers[0])

    def read(position: int, count: int) -> bytes:
        return file[position : position + count]

    assert read_content(read, SEED, ExtentStart(0, 0), 0, 200) == bytes(200)
    with pytest.raises(
        DamagedExtentError, match="offset 200: the next header does not follow the one before"
    ):
        read_content(read, SEED, ExtentStart(0, 0), 0, 300)


@pytest.mark.parametrize("append_bytes", [100, 5_000, 64 * KIB, 200_000, extent_payload_bytes_max])
@pytest.mark.parametrize(
    ("start", "end"), [(0, 1), (100, 64 * KIB), (MIB, 2 * MIB), (MIB + 9, 2 * MIB + 9), (0, 200_001)]
)
def test_the_pieces_of_a_get_keep_little_more_in_memory_than_what_is_sent(
    append_bytes: int, start: int, end: int
) -> None:
    # EVIDENCE-OF: P-9
    file = file_of(random.Random(1).randbytes(3 * MIB), append_bytes)

    def read(position: int, count: int) -> bytes:
        return file[position : position + count]

    parts = read_part(read, SEED, ExtentStart(0, 0), start, end).parts
    kept = {id(one.obj): len(one.obj) for one in map(memoryview, parts)}
    assert sum(map(len, parts)) == end - start
    assert sum(kept.values()) <= 1.25 * (end - start)
    assert len(parts) <= 16


@pytest.mark.parametrize("wrong", [-100, -1, 1, 100, 1_000])
def test_an_extent_that_begins_at_another_offset_than_the_index_has_is_damage(wrong: int) -> None:
    content = random.Random(4).randbytes(1_000)
    file = file_of(content, 100)
    extent_bytes = len(file) // 10
    for number in range(10):
        offset, start = number * 100, ExtentStart(number * 100 + wrong, number * extent_bytes)

        def read(position: int, count: int) -> bytes:
            return file[position : position + count]

        assert read_content(read, SEED, start._replace(offset=offset), offset, offset + 100) in content
        with pytest.raises(DamagedExtentError, match=f"the next header is for offset {offset}"):
            read_content(read, SEED, start, offset, offset + 100)


@pytest.mark.parametrize("ask", [1, 4 * KIB, 65 * KIB, 199_999, 200_000])
def test_a_digest_among_small_extents_reads_a_block_of_them_and_not_an_extent_of_the_largest_size(
    ask: int,
) -> None:
    # EVIDENCE-OF: P-9
    content = random.Random(2).randbytes(200_000)
    file, read_bytes = file_of(content, 1), 0

    def read(position: int, count: int) -> bytes:
        nonlocal read_bytes
        data = file[position : position + count]
        read_bytes += len(data)
        return data

    index = recover(read, len(file), SEED, ObjectMark("o", len(content), root=1)).index
    read_bytes = 0
    assert prefix_fold(read, SEED, index.fold_starts(ask), ask).value == prefix_digest(content[:ask])
    extents = read_bytes // 65
    assert extents <= 64 * KIB + 4 * 4 * KIB, "a block, and the spacing of the index before and behind it"


@pytest.mark.parametrize("seed", range(5))
def test_what_lies_in_many_small_extents_is_read_in_parts_and_each_continues_where_the_last_one_ended(
    seed: int,
) -> None:
    # EVIDENCE-OF: P-2, P-9
    rng = random.Random(seed)
    content = rng.randbytes(5_000)
    file, index, read_bytes = file_of(content, rng.choice([1, 3, 7])), SparseIndex(), 0

    def read(position: int, count: int) -> bytes:
        nonlocal read_bytes
        data = file[position : position + count]
        read_bytes += len(data)
        return data

    found, start = b"", 0
    while len(found) < len(content):
        end = min(len(found) + rng.randrange(1, 2_000), len(content))
        part = read_part(read, SEED, index.find(len(found)), len(found), end, 100)
        assert 0 < len(b"".join(part.parts)) <= 700
        found += b"".join(part.parts)
        start += 1
        assert part.after is not None
        index.remember(part.after)
    assert found == content
    assert read_bytes < start * 64 * KIB
    index.cut(10)
    assert index.find(5_000) == ExtentStart(0, 0), "what is cut is not remembered"


def test_a_get_among_extents_of_one_byte_gives_a_part_and_asking_on_gives_the_rest() -> None:
    # EVIDENCE-OF: P-2, P-9
    server = Harness()
    session = server.connect()
    server.ask(session, m.ChangeDirectory("dir"))
    content = random.Random(1).randbytes(2 * read_extents_max + 10)
    fold = PrefixDigest()
    for byte in content:
        server.send(session, m.Append("o", fold.size, fold.value, bytes((byte,))))
        fold.update(bytes((byte,)))
    server.settle()
    found, sizes = b"", []
    while len(found) < len(content):
        data = server.ask(session, m.Get("o", len(found), MIB))
        assert isinstance(data, m.Data)
        found += data.payload
        sizes.append(len(data.payload))
    assert found == content
    assert sizes == [read_extents_max, read_extents_max, 10]


# --- LIST in pages, and GET that follows an object, through sockets: each line of protocol.md about them ---


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


# --- GET that waits and STAT with the digest of any prefix: each line of protocol.md about them ------------


def with_reader(content: bytes = b"hello") -> tuple[Harness, int, int]:
    """A server with an object, its writer's session, and a reader's."""
    server = Harness()
    writer, reader = server.connect(), server.connect()
    server.ask(writer, to_claim())
    server.ask(writer, append(b"", content))
    server.ask(reader, m.ChangeDirectory("dir"))
    return server, writer, reader


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
    began = server.now
    waiting = server.send(reader, m.Get("o", 5, 100, asked_ms))
    server.tick(waited_s * 0.99)
    assert server.answer(reader, waiting) is None
    server.now = began + waited_s  # this moment, not one later: a timer is set to it
    server.tick(0)
    assert server.answer(reader, waiting) == m.Data("o", 5, 5, b"")
    assert not server.core.wants_tick()


def test_a_sync_that_brings_no_bytes_does_not_begin_the_wait_anew() -> None:
    server = Harness()
    writer = server.connect()
    server.ask(writer, to_claim())
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
    server.ask(taker, to_claim(2, W2))
    assert server.answer(reader, waiting) is None
    server.ask(taker, append(b"hello", b"!"))
    assert server.answer(reader, waiting) == m.Data("o", 5, 6, b"!")


def test_the_wait_of_a_writer_continues_when_it_is_superseded() -> None:
    server, writer, _ = with_reader()
    waiting = server.send(writer, m.Get("o", 5, 100, 60_000))
    taker = server.connect()
    server.ask(taker, to_claim(2, W2))
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
    server.ask(other, to_claim(1, W2, "elsewhere"))
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
    member = StoreMember(b"short")
    reader = member.reader()
    waiting = member.send(reader, m.Get("o", 5, 100, 60_000))
    member.ask(
        member.reader(),
        m.RepairChunk(
            "o", 0, 12, prefix_digest(b"short longer"), 5, prefix_digest(b"short"), False, b"short longer"
        ),
    )
    assert member.answer(reader, waiting) == m.Data("o", 5, 12, b" longer")


def test_a_get_gives_no_more_than_one_payload_takes() -> None:
    content = CONTENT * 5
    server = Harness()
    session = server.connect()
    server.ask(session, to_claim())
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
    acks = server.unasked(writer, m.DurabilityAck)
    appending = server.send(writer, append(CONTENT, b"more"))
    server.disk.write(server.disk.open("d/dir/o", create=False), 64 + 100_000 + 70, [b"?"])
    reading = server.send(reader, m.Get("o", 100_000, 100))
    server.finish(1)  # the read ends while the sync still runs
    assert code_of(server.answer(reader, reading)) == ErrorCode.CORRUPT
    server.tick(1)
    server.settle()
    answer = server.answer(writer, appending)
    assert (code_of(answer), answer.actual) == (ErrorCode.CORRUPT, 100_000)
    assert server.unasked(writer, m.DurabilityAck) == acks, "a reported size covers everything below it"
    server.restart()
    again = server.connect()
    (info,) = server.ask(again, m.ChangeDirectory("dir")).entries
    assert (info.synced, info.corrupt) == (0, True)


class WaitedFor:
    """An object, as far as waiting reads count on it."""

    waiters = 0


@given(st.randoms(use_true_random=False))
def test_each_waiting_get_is_found_once_by_object_session_or_deadline_and_leaves_nothing(
    rng: random.Random,
) -> None:
    # EVIDENCE-OF: P-9
    waiting, model = WaitingReads(), list[WaitingRead]()
    objects: list[Any] = [WaitedFor() for _ in range(3)]
    for number in range(rng.randrange(1, 60)):
        what, session, now = rng.choice(objects), rng.randrange(3), rng.choice([*range(100), 100])
        match rng.randrange(6):
            case 0:
                taken, gone = waiting.take_of_object(what), [one for one in model if one.state is what]
            case 1:
                taken, gone = (
                    waiting.take_of_session(session),
                    [one for one in model if one.session == session],
                )
            case 2:
                taken, gone = waiting.take_due(now), [one for one in model if one.deadline <= now]
            case _:
                taken, gone = [], []
                model.append(WaitingRead(what, session, number, m.Get("o", 0, 1), rng.randrange(100)))
                waiting.add(model[-1])
        assert taken == gone, "in order of arrival"
        model = [one for one in model if one not in gone]
        assert len(waiting) == len(model)
        for one in objects:
            assert one.waiters == sum(waiter.state is one for waiter in model)
        assert waiting._of_session.keys() == {one.session for one in model}
        assert waiting._of_object.keys() == {one.state for one in model}


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
