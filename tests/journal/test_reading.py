"""Reading from one member after the other: what a member that is away may have is not called lost."""

from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
from trio.testing import MockClock

from dos_client.errors import QuorumUnavailableError
from dos_protocol.errors import BrokenConnectionError, BusyError, CorruptError, FencedError, NotFoundError
from journal.core.errors import LostBytesError
from journal.reading import ChainSource


class BeingRemoved:
    """A store whose object is being removed when it is read from an offset on, so often; then it is gone."""

    def __init__(self, offset: int, times: int) -> None:
        self._offset, self._times = offset, times

    async def read(self, directory: str, name: str, offset: int, max_bytes: int) -> bytes:
        del directory, name
        if offset < self._offset:
            return bytes(min(max_bytes, self._offset - offset))
        self._times -= 1
        if self._times >= 0:
            raise BusyError("x is being removed")
        raise NotFoundError("there is no x")

    async def stream(self, directory: str, name: str, offset: int, end: int) -> AsyncGenerator[bytes]:
        while offset < end:
            yield (data := await self.read(directory, name, offset, 2))
            offset += len(data)


@pytest.mark.trio
@pytest.mark.parametrize(("times", "ends"), [(1, NotFoundError), (3, NotFoundError), (99, BusyError)])
async def test_a_segment_that_is_removed_while_it_is_read_is_gone_and_not_busy(
    autojump_clock: MockClock, times: int, ends: type[Exception]
) -> None:
    """Readers of a chain that is trimmed expect NotFoundError, and list its segments again."""
    del autojump_clock
    reading = ChainSource(cast("Any", BeingRemoved(4, times)), "d")
    with pytest.raises(ends):
        [chunk async for chunk in reading.chunks("x", 8)]


AWAY = QuorumUnavailableError("it is away", [])


class Members:
    """A claim whose members answer with these bytes, or with these errors."""

    def __init__(self, **answers: bytes | Exception) -> None:
        self._answers = answers

    async def read(self, name: str, offset: int, max_bytes: int, *, member: bytes | None = None) -> bytes:
        del name
        assert member is not None
        answer = self._answers[member.decode()]
        if isinstance(answer, Exception):
            raise answer
        return answer[offset : offset + max_bytes]


def source(**answers: bytes | Exception) -> tuple[ChainSource, list[bytes]]:
    return ChainSource(cast("Any", Members(**answers))), [name.encode() for name in answers]


async def chunks(length: int, **answers: bytes | Exception) -> bytes:
    reading, members = source(**answers)
    return b"".join([chunk async for chunk in reading.chunks("x", length, cast("Any", members))])


@pytest.mark.trio
async def test_what_one_member_lacks_another_gives() -> None:
    assert await chunks(6, a=b"abc", b=b"abcdef") == b"abcdef"
    assert await chunks(6, a=CorruptError("rotten"), b=b"abcdef") == b"abcdef"
    assert await chunks(6, a=AWAY, b=b"abcdef") == b"abcdef"


@pytest.mark.trio
@pytest.mark.parametrize("absence", [AWAY, BrokenConnectionError("reset")])
async def test_bytes_that_a_member_may_have_that_is_unavailable_are_not_lost(absence: Exception) -> None:
    """Found by the simulator, seed 464: it had answered the claim, and lost its power before it was read."""
    for answers in ({"a": absence, "b": b"abc"}, {"a": b"abc", "b": absence}):
        with pytest.raises(QuorumUnavailableError, match="x from byte 3 on may be on a member"):
            await chunks(6, **answers)


@pytest.mark.trio
async def test_bytes_that_nobody_has_are_lost_and_a_fence_ends_everything() -> None:
    with pytest.raises(LostBytesError, match="x should have 6 bytes and ends at 3"):
        await chunks(6, a=b"abc", b=b"ab")
    with pytest.raises(LostBytesError):
        await chunks(6, a=b"abc", b=CorruptError("rotten"))
    with pytest.raises(CorruptError):
        await chunks(6, a=CorruptError("rotten"), b=CorruptError("rotten too"))
    with pytest.raises(FencedError):
        await chunks(6, a=FencedError("superseded"), b=b"abcdef")
