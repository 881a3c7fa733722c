"""The client from plain threads."""

import threading

import pytest
import trio

from dos_client import blocking
from dos_client.blocking import Portal
from dos_client.errors import StoreNotReadyError
from dos_client.membership.founding import init_store
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ClosedError, FencedError, NotFoundError
from tests.dos_client.support import ThreadServer, new_writer, url_of


def test_a_store_is_used_from_threads_as_from_trio(three: list[ThreadServer]) -> None:
    # EVIDENCE-OF: P-1, P-4
    url = url_of(three)
    trio.run(init_store, url)
    with blocking.open_store(url) as store:
        assert len(store.record.members) == 3
        with store.claim("d", 1, new_writer()) as claim:
            assert (claim.directory, claim.epoch, claim.epoch_seen) == ("d", 1, 1)
            assert claim.wait_all(10)
            assert len(claim.answers) == 3
            writer = claim.open_object("x")
            size = writer.append(b"hello")
            writer.wait_received(size)
            writer.wait_synced(size)
            writer.wait_room()
            assert (writer.name, writer.size, writer.synced, writer.received) == ("x", 5, 5, 5)
            assert writer.digest == prefix_digest(b"hello")
            assert claim.read("x", 1, 9) == b"ello"
            assert not claim.waiting
            assert (claim.status().directory, claim.status().waiting) == ("d", "")
            claim.wait_quorum()
            with store.claim("d", 2, new_writer()) as newer:
                newer.settle("x", 5, prefix_digest(b"hello"))
                with pytest.raises(FencedError):  # noqa: PT012 - the first or a later one
                    while True:
                        writer.wait_synced(writer.append(b"!"))
                assert claim.lost is not None
        assert store.read("d", "x", 0, 5) == b"hello"
        assert store.inspect("d").epoch_seen == 2
        assert store.list_directories() == ["d"]
        assert len(store.ping()) == len(store.members()) == 3
        assert {found.info.synced >= 5 for found in store.stat("d", "x").values()} == {True}
        with pytest.raises(NotFoundError):
            store.read("d", "y", 0, 5)


def test_a_stream_and_a_follower_are_iterators(three: list[ThreadServer]) -> None:
    url = url_of(three)
    trio.run(init_store, url)
    content = bytes(range(256)) * 10_000
    with blocking.open_store(url) as store, store.claim("d", 1, new_writer()) as claim:
        followed: list[bytes] = []

        def follow() -> None:
            for data in store.follow("d", "x", 5):
                followed.append(data)
                if sum(map(len, followed)) == len(content) - 5:
                    return

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        writer = claim.open_object("x")
        for start in range(0, len(content), 1 << 20):
            writer.append(content[start : start + (1 << 20)])
        writer.wait_synced(writer.size)
        follower.join(25)
        assert b"".join(followed) == content[5:]
        assert b"".join(store.stream("d", "x")) == content
        assert b"".join(store.stream("d", "x", 7, 70_000)) == content[7:70_000]
        assert store.read("d", "x", 9, 99, committed=True) == content[9:108]
        left_early = store.stream("d", "x")
        assert content.startswith(next(left_early))
        left_open = store.follow("d", "x")
        assert content.startswith(next(left_open))
    with pytest.raises(ClosedError):
        list(left_open)


def test_one_server_from_threads(alone: ThreadServer) -> None:
    with blocking.connect(alone.url) as server:
        with server.unclaimed("d") as claim:
            writer = claim.open_object("x")
            writer.wait_synced(writer.append(b"abc"))
            writer.seal()
        assert server.read("d", "x", 0, 5) == b"abc"


def test_what_goes_wrong_while_opening_is_raised_in_the_caller(alone: ThreadServer) -> None:
    with pytest.raises(StoreNotReadyError), blocking.open_store(alone.url):
        pass


def test_after_its_end_a_portal_says_closed(alone: ThreadServer) -> None:
    threads = threading.active_count()
    with Portal() as portal:
        assert portal.call(trio.sleep, 0) is None
    with pytest.raises(ClosedError):
        portal.call(trio.sleep, 0)
    portal.close()
    assert threading.active_count() == threads


def test_several_threads_use_one_store_at_once(alone: ThreadServer) -> None:
    trio.run(init_store, alone.url)
    with blocking.open_store(alone.url) as store, store.claim("d", 1, new_writer()) as claim:
        errors: list[BaseException] = []

        def write(number: int) -> None:
            try:
                writer = claim.open_object(f"o{number}")
                for _ in range(20):
                    writer.append(b"x" * 1000)
                writer.wait_synced(20_000)
            except BaseException as error:  # told below, in the test's own thread
                errors.append(error)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert len(store.inspect("d").answers.popitem()[1]) == 5
