"""A request queue on real servers: several writers, unavailable members, full objects, torn tails."""

import pytest
import trio

from checkpoint import limits
from checkpoint.core.requests import Request, Skipped, encode_record
from checkpoint.requests.queue import QueueReader, QueueRepair, write_records
from dos_client import init_store, open_store
from tests.support.servers import url_of

pytestmark = pytest.mark.process
DIRECTORY = "toy.requests"
"""Of the tests with servers of their own."""


def a_request(number, what="status"):
    return Request(id=f"{number:032x}", region="toy", what=what, wall_time_ms=1, patience_ms=1)


def data(*numbers):
    return b"".join(encode_record(a_request(number)) for number in numbers)


@pytest.fixture
def url(three_servers):
    store = url_of(three_servers)
    trio.run(init_store, store)
    return store


async def wait_until(holds):
    """Until it is so, of servers that run by themselves."""
    with trio.fail_after(60):
        while not await holds():  # noqa: ASYNC110 - asks servers
            await trio.sleep(0.05)


async def all_answer(store):
    return len((await store.inspect(DIRECTORY)).answers) == 3


async def objects(store, directory):
    view = await store.inspect(directory)
    return sorted({name for answer in view.answers.values() for name in answer})


async def received(store, member, name):
    """Whether a member holds some of an object durably."""
    entries = (await store.reopened(store.record.member(member), DIRECTORY)).entries
    return any(info.name == name and info.synced for info in entries)


async def objects_of(store):
    return (await store.inspect(DIRECTORY)).answers


async def settled(store):
    """Whether all members hold the same."""
    answers = list((await store.inspect(DIRECTORY)).answers.values())
    return len(answers) == 3 and all(answer == answers[0] for answer in answers)


async def new_reader(store, directory):
    """A reader of what is written from now on."""
    reader = QueueReader(store, directory)
    await reader.skip_present()
    return reader


async def numbers_of(reader):
    """The numbers of the requests that the next poll returns."""
    return [int(one.id, 16) for one in await reader.poll()]


@pytest.mark.trio
async def test_letters_of_many_writers_arrive_once_each_and_what_was_there_before_is_not_read(
    shared_store,
) -> None:
    async with open_store(shared_store) as store:
        await write_records(store, "many.requests", data(1000))
        reader = await new_reader(store, "many.requests")
        assert await reader.poll() == []

        async def write(writer):
            async with open_store(shared_store) as own:
                for number in range(4):
                    await write_records(own, "many.requests", data(10 * writer + number))

        found = []
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for writer in range(4):
                    nursery.start_soon(write, writer)
                # While they write: with a slow member each letter begins an object, and the oldest are
                # deleted. One that was superseded before its acknowledgement may have been written twice,
                # and a poll returns what it can prove with the members that have answered.
                while len({one.id for one in found}) < 16:
                    found += await reader.poll()
        expected = {10 * writer + number for writer in range(4) for number in range(4)}
        assert {int(one.id, 16) for one in found} == expected
        assert all(isinstance(one, Request) for one in found)
        # one that was written twice may come a second time
        assert {int(one.id, 16) for one in await reader.poll()} <= expected


@pytest.mark.trio
async def test_one_object_is_continued_with_until_it_is_full(shared_store) -> None:
    # EVIDENCE-OF: P-9
    async with open_store(shared_store) as store:
        reader = await new_reader(store, "full.requests")
        room = 3 * len(data(1))
        for number in range(7):
            await write_records(store, "full.requests", data(number), roll_bytes=room)
        assert len(await objects(store, "full.requests")) == 3
        assert await numbers_of(reader) == list(range(7))


@pytest.mark.trio
async def test_a_long_object_is_continued_with_from_its_last_block(shared_store) -> None:
    async with open_store(shared_store) as store:
        reader = await new_reader(store, "long.requests")
        many = list(range(1000))
        assert len(data(*many)) > 2 * 65_536
        await write_records(store, "long.requests", data(*many))
        await write_records(store, "long.requests", data(5000))
        assert len(await objects(store, "long.requests")) == 1
        assert await numbers_of(reader) == [*many, 5000]


@pytest.mark.trio
async def test_with_a_member_away_letters_go_into_new_objects_and_with_all_back_into_the_last_one(
    url, three_servers
) -> None:
    async with open_store(url) as store:
        reader = await new_reader(store, DIRECTORY)
        await write_records(store, DIRECTORY, data(1))
        three_servers[2].kill()
        await write_records(store, DIRECTORY, data(2))
        await write_records(store, DIRECTORY, data(3))
        assert len(await objects(store, DIRECTORY)) == 3
        assert await numbers_of(reader) == [1, 2, 3]
        three_servers[2].restart()
        await wait_until(lambda: all_answer(store))
        await write_records(store, DIRECTORY, data(4))
        assert len(await objects(store, DIRECTORY)) == 3
        assert await numbers_of(reader) == [4]


@pytest.mark.trio
async def test_a_member_that_was_unavailable_gets_what_it_missed_and_a_tail_of_one_member_is_left_alone(
    url, three_servers
) -> None:
    async with open_store(url) as store:
        await write_records(store, DIRECTORY, data(1))
        three_servers[2].kill()
        await write_records(store, DIRECTORY, data(2))
        await write_records(store, DIRECTORY, data(3))
        three_servers[2].restart()
        await wait_until(lambda: all_answer(store))
        copies = QueueRepair(store, DIRECTORY)
        await copies.repair()
        assert not await settled(store)  # the next writer may fill it: only lasting damage is repaired
        await copies.repair()
        assert await settled(store)
        member = store.record.members[0].server_id
        async with await store.claim(DIRECTORY, 50, b"w" * 16) as claim:
            three_servers[1].kill()
            three_servers[2].kill()
            tail = claim.open_object(f"{50:016x}")
            tail.append(data(4))
            await wait_until(lambda: received(store, member, f"{50:016x}"))
        three_servers[1].restart()
        three_servers[2].restart()
        await wait_until(lambda: all_answer(store))
        before = await objects_of(store)
        for _ in range(3):
            await copies.repair()
        assert await objects_of(store) == before


@pytest.mark.trio
async def test_garbage_in_an_object_is_skipped_and_said_and_strange_objects_are_not_read(
    shared_store,
) -> None:
    async with open_store(shared_store) as store:
        reader = QueueReader(store, "strange.requests")
        await reader.skip_present()
        await write_records(
            store, "strange.requests", b"hello \xff\xffDR" + data(1)[:50] + data(2) + b"\xff" * 40
        )
        await write_records(store, "strange.requests", data(3))
        epoch = (await store.inspect("strange.requests")).epoch_seen
        async with await store.claim("strange.requests", epoch + 1, b"w" * 16) as claim:
            writer = claim.open_object("notes.txt")
            await writer.wait_synced(writer.append(b"not for you"))
        found = await reader.poll()
        assert [int(one.id, 16) for one in found if isinstance(one, Request)] == [2, 3]
        assert sum(one.count for one in found if isinstance(one, Skipped)) == 6 + 4 + 50 + 40


@pytest.mark.trio
async def test_what_one_member_alone_has_is_no_letter_until_a_writer_takes_it_over(
    url, three_servers
) -> None:
    # EVIDENCE-OF: P-5
    async with open_store(url) as store:
        reader = await new_reader(store, DIRECTORY)
        await write_records(store, DIRECTORY, data(1))
        await wait_until(lambda: settled(store))
        member = next(one for one in store.record.members if one.address == three_servers[0].location)
        async with await store.claim(DIRECTORY, 50, b"w" * 16) as claim:
            three_servers[1].kill()
            three_servers[2].kill()
            claim.open_object(f"{50:016x}").append(data(2))
            await wait_until(lambda: received(store, member.server_id, f"{50:016x}"))
        three_servers[1].restart()
        three_servers[2].restart()
        await wait_until(lambda: all_answer(store))
        assert await numbers_of(reader) == [1]
        await write_records(store, DIRECTORY, data(3))
        assert await numbers_of(reader) == [2, 3]


@pytest.mark.trio
async def test_objects_that_nobody_inspects_any_more_are_taken_away(shared_store) -> None:
    # EVIDENCE-OF: P-9
    directory = "tidy.answers"
    async with open_store(shared_store) as store:
        reader = QueueReader(store, directory)
        found = []
        for number in range(12):
            await write_records(store, directory, data(number), roll_bytes=1)
            found += await reader.poll()
        assert [one.id for one in found] == [a_request(number).id for number in range(12)]

        async def few() -> bool:
            return len(await objects(store, directory)) <= limits.queue_objects_kept

        await wait_until(few)
        assert max(await objects(store, directory)) == f"{(await store.inspect(directory)).epoch_seen:016x}"
