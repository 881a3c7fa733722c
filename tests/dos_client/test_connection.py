"""One session: requests and answers, refusals, silence, and peers that talk nonsense."""

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from dos_client import QuorumUnavailableError, connect
from dos_client.core.replica import ReplicaState
from dos_client.core.window import Chunk, append_frame
from dos_client.sessions.connection import Connection, dial, open_connection
from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import (
    BrokenConnectionError,
    ClosedError,
    ErrorCode,
    NotFoundError,
    PastEndError,
    RefusedError,
    RemoteProtocolError,
    SizeMismatchError,
    WrongStoreError,
)
from dos_protocol.frames import FrameDecoder, encode_frame
from dos_protocol.limits import entries_max
from dos_protocol.messages import DurabilityAck, Opcode, Pong, Welcome, encode
from tests.dos_client.support import (
    Threads,
    ThreadServer,
    claimed_through_proxies,
    content_of,
    has,
    new_writer,
    thread_servers,
    until,
)
from tests.support.proxy import Way, proxies

pytestmark = pytest.mark.trio


async def test_requests_pipeline_and_each_gets_its_own_answer(alone: ThreadServer) -> None:
    async with open_connection(alone.location, client="test") as connection:
        assert connection.server_id.hex() == alone.server_id
        assert connection.record is None
        found: dict[int, float] = {}

        async def ping(number: int) -> None:
            found[number] = await connection.ping(b"%d" % number)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ping, number)
        assert len(found) == 50


async def test_what_was_posted_is_waited_for_until_the_kernel_has_it_or_the_session_is_over(
    alone: ThreadServer,
) -> None:
    # EVIDENCE-OF: P-9
    async with proxies([alone]) as (between,), open_connection(between.location) as connection:
        await connection.claim("d", 1, new_writer())
        connection.on_durability_ack = lambda _: None
        await connection.wait_sent()
        with between.stall(Way.TO_SERVER):
            size = 0
            for _ in range(64):  # more than sockets on the way can hold
                data = bytes(1 << 18)
                connection.post(*append_frame("x", 1, Chunk(size, prefix_digest(bytes(size)), data)))
                size += len(data)
            with trio.move_on_after(0.1) as scope:
                await connection.wait_sent()
            assert scope.cancelled_caught, "nobody took it"
        await connection.wait_sent()
        with between.stall(Way.TO_SERVER):
            for _ in range(64):
                connection.post(bytes(1 << 18))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.wait_sent)
                connection.fail(BrokenConnectionError("over"))


async def test_reading_and_refusals_leave_the_session_usable(alone: ThreadServer) -> None:
    # EVIDENCE-OF: P-2, P-8
    async with open_connection(alone.location) as connection:
        marks: list[DurabilityAck] = []
        synced = trio.Event()
        refused: list[tuple[int, RefusedError]] = []

        def take(mark: DurabilityAck) -> None:
            marks.append(mark)
            if mark.synced == 5:
                synced.set()

        connection.on_durability_ack = take
        connection.on_append_refused = lambda tag, error: refused.append((tag, error))
        await connection.claim("d", 1, new_writer())
        connection.post(*append_frame("x", 7, Chunk(0, 0, b"hello")))
        await synced.wait()
        connection.post(*append_frame("x", 9, Chunk(3, 0, b"lo")))
        assert await connection.get("x", 1, 3) == b"ell"
        assert await connection.get("x", 5, 3) == b""
        (tag, error) = refused[0]
        assert tag == 9
        assert isinstance(error, SizeMismatchError)
        assert error.actual == 5
        with pytest.raises(PastEndError):
            await connection.get("x", 6, 3)
        with pytest.raises(NotFoundError):
            await connection.stat("nothing")
        result = await connection.stat("x", 4)
        assert result.digest == prefix_digest(b"hell")
        assert [info.name for info in await connection.list_all()] == ["x"]


async def test_a_session_pages_through_names_and_waits_for_bytes(alone: ThreadServer) -> None:
    async with open_connection(alone.location) as writer, open_connection(alone.location) as reader:
        writer.on_durability_ack = lambda _: None
        await writer.claim("d", 1, new_writer())
        for name in ("a1", "a2", "a3", "b"):
            writer.post(*append_frame(name, 1, Chunk(0, 0, b"x")))
        await reader.open_directory("d")
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def follow() -> None:
                got = b""
                while len(got) < 2:
                    with suppress(NotFoundError):
                        got += (await reader.get_data("b", len(got), 100, wait_ms=60_000)).payload
                assert got == b"xy"

            writer.post(*append_frame("b", 1, Chunk(1, prefix_digest(b"x"), b"y")))
        page = await reader.list_names("a", entries_max=2)
        assert ([info.name for info in page.entries], page.more) == (["a1", "a2"], True)
        page = await reader.list_names("a", "a2", entries_max=2)
        assert ([info.name for info in page.entries], page.more) == (["a3"], False)
        assert [info.name for info in await reader.list_all("a")] == ["a1", "a2", "a3"]
        with trio.fail_after(5):
            assert await reader.get("b", 2, 100, wait_ms=1) == b""


async def test_a_server_that_is_missing_reports_it(alone: ThreadServer) -> None:
    alone.kill()
    with pytest.raises(BrokenConnectionError, match="cannot connect to"):
        async with open_connection(alone.location):
            pass


async def test_a_refused_hello_is_raised_as_what_it_is(alone: ThreadServer) -> None:
    with pytest.raises(WrongStoreError):
        async with open_connection(alone.location, store_id=b"x" * 16, generation=1):
            pass


async def test_when_the_server_goes_every_waiter_receives_it(alone: ThreadServer) -> None:
    async with proxies([alone]) as (proxy,), open_connection(proxy.location) as connection:
        proxy.lose(Way.TO_CLIENT)
        broken = 0

        async def ask() -> None:
            nonlocal broken
            with pytest.raises(BrokenConnectionError):
                await connection.ping()
            broken += 1

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked(0.05)
            proxy.cut()
        assert broken == 3
        with pytest.raises(BrokenConnectionError):
            await connection.ping()


async def test_after_its_end_a_session_says_closed(alone: ThreadServer) -> None:
    async with open_connection(alone.location) as connection:
        await connection.ping()
    with pytest.raises(ClosedError):
        await connection.ping()


async def test_an_answer_that_does_not_come_in_time_is_an_error(alone: ThreadServer) -> None:
    async with proxies([alone]) as (proxy,), open_connection(proxy.location) as connection:
        proxy.lose(Way.TO_CLIENT)
        with pytest.raises(BrokenConnectionError, match="did not answer Ping within"):
            await connection.ping(timeout_s=0.1)


async def test_an_answer_nobody_waits_for_any_more_is_dropped(alone: ThreadServer) -> None:
    async with open_connection(alone.location) as connection:
        with trio.move_on_after(0):
            await connection.ping()
        assert await connection.ping() >= 0


async def test_an_exception_of_the_body_leaves_as_it_is(alone: ThreadServer) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_connection(alone.location):
            raise KeyError("mine")


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\nthis is no frame at all", "a frame begins with d05e"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\nthis is no frame at all", "that is an HTTP response, not DOS"),
        (b"SSH-2.0-OpenSSH_9.2p1 and more than a header", "that is ssh, not DOS"),
        (encode_frame(encode(Pong(b"x"), 1)), "answered Hello with Pong"),
        (encode_frame(encode(Pong(b"x"), 77)), "request 77, which was never sent"),
        (
            encode_frame(encode(Welcome(1, b"i" * 16, 100, 100, 100), 1)),
            "accepts at most 100 bytes per frame",
        ),
        (b"", "closed the connection"),
    ],
)
async def test_a_peer_that_talks_nonsense_is_a_named_error(answer: bytes, what: str) -> None:
    async def talk(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(1 << 16)
            await stream.send_all(answer)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, talk, 0)
        port = listeners[0].socket.getsockname()[1]
        with pytest.raises((RemoteProtocolError, BrokenConnectionError), match=what) as broken:
            async with open_connection(f"127.0.0.1:{port}"):
                pass
        assert f"127.0.0.1:{port}" in str(broken.value)
        nursery.cancel_scope.cancel()


async def test_nobody_is_dialled_at_the_address_of_one_that_is_gone() -> None:
    with pytest.raises(BrokenConnectionError, match="belongs to the server that replaces it"):
        await dial("00112233445566778899aabbccddeeff.gone.invalid:1")


WRITER = b"w" * 16
STAT = m.StatResult(m.ObjectInfo("o", 4, 4), 4, 9)
ESCAPES = "\x1b[2J\x1b]0;x\x07\r\n"
HOSTILE = [
    (lambda c: c.claim("d", 5, WRITER), m.DirectoryOpened(6, WRITER), "the claim of epoch 6"),
    (lambda c: c.claim("d", 5, WRITER), m.DirectoryOpened(5, b"x" * 16), "of another writer"),
    (lambda c: c.claim("d", 5, WRITER), m.DirectoryOpened(5, WRITER, (m.ObjectInfo("../x"),)), "'../x'"),
    (lambda c: c.open_directory("d"), m.DirectoryOpened(0, bytes(16), (m.ObjectInfo(ESCAPES),)), "no object"),
    (lambda c: c.list_names(), m.Listing((m.ObjectInfo("a"), m.ObjectInfo("a/b"))), "'a/b'"),
    (lambda c: c.list_all(), m.Listing((m.ObjectInfo(ESCAPES),)), r"x1b\[2J"),
    (lambda c: c.stat("p", 4), STAT, "the sizes of another object"),
    (lambda c: c.stat("o", 3), STAT, "a digest at another size"),
    (lambda c: c.stat("o"), STAT, "a digest at another size"),
    (lambda c: c.delete("p"), m.Deleted("o"), "the deletion of 'o'"),
    (lambda c: c.get("p", 0, 9), m.Data("o", 0, 4, b"data"), "bytes that were not requested"),
    (lambda c: c.ping(), m.Listing(), "answered Ping with Listing"),
    (
        lambda c: c.repair(m.RepairChunk("p", 0, 1, 0, 1, 0, False, b"x")),
        m.RepairAck("o", 1, False),
        "of 'o'",
    ),
]


async def answering(answer: m.Message, stream: trio.SocketStream) -> None:
    """Greet, and answer every request with the same message."""
    decoder = FrameDecoder()
    async with stream:
        while data := await stream.receive_some(65_536):
            decoder.writable()[: len(data)] = data
            decoder.wrote(len(data))
            while (frame := decoder.next_frame()) is not None:
                welcome = Welcome(1, b"s" * 16, 1 << 20, 1 << 20, 1000)
                found = welcome if frame.opcode == m.Opcode.HELLO else answer
                await stream.send_all(encode_frame(encode(found, frame.request_id)))


@pytest.mark.parametrize(("request_of", "answer", "reason"), HOSTILE, ids=range(len(HOSTILE)))
async def test_an_answer_that_does_not_fit_its_request_ends_the_session(
    request_of: Callable[[Connection], Awaitable[Any]], answer: m.Message, reason: str
) -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(
            partial(trio.serve_tcp, partial(answering, answer), 0, host="127.0.0.1")
        )
        address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        with pytest.raises(RemoteProtocolError, match=reason) as error:
            async with open_connection(address) as connection:
                await request_of(connection)
        assert str(error.value).isprintable()
        nursery.cancel_scope.cancel()


async def test_the_text_of_a_refusal_has_nothing_that_a_terminal_obeys() -> None:
    refusal = m.Error(int(ErrorCode.NOT_FOUND), f"gone{ESCAPES}", f"try{ESCAPES}")
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(
            partial(trio.serve_tcp, partial(answering, refusal), 0, host="127.0.0.1")
        )
        with pytest.raises(NotFoundError) as error:
            async with open_connection(f"127.0.0.1:{listeners[0].socket.getsockname()[1]}") as connection:
                await connection.stat("o")
        assert (str(error.value).isprintable(), r"gone\x1b[2J" in str(error.value)) == (True, True)
        nursery.cancel_scope.cancel()


OBJECTS = 6


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadServer]:
    """Sessions may use one directory of so many objects, and another one only when it has fewer."""
    monkeypatch.setattr("dos_server.core.tables.objects_in_use_max", entries_max + OBJECTS - 1)
    with thread_servers(tmp_path, 1) as (one,):
        yield one


async def test_a_claim_and_a_look_wait_until_the_server_has_room_and_say_what_for(
    server: ThreadServer,
) -> None:
    async with connect(server.url) as store, await store.claim("full", 1, new_writer()) as full:
        for number in range(OBJECTS):
            writer = full.open_object(f"o{number}")
            await writer.wait_synced(writer.append(b"x"))
        async with connect(server.url) as other:
            with pytest.raises(QuorumUnavailableError, match="another cannot be opened"):
                await other.inspect("another")
            granted = trio.Event()

            async def claim() -> None:
                async with await other.claim("another", 1, new_writer()) as late:
                    written = late.open_object("o")
                    await written.wait_synced(written.append(b"later"))
                granted.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(claim)
                await until(
                    lambda: any(
                        "cannot be opened" in link.error for one in other.claims() for link in one.links()
                    ),
                    "it says what it waits for",
                )
                attempts = [link.outage.attempts for one in other.claims() for link in one.links()]
                assert not granted.is_set()
                assert max(attempts) < 50, "it does not ask all the time"
                await full.aclose()
                with trio.fail_after(60):
                    await granted.wait()


async def test_an_append_that_would_make_an_object_too_many_is_made_when_there_is_room(
    server: ThreadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(server.url) as store, await store.claim("d", 1, new_writer()) as claim:
        first = claim.open_object("first")
        await first.wait_synced(first.append(b"x"))
        monkeypatch.setattr("dos_server.core.tables.objects_in_use_max", 1)
        second = claim.open_object("second")
        position = second.append(b"y")
        await until(lambda: "which is the limit" in claim.status().members[0].error, "it says why")
        monkeypatch.setattr("dos_server.core.tables.objects_in_use_max", 2 * entries_max)
        with trio.fail_after(60):
            await second.wait_synced(position)
            await first.wait_synced(first.append(b"goes on"))
        assert await content_of(server, "d", "second") == b"y"
        assert await content_of(server, "d", "first") == b"xgoes on"


@pytest.mark.trio
async def test_bytes_acknowledged_to_nobody_exist_once_and_are_sent_once(three: Threads) -> None:
    # EVIDENCE-OF: P-3, P-10
    async with claimed_through_proxies(three) as (between, store, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"one "))
        for server in three:
            await has(server, "d", "x", b"one ")
        lost = [proxy.drop_reply(Opcode.APPEND) for proxy in between]
        size = writer.append(b"two ")
        for server in three:
            await has(server, "d", "x", b"one two ")
        for rule in lost:
            await rule.done.wait()
        await writer.wait_synced(size)
        await writer.wait_synced(writer.append(b"three"))
        for server in three:
            await has(server, "d", "x", b"one two three")
        assert store.counts.sent_bytes == {proxy.location: len(b"one two three") for proxy in between}
        assert store.counts.reconnects == {proxy.location: 1 for proxy in between}


@pytest.mark.trio
async def test_many_lost_answers_on_any_member_leave_one_copy_of_every_record(three: Threads) -> None:
    # EVIDENCE-OF: P-2, P-3, P-10
    rng, content = random.Random(7), b""
    async with claimed_through_proxies(three) as (between, store, claim):
        writer = claim.open_object("x")
        for number in range(40):
            for proxy in between:
                if number % 4 == 0 and rng.random() < 0.5:
                    proxy.drop_reply(Opcode.APPEND, rng.randint(1, 3))
            record = b"%04d" % number * 25
            content += record
            await writer.wait_synced(writer.append(record))
            # nothing else is under way when a connection is cut: that would rightly be sent again
            await until(lambda: not any(one.lag_bytes for one in store.members()), "all have all")
        for proxy in between:
            proxy.heal()
        links = list(claim.links())
        await until(
            lambda: all(link.copies.states() == [ReplicaState.IN_SYNC] for link in links), "all in sync"
        )
        for server in three:
            await has(server, "d", "x", content)
        again = sum(store.counts.sent_bytes.values()) - 3 * len(content)
        assert again == 0, f"{again} bytes were sent twice"
        assert sum(store.counts.reconnects.values()) >= 5


@pytest.mark.trio
@pytest.mark.parametrize("loses", [Opcode.CHANGE_DIRECTORY, Opcode.HELLO])
async def test_a_claim_whose_answer_is_lost_is_taken_again_by_the_same_writer(
    three: Threads, loses: Opcode
) -> None:
    # EVIDENCE-OF: P-4, P-10
    async with claimed_through_proxies(three) as (between, _, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"before "))
        lost = [proxy.drop_reply(loses, client="") for proxy in between]
        for proxy in between:
            proxy.cut()
        size = writer.append(b"and after")
        for rule in lost:
            await rule.done.wait()
        await writer.wait_synced(size)
        assert claim.lost is None
        for server in three:  # a quorum is enough to go on: the last one may still be on its way
            await has(server, "d", "x", b"before and after")


@pytest.mark.trio
async def test_a_watermark_of_a_session_that_another_store_record_has_ended_counts_for_nothing(
    three: Threads,
) -> None:
    """It may be in this client's hands at the very moment in which the record changes: its reader is about to
    run. Of the members of the new record nobody has told anything yet (docs/decisions/0010, `tell_again`)."""
    # EVIDENCE-OF: P-4
    async with claimed_through_proxies(three) as (between, _, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"before "))
        links = list(claim.links())
        await until(lambda: all(link.connection for link in links), "all are there")
        held = [proxy.hold(Way.TO_CLIENT) for proxy in between]
        size = writer.append(b"after")
        for server in three:
            await has(server, "d", "x", b"before after")
        sessions = [link.connection for link in links]
        claim.record_changed()
        for session in sessions:
            assert session is not None
            session.on_durability_ack(DurabilityAck("x", size, size))
        assert writer.synced == len(b"before "), "told in sessions of the record before"
        for rule in held:
            rule.end()
        await writer.wait_synced(size)
