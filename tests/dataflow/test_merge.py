"""What a merge does with streams that lack rows or do not fit, without any store."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from dataflow.core.event_time import END
from dataflow.errors import NoMarksError, ReplicasDifferError
from dataflow.merging import merge as merge_module
from dataflow.merging.merge import Merge, MergeOrder, merge_order
from dos_protocol.errors import DosError
from tests.support.planted_source import planted

LOG = "w0000"


def order_of(names: str, **options: str) -> MergeOrder:
    sites = {name: f"dos://{name}" for name in names}
    return merge_order(sites, "numbers", "out", "at timestamp, n bigint", compare="all", **options)


async def check_accepted(make: Callable[[MergeOrder], Merge]) -> None:
    """A loss is accepted once it is known that no stream has the rows."""
    merge = make(order_of("ab", on_missing="accept"))
    merge.join("a", [LOG], 5)
    async with trio.open_nursery() as nursery:
        marks: list[int] = []

        async def take() -> None:
            marks.append((await merge.next()).mark)

        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        assert marks == [], "b may have the rows"
        merge.leave("b", "connecting", "nobody answers")
        with trio.fail_after(1):
            while not marks:  # noqa: ASYNC110 - in virtual time
                await trio.sleep(0.1)
        assert marks == [5]
    merge.set_mark("a", LOG, END)
    await merge.next()
    assert merge.is_over


async def check_graphs(make: Callable[[MergeOrder], Merge]) -> None:
    """Of three replicas, the one with another graph is excluded; of two, nobody is right."""
    one, other = {"out": "sink"}, {"out": "sink", "more": "map"}
    merge = make(order_of("abc", on_difference="detach"))
    merge.set_graph("a", one)
    merge.set_graph("b", other)
    merge.join("a", [LOG], -(1 << 63))
    merge.set_graph("c", one)
    states = {status.site: status.state for status in merge.observe()}
    assert (states["a"], states["b"]) == ("reading", "detached")
    with pytest.raises(Exception, match=r"^b$"):
        merge.join("b", [LOG], 5)
    merge.set_mark("a", LOG, 7)
    assert (await merge.next()).mark == 7
    for options in ({}, {"on_difference": "detach"}):
        two = make(order_of("ab", **options))
        two.set_graph("a", one)
        two.set_graph("b", other)
        with pytest.raises(
            ReplicasDifferError, match="operator 'more' is not in the graph at a, and map at b"
        ):
            await two.next()


async def check_left(make: Callable[[MergeOrder], Merge]) -> None:
    """A replica that cannot be reached any more has no graph to compare with."""
    merge = make(order_of("ab"))
    merge.set_graph("a", {"out": "old"})
    merge.join("a", [LOG], 0)
    merge.leave("a", "connecting", "nobody answers")
    merge.set_graph("b", {"out": "new"})
    merge.join("b", [LOG], -(1 << 63))
    merge.set_mark("b", LOG, 7)
    assert (await merge.next()).mark == 7


async def check_none_left(make: Callable[[MergeOrder], Merge]) -> None:
    """If no stream fits, the reason is raised; one that was excluded stays so."""
    merge = make(order_of("ab"))
    merge.exclude("a", NoMarksError("numbers", "out", "a"))
    merge.leave("a", "joining", "later")
    assert merge.observe()[0].state == "detached"
    merge.exclude("b", NoMarksError("numbers", "out", "b"))
    with pytest.raises(NoMarksError, match="at b"), trio.fail_after(1):
        await merge.next()


async def check_acknowledged(make: Callable[[MergeOrder], Merge]) -> None:
    """What was acknowledged does not go back."""
    merge = make(order_of("a"))
    merge.recorded(9)
    merge.recorded(4)
    assert merge.safe_mark == 9


CHECKS = (check_accepted, check_graphs, check_left, check_none_left, check_acknowledged)
Check = Callable[[Callable[[MergeOrder], Merge]], Awaitable[None]]


def play(check: Check, make: Callable[[MergeOrder], Merge] = Merge) -> None:
    trio.run(check, make, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("check", CHECKS)
def test_streams_that_lack_rows_or_do_not_fit(check: Check) -> None:
    play(check)


BUGS = {
    "a loss is accepted before all streams are known": ("if known and (missing", "if (missing"),
    "a loss is never accepted": ("            if self._accept_loss:", "            if False:"),
    "the third replica does not decide": (
        "if 2 * (len(largest) + candidates",
        "if 0 * (len(largest) + candidates",
    ),
    "the graph of a replica that is gone counts": ("        self._graphs.pop(site, None)\n", ""),
    "an excluded stream joins again": ("        if site in self._excluded:\n            return\n", ""),
    "the reason of the last stream is not raised": ("if len(self._excluded) == len(self.status)", "if False"),
    "acknowledged time goes back": ("max(self.safe_mark, mark)", "mark"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(bug: str) -> None:
    broken = planted(merge_module, *BUGS[bug])
    found = 0
    for check in CHECKS:
        try:
            play(check, broken["Merge"])
        except (AssertionError, DosError, ExceptionGroup, trio.TooSlowError):
            found += 1
    assert found
