"""Parts of an archived segment come in order, some of them asked for before, and errors in their place."""

import threading
import time
from contextlib import aclosing

import pytest
import trio

from journal.archive.read_ahead import in_order
from journal.limits import archive_reads_ahead_max


class Reads:
    """Numbered reads; `taken` is what came out. A read waits until `last_needed` has begun."""

    def __init__(self, count: int, *, last_needed: int = 0, broken: int = -1) -> None:
        self.begun: list[int] = []
        self.taken: list[int] = []
        self.ahead_most = 0
        self._broken = broken
        self._needed = last_needed
        self._enough = threading.Event()
        self.reads = [lambda number=number: self._read(number) for number in range(count)]

    def _read(self, number: int) -> bytes:
        self.begun.append(number)
        self.ahead_most = max(self.ahead_most, len(self.begun) - len(self.taken))
        if number >= self._needed:
            self._enough.set()
        assert self._enough.wait(10), f"nobody began read {self._needed}"
        if number == self._broken:
            raise OSError(f"read {number}")
        return b"%d" % number

    async def take(self, count: int = 1000) -> None:
        async with aclosing(in_order(self.reads)) as parts:
            async for data in parts:
                self.taken.append(int(data))
                if len(self.taken) == count:
                    return


def test_parts_come_in_order_and_all_of_them() -> None:
    reads = Reads(9)
    trio.run(reads.take)
    assert reads.taken == list(range(9))
    nothing = Reads(0)
    trio.run(nothing.take)
    assert nothing.taken == []


def test_later_parts_are_asked_for_while_the_first_is_on_its_way_but_not_too_many() -> None:
    reads = Reads(9, last_needed=archive_reads_ahead_max)
    trio.run(reads.take)
    assert reads.ahead_most == archive_reads_ahead_max + 1


def test_what_is_wrong_with_a_part_is_reported_where_it_would_have_come() -> None:
    reads = Reads(5, last_needed=1, broken=1)
    with pytest.raises(OSError, match="read 1"):
        trio.run(reads.take)
    assert reads.taken == [0]


def test_who_stops_early_has_no_further_part_asked_for() -> None:
    reads = Reads(9)
    trio.run(reads.take, 2)
    assert reads.taken == [0, 1]
    assert len(reads.begun) <= 2 + archive_reads_ahead_max


def test_who_gives_up_leaves_a_read_that_hangs_alone() -> None:
    hangs = threading.Event()

    async def give_up() -> bool:
        with trio.move_on_after(0.05) as scope:
            async with aclosing(in_order([lambda: bytes(hangs.wait(30))])) as parts:
                async for _ in parts:
                    pass
        return scope.cancelled_caught

    begin = time.monotonic()
    try:
        assert trio.run(give_up)
        assert time.monotonic() - begin < 10
    finally:
        hangs.set()
