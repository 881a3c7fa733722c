"""Reading ahead gives exactly what reading gives, sooner."""

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from dos_client.limits import (
    read_ahead_bytes_max,
    read_ahead_bytes_min,
    read_ahead_kept_s,
    read_ahead_pieces_max,
    read_ahead_streams_max,
)
from dos_client.reading.member_queries import ReadAhead
from dos_protocol.errors import NotFoundError, PastEndError

UNIT = read_ahead_bytes_min


class Objects:
    """Objects that grow, read at a speed of their own; counts what is read and kept."""

    def __init__(self) -> None:
        self.contents = {"a": b"", "b": b""}
        self.requests: list[tuple[str, int, int]] = []

    def grow(self, name: str, units: int) -> None:
        count = len(self.contents[name]) // 8
        self.contents[name] += b"".join(
            b"%08d" % number for number in range(count, count + units * UNIT // 8)
        )

    async def read(self, name: str, offset: int, max_bytes: int, only: bytes | None) -> bytes:
        self.requests.append((name, offset, max_bytes))
        await trio.sleep(0.001)
        if name not in self.contents:
            raise NotFoundError(f"no {name}")
        if offset > len(self.contents[name]):
            raise PastEndError("beyond")
        return self.contents[name][offset : offset + max_bytes]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.sampled_from("ab"), st.integers(1, 3)),
        st.tuples(st.just("on"), st.sampled_from("abc"), st.sampled_from([1, UNIT, UNIT, UNIT, 2 * UNIT])),
        st.tuples(st.just("jump"), st.sampled_from("ab"), st.integers(0, 4 * UNIT)),
        st.tuples(st.just("wait"), st.just("a"), st.just(0)),
    ),
    max_size=30,
)


@given(steps)
def test_whatever_is_read_the_bytes_are_those_of_the_object(steps: list[tuple[str, str, int]]) -> None:
    # EVIDENCE-OF: P-2
    async def main() -> None:
        objects, places = Objects(), {"a": 0, "b": 0, "c": 0}
        async with trio.open_nursery() as nursery:
            ahead = ReadAhead(nursery.start_soon, objects.read)
            for what, name, number in steps:
                if what == "grow":
                    objects.grow(name, number)
                elif what == "wait":
                    await trio.sleep(1.0)
                elif what == "jump":
                    places[name] = number
                else:
                    at, content = places[name], objects.contents.get(name)
                    if content is None or at > len(content):
                        with pytest.raises((NotFoundError, PastEndError)):
                            await ahead.read(name, at, number, None)
                    else:
                        data = await ahead.read(name, at, number, None)
                        assert data == content[at : at + number]
                        places[name] += len(data)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.trio
async def test_pieces_exist_before_they_are_asked_for(autojump_clock: trio.testing.MockClock) -> None:
    # EVIDENCE-OF: P-9
    objects = Objects()
    objects.grow("a", 20)
    async with trio.open_nursery() as nursery:
        ahead = ReadAhead(nursery.start_soon, objects.read)
        for place in range(8):
            assert (
                await ahead.read("a", place * UNIT, UNIT, None)
                == objects.contents["a"][place * UNIT : (place + 1) * UNIT]
            )
            await trio.sleep(0.1)  # what the reader does with it
            assert len(objects.requests) <= place + 1 + read_ahead_pieces_max
        assert sorted(objects.requests) == [("a", place * UNIT, UNIT) for place in range(10)], "each once"
        begin = trio.current_time()
        await ahead.read("a", 8 * UNIT, UNIT, None)
        assert trio.current_time() == begin, "it was there"
        await trio.sleep(2 * read_ahead_kept_s)
        assert not nursery.child_tasks, "nobody reads on: nothing is kept"


@pytest.mark.trio
@pytest.mark.parametrize(
    ("size", "ahead_of_it"),
    [
        (read_ahead_bytes_min - 1, False), (read_ahead_bytes_min, True),
        (read_ahead_bytes_max, True), (read_ahead_bytes_max + 1, False),
    ],
)  # fmt: skip
async def test_pieces_of_these_sizes_are_read_ahead(
    autojump_clock: trio.testing.MockClock, size: int, ahead_of_it: bool
) -> None:
    objects = Objects()
    objects.contents["a"] = bytes(8 * read_ahead_bytes_max)
    async with trio.open_nursery() as nursery:
        ahead = ReadAhead(nursery.start_soon, objects.read)
        for place in range(3):
            await ahead.read("a", place * size, size, None)
        await trio.testing.wait_all_tasks_blocked()
        assert (len(objects.requests) > 3) is ahead_of_it
        ahead.drop()


@pytest.mark.trio
async def test_few_objects_are_read_ahead_at_once(autojump_clock: trio.testing.MockClock) -> None:
    # EVIDENCE-OF: P-9
    objects = Objects()
    async with trio.open_nursery() as nursery:
        ahead = ReadAhead(nursery.start_soon, objects.read)
        for number in range(3 * read_ahead_streams_max):
            name = f"x{number}"
            objects.contents[name] = bytes(8 * UNIT)
            for place in range(3):
                await ahead.read(name, place * UNIT, UNIT, None)
        await trio.testing.wait_all_tasks_blocked()
        assert len(nursery.child_tasks) <= read_ahead_streams_max * read_ahead_pieces_max
        ahead.drop()
