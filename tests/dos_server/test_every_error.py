"""Every code of protocol.md's table of errors: something makes a server answer it, with the number, the
remedy and the fate of the session that the table says."""

import errno
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import CLOSING, VERDICTS, Blame, ErrorCode
from dos_protocol.frames import Frame, encode_frame
from dos_protocol.limits import ping_bytes_max
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from dos_server import embedded
from dos_server.core import vocabulary as v
from dos_server.core.access import Access, Grant, Right, Tokens
from dos_server.core.quotas import Quota
from tests.dos_server.core_requests import to_claim
from tests.dos_server.test_stamps import made_by_a_newer_copy
from tests.support.census import census
from tests.support.core_harness import SERVER_ID
from tests.support.object_lives import CONTENT, STORE, World, corrupt, poisoned, removing, sound
from tests.support.wire import Wire

HELLO = m.Hello(store_id=STORE, generation=1)


class Story(NamedTuple):
    """How a code comes about in the core: a world, the request that is refused, and the number told."""

    make: Callable[[World], None]
    ask: Callable[[World], m.Message]
    actual: int = 0
    in_store: bool = False
    hello: m.Hello | None = None


def nothing(_: World) -> None:
    """A world is enough."""


def append(size: int, content: bytes, name: str = "o") -> Callable[[World], m.Message]:
    return lambda _: m.Append(name, size, prefix_digest(content), b"x")


def same(message: m.Message) -> Callable[[World], m.Message]:
    return lambda _: message


def claimed_by_another(world: World) -> None:
    sound(world)
    other = world.connect()
    world.ask(other, to_claim(5, b"x" * 16))


def opened_without_a_claim(world: World) -> None:
    sound(world)
    world.writer = world.connect()
    world.ask(world.writer, m.ChangeDirectory("dir"))


def of_no_store(world: World) -> None:
    sound(world)
    world.writer = world.connect()
    claim = to_claim(2, b"p" * 16)
    world.ask(world.writer, claim)


def being_appended(world: World) -> None:
    sound(world)
    world.append(b"more")


def only_for_reading(world: World) -> None:
    """From now on its token, which is empty, grants less."""
    sound(world)
    reader = Access("reader", (Grant("dir", (Right.READ,)),), hashlib.sha256(b"").digest())
    world.event(v.TokensChanged(Tokens([reader])))


def over_its_quota(world: World) -> None:
    sound(world)
    world.event(v.QuotasChanged((Quota("dir", bytes_max=0),)))


def full_disk(world: World) -> None:
    world.disk.fail("write", errno.ENOSPC)


def with_record(generation: int, server: bytes = SERVER_ID, store: bytes = STORE) -> bytes:
    members = (Member(server, "h:1"), Member(b"o" * 16, "h:2"))
    return encode_store_record(StoreRecord(store, generation, 1, members))


def no_more_a_member(world: World) -> None:
    world.ask(world.connect(), m.Configure(with_record(2, server=b"n" * 16)))


LOSING = m.RepairChunk(
    "o", 0, 4, prefix_digest(b"good"), len(CONTENT), prefix_digest(CONTENT), False, b"good"
)

STORIES: dict[ErrorCode, Story] = {
    ErrorCode.BAD_FRAME: Story(nothing, same(m.Hello())),
    ErrorCode.TOO_LARGE: Story(nothing, same(m.Ping(bytes(ping_bytes_max + 1))), ping_bytes_max),
    ErrorCode.UNKNOWN_OPCODE: Story(nothing, same(m.Bye())),
    ErrorCode.UNSUPPORTED: Story(of_no_store, same(m.Delete("o")), in_store=True),
    ErrorCode.BAD_VERSION: Story(nothing, same(m.Ping()), hello=m.Hello(version=2)),
    ErrorCode.NOT_READY: Story(lambda world: setattr(world, "writer", world.connect()), same(m.Stat("o"))),
    ErrorCode.UNAUTHORISED: Story(nothing, same(m.Ping()), hello=m.Hello(token=b"another's")),
    ErrorCode.BAD_NAME: Story(nothing, same(m.Stat("../o"))),
    ErrorCode.NOT_FOUND: Story(nothing, same(m.Stat("o"))),
    ErrorCode.SIZE_MISMATCH: Story(sound, append(3, CONTENT[:3]), len(CONTENT)),
    ErrorCode.DIGEST_MISMATCH: Story(sound, append(len(CONTENT), b"other"), prefix_digest(CONTENT)),
    ErrorCode.FENCED: Story(claimed_by_another, append(len(CONTENT), CONTENT), 5),
    ErrorCode.NOT_CLAIMED: Story(opened_without_a_claim, append(len(CONTENT), CONTENT), 1),
    ErrorCode.BEING_APPENDED: Story(being_appended, same(m.Delete("o")), len(CONTENT) + 4),
    ErrorCode.PAST_END: Story(sound, same(m.Get("o", len(CONTENT) + 1, 10)), len(CONTENT)),
    ErrorCode.CORRUPT: Story(corrupt, same(m.Get("o", 5, 10)), 4),
    ErrorCode.POISONED: Story(poisoned, append(len(CONTENT) + 4, CONTENT + b"lost"), len(CONTENT)),
    ErrorCode.NO_SPACE: Story(full_disk, append(0, b"")),
    ErrorCode.STALE_GENERATION: Story(
        nothing, same(m.Ping()), in_store=True, hello=m.Hello(store_id=STORE, generation=7)
    ),
    ErrorCode.WRONG_STORE: Story(
        nothing, same(m.Ping()), in_store=True, hello=m.Hello(store_id=b"o" * 16, generation=1)
    ),
    ErrorCode.NOT_A_MEMBER: Story(
        no_more_a_member, same(m.Ping()), in_store=True, hello=m.Hello(store_id=STORE, generation=2)
    ),
    ErrorCode.BUSY: Story(removing, same(m.Get("o", 0, 10))),
    ErrorCode.FORBIDDEN: Story(only_for_reading, append(len(CONTENT), CONTENT)),
    ErrorCode.QUOTA_EXCEEDED: Story(over_its_quota, append(len(CONTENT), CONTENT)),
    ErrorCode.ROLLED_BACK: Story(
        sound, lambda world: m.Stamp(*made_by_a_newer_copy(world, 7)), 7, in_store=True
    ),
    ErrorCode.WOULD_LOSE: Story(sound, same(LOSING), len(CONTENT), in_store=True),
}
"""Those that the core decides."""

FRAMES: dict[ErrorCode, bytes] = {
    ErrorCode.BAD_FRAME: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ErrorCode.BAD_DIGEST: encode_frame(m.encode(m.Ping(b"x"), 2))[:-1] + b"y",
    ErrorCode.TOO_LARGE: encode_frame(Frame(9, 2, b"", b""))[:20] + b"\0\x10\0\1" + bytes(8),
    ErrorCode.BAD_VERSION: b"\xd0\x5e\2" + bytes(29),
}
"""Those of frames, which are decided before anything is asked."""

BELOW_FRAMES = {ErrorCode.TLS_REQUIRED: "tests/dos_tls/test_connections.py: plain text to a TLS port"}
"""Those of the connection itself, before it carries frames."""

ONLY_CLIENTS = {
    ErrorCode.INTERNAL: "what a client makes of a code that it does not know; a server with a bug ends"
}


def test_every_code_has_something_that_makes_it_and_no_code_is_made_up() -> None:
    made = STORIES.keys() | FRAMES.keys() | BELOW_FRAMES.keys()
    assert made | ONLY_CLIENTS.keys() == set(ErrorCode)
    assert not made & ONLY_CLIENTS.keys()


def refusal(story: Story) -> tuple[World, m.Error]:
    """The world after the story, and what was answered."""
    world = World(in_store=story.in_store)
    story.make(world)
    if story.hello is not None:
        world.writer = world.connect(story.hello)
        ((_, answer),) = world.heard[world.writer]
    else:
        answer = world.ask(world.writer, story.ask(world))
    assert isinstance(answer, m.Error), answer
    return world, answer


@pytest.mark.parametrize("code", list(STORIES))
def test_a_refusal_is_what_the_table_says(code: ErrorCode) -> None:
    world, answer = refusal(STORIES[code])
    verdict = VERDICTS[code]
    assert (ErrorCode(answer.code), answer.actual) == (code, STORIES[code].actual), answer
    assert answer.remedy == verdict.remedy
    assert answer.message.isascii()
    assert answer.message
    assert bool(verdict.actual) or not answer.actual, "the table says what the number is"
    assert bool(answer.record) == (verdict.blame is Blame.STORE)
    assert (world.writer in world.closed) == (code in CLOSING)
    if code not in CLOSING:
        assert world.ask(world.writer, m.Ping(b"still here")) == m.Pong(b"still here")


@pytest.mark.parametrize("code", list(STORIES))
def test_a_refusal_leaves_the_objects_and_the_disk_as_if_nothing_had_been_asked(code: ErrorCode) -> None:
    # EVIDENCE-OF: P-8
    states = []
    for world in both(STORIES[code]):
        reader = world.connect()
        world.ask(reader, m.ChangeDirectory("dir"))
        states.append((world.disk.used, world.ask(reader, m.List()), world.ask(reader, m.Get("o", 0, 100))))
    assert states[0] == states[1]


def both(story: Story) -> tuple[World, World]:
    """The world of the story without and with the request that is refused; all work has ended."""
    untouched = World(in_store=story.in_store)
    story.make(untouched)
    refused, _ = refusal(story)
    untouched.settle()
    refused.settle()
    return untouched, refused


READING = {"names", "open", "close", "size", "read", "read_stored", "is_named", "why_gone", "free_space"}
"""Calls of the disk that change nothing: `open` makes a file only if it is to be written."""

TRIED = {
    ErrorCode.NO_SPACE: ["write", "remove", "sync_folder"],
    ErrorCode.ROLLED_BACK: ["cut", "write", "sync", "rename", "sync_folder"],
}
"""Code -> what is written all the same: the attempt that fails, and the proof against this disk."""

KEPT = {
    ErrorCode.UNAUTHORISED: {"Attempts._failed", "Seldom._at_s"},
    ErrorCode.FORBIDDEN: {"Seldom._at_s"},
    ErrorCode.NO_SPACE: {"InFlight._at"},
    ErrorCode.QUOTA_EXCEEDED: {"Quotas._covering"},
}
"""Code -> what is kept in memory of a refusal, for a time or up to a number: delays, shares, caches."""


OF_NEW_OBJECTS = {
    code: STORIES[code]._replace(ask=append(size, content, "new"))
    for code, size, content in (
        (ErrorCode.SIZE_MISMATCH, 3, CONTENT[:3]),
        (ErrorCode.FENCED, 0, b""),
        (ErrorCode.NOT_CLAIMED, 0, b""),
        (ErrorCode.FORBIDDEN, 0, b""),
        (ErrorCode.QUOTA_EXCEEDED, 0, b""),
        (ErrorCode.NO_SPACE, 0, b""),
    )
}


@pytest.mark.parametrize(
    ("code", "story"),
    [
        *(pytest.param(code, story, id=code.name) for code, story in STORIES.items()),
        *(
            pytest.param(code, story, id=f"{code.name} of a new object")
            for code, story in OF_NEW_OBJECTS.items()
        ),
    ],
)
def test_a_refusal_writes_nothing_tells_nobody_else_and_keeps_nothing(code: ErrorCode, story: Story) -> None:
    untouched, refused = both(story)
    calls, heard, kept = [], [], []
    for world in (untouched, refused):
        calls.append([one for one, _ in world.disk.calls if one not in READING])
        received = {
            one: [to for to in world.heard[one] if not isinstance(to[1], m.Welcome)] for one in world.heard
        }
        received.pop(refused.writer, None)
        heard.append(received)
        for session in world.heard:
            world.event(v.ConnectionEnded(session))
        world.settle()
        kept.append(census([world.core]))
    assert calls[1] == calls[0] + TRIED.get(code, []), "what is written"
    assert heard[0] == heard[1], "what other sessions receive"
    changed = {name for name in kept[0].keys() | kept[1].keys() if kept[0].get(name) != kept[1].get(name)}
    assert changed == KEPT.get(code, set()), "what is kept in memory"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[embedded.EmbeddedServer]:
    with embedded.start(tmp_path / "data") as running:
        yield running


@pytest.mark.parametrize("code", list(FRAMES))
def test_a_frame_that_is_none_is_refused_as_the_table_says(
    server: embedded.EmbeddedServer, code: ErrorCode
) -> None:
    with Wire(server.address) as wire:
        wire.sock.sendall(FRAMES[code])
        assert wire.ends()
        (answer,) = wire.unasked
        assert isinstance(answer, m.Error)
        assert (ErrorCode(answer.code), answer.actual) == (code, 0)
        assert answer.remedy == VERDICTS[code].remedy
        assert code in CLOSING
