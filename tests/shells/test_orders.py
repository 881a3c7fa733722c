"""What must hold in any order of completions: the stories of `order_stories.py` and `order_regions.py` in
many orders (`orders.py`), and planted bugs that only another order than the usual one shows.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import trio

from checkpoint.chains.manifest_log import ManifestLog
from dataflow.merging.merge import ReplicaStream
from dataflow.sinks.two_phase import TwoPhaseWriter
from dos_client.live_store import Store
from dos_client.writing.claim import MemberCopies
from dos_server.server import PacedReads
from tests.shells.bugs import planted
from tests.shells.order_chains import opens_while_another_claims, opens_while_one_fails
from tests.shells.order_regions import reads_a_replica, votes_and_commits, votes_and_resets
from tests.shells.order_stories import (
    burst,
    claims_and_power,
    connections_reset,
    power,
    readers_leave,
    record_changes_during_an_inspection,
    record_changes_under_a_writer,
    takes_over,
)
from tests.shells.orders import (
    Moved,
    Order,
    OrderError,
    Orders,
    Replayed,
    Shuffled,
    Slowed,
    Story,
    Usual,
    explore,
    play,
)
from tests.support.planted_source import edited

STORIES: dict[str, tuple[Story, int]] = {
    "a power cut": (power(), 50),
    "a power cut with a group log": (power(1 << 20), 40),
    "a reset": (connections_reset, 40),
    "claims and a power cut": (claims_and_power, 40),
    "readers leave": (readers_leave, 21),
    "a burst of 1 byte in flight": (burst(1), 20),
    "a burst of some bytes in flight": (burst(2_500), 20),
    "an inspection while the record changes": (record_changes_during_an_inspection, 8),
    "a writer while the record changes": (record_changes_under_a_writer, 6),
    "a take-over": (takes_over, 10),
    "votes and commits": (votes_and_commits, 40),
    "votes and resets": (votes_and_resets, 21),
    "a reader of a replica": (reads_a_replica, 10),
    "chains while another process claims": (opens_while_another_claims, 20),
    "chains while the state fails": (opens_while_one_fails("state"), 9),
    "chains while the steps fail": (opens_while_one_fails("steps"), 9),
    "chains while files fail": (opens_while_one_fails("files-own"), 9),
    "chains while an output log fails": (opens_while_one_fails("out-each"), 9),
}
"""Story -> itself, and in how many orders it is played."""


@pytest.mark.parametrize("name", STORIES)
def test_in_any_order(name: str) -> None:
    story, runs = STORIES[name]
    explore(story, runs)


def test_a_failed_order_is_printed_and_can_be_played_again() -> None:
    async def story(orders: Orders) -> None:
        found: list[str] = []

        async def task(name: str) -> None:
            await orders.point(name)
            found.append(name)

        orders.begin()
        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(task, name)
        assert found != ["b", "a", "c"], "this order fails"

    with pytest.raises(OrderError, match=r"this order fails") as failed:
        explore(story, 20)
    names = ["b #1", "a #1", "c #1"]
    assert failed.value.names == names
    assert str(names[0]) in str(failed.value)
    with pytest.raises(OrderError, match="Replayed"):
        play(story, Replayed(names))
    assert play(story, Replayed(["c #1", "b #1", "a #1"])).released == ["c #1", "b #1", "a #1"]


# Planted bugs


class Planted(NamedTuple):
    """A bug in a shell, and an order that shows it. edit: a function, some of its source, and what replaces
    it; or the name of a bug of `tests.shells.bugs`.
    """

    story: str
    edit: tuple[Any, str, str] | str
    order: Order


_SHOWN = """            self._call(f"show {name}", methodcaller("commit", name))
            with self._names:  # after the commit: if it fails, later checkpoints must still name it
                self._transactions.published(name)
                self._receipts.pop(name, None)
"""
_SHOWN_LATER = """            with self._names:
                self._transactions.published(name)
                self._receipts.pop(name, None)
            self._call(f"show {name}", methodcaller("commit", name))
"""

_COUNTED = """        self._reserved_bytes -= count
        connection = self._connections.get(event.read.session)
        if connection is not None:
"""
_COUNTED_IF_THERE = """        connection = self._connections.get(event.read.session)
        if connection is not None:
            self._reserved_bytes -= count
"""

PLANTED = {
    "an ack that makes room does not wake the link": Planted(
        "a burst of 1 byte in flight",
        (MemberCopies._durability_ack, "        if limited:\n            self.wake()\n", ""),
        Shuffled(0),
    ),
    "a view counts answers by a record that has changed": Planted(
        "an inspection while the record changes",
        (Store.inspect, "self.record.generation == generation and not", "not"),
        Shuffled(1),
    ),
    "a vote during a commit leaves the transaction out": Planted(
        "votes and commits",
        (TwoPhaseWriter.publish, _SHOWN, _SHOWN_LATER),
        Moved("takes the output #7", math.inf),
    ),
    "a reader acknowledges what it has not recorded": Planted(
        "a reader of a replica",
        (ReplicaStream._passed_positions, "self._merge.safe_mark", "self._merge.mark"),
        Shuffled(94),
    ),
    "a sync covers what is written before its end": Planted(
        "a power cut", "sync_begins_when_it_ends", Moved("a continues #2", 2)
    ),
    "syncs that have begun end with the connection": Planted(
        "a reset", "syncs_go_with_the_connection", Moved("the connection is reset #1", 23)
    ),
    "a commit is announced before it is stored": Planted(
        "votes and resets",
        (
            ManifestLog.append,
            "await writer.wait_synced(writer.append(checkpoint_record(checkpoint)))",
            "writer.append(checkpoint_record(checkpoint))",
        ),
        Slowed(0),
    ),
    "a read for a reader that has left stays in the limit": Planted(
        "readers leave", (PacedReads._ended, _COUNTED, _COUNTED_IF_THERE), Slowed(0)
    ),
    "a claim is granted before it is stored": Planted(
        "claims and a power cut", "claims_are_answered_before_they_are_stored", Shuffled(22)
    ),
}


@contextmanager
def _planted(edit: tuple[Any, str, str] | str) -> Iterator[None]:
    with planted(edit) if isinstance(edit, str) else edited(*edit):
        yield


@pytest.mark.parametrize("name", PLANTED)
def test_another_order_than_the_usual_one_shows_a_planted_bug(name: str) -> None:
    story, edit, order = PLANTED[name]
    play(STORIES[story][0], order)  # it is the bug that fails, not the order
    with _planted(edit):
        play(STORIES[story][0], Usual())
        try:
            play(STORIES[story][0], order)
        except OrderError:
            return
        with pytest.raises(OrderError):  # the code has changed: record the order that it prints
            explore(STORIES[story][0], 200)
