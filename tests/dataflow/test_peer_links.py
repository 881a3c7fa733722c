"""Workers whose links break, and which are taken over: each step is used once, in order, and nothing waits
for ever. One end of a link is in `test_one_peer_link.py`.
"""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import LinkHello
from checkpoint.core.links.barrier import Alignment
from checkpoint.errors import ChannelFrameError
from dataflow.core.peer_links import Admission, PeerLinks, Records, Sent
from dataflow.errors import StepsMissingError
from dos_protocol.errors import RemoteProtocolError
from tests.dataflow.linked_workers import (
    INCARNATION,
    ToyRegion,
    ToyWorker,
)
from tests.support.census import census

Fault = tuple[str, int, int]
_faults = st.tuples(
    st.integers(0, 150),
    st.tuples(st.sampled_from(["take over", "break", "commit"]), st.integers(0, 2), st.integers(0, 1)),
)


def happen(region: ToyRegion, rng: random.Random, count: int) -> Counter[str]:
    """Let things happen in a random order, while the circuit of at most one worker sleeps. Return how often
    each kind of thing did.
    """
    seen: Counter[str] = Counter()
    asleep = rng.randint(0, len(region.workers))
    resting = (f"worker {asleep} produces", f"worker {asleep} runs")
    for _ in range(count):
        happenings = [one for one in region.happenings() if not one[0].startswith(resting)]
        if not happenings:
            break
        name, act = rng.choice(happenings)
        seen[name] += 1
        region.perform(act)
    return seen


def meet(region: ToyRegion, fault: Fault) -> None:
    kind, number, other = fault
    workers = len(region.workers)
    worker = number % workers
    if kind == "take over":
        region.take_over(worker)
    elif kind == "break":
        region.break_link(worker, (worker + 1 + other) % workers)
    else:
        region.commit()


@given(st.integers(2, 3), st.lists(_faults, max_size=10), st.integers(0, 2**32))
def test_every_step_is_used_once_and_in_order_whatever_breaks_and_whoever_is_taken_over(
    workers: int, faults: list[tuple[int, Fault]], seed: int
) -> None:
    """`ToyWorker.run` compares each step, and `Alignment` raises beyond its limit."""
    region, rng = ToyRegion(workers, last=12), random.Random(seed)
    for pause, fault in faults:
        happen(region, rng, pause)
        meet(region, fault)
    region.finish()
    assert [worker.done for worker in region.workers] == [[12, 12, 12]] * workers
    region.commit()
    for worker in region.workers:
        region.deliver_messages(worker.index)
    for worker in region.workers:
        retained = worker.links.retained
        assert (retained.purged, retained.bytes, retained.end - retained.begin) == (12, 0, 0)


def test_links_hold_as_much_after_the_checkpoint_of_many_steps_as_after_that_of_few() -> None:
    def held(steps: int) -> dict[str, int]:
        region = ToyRegion(3, last=steps)
        region.finish()
        region.commit()
        for worker in region.workers:
            region.deliver_messages(worker.index)
        return census([worker.links for worker in region.workers])

    assert held(40) == held(10)


def random_run(seed: int) -> Counter[str]:
    """Such a run, with faults in a fixed proportion."""
    rng = random.Random(seed)
    region = ToyRegion(2, last=15)
    seen: Counter[str] = Counter()
    for _ in range(5):
        seen += happen(region, rng, rng.randint(0, 250))
        meet(region, (rng.choice(["commit", "take over", "break"]), rng.randint(0, 1), 0))
    region.finish()
    return seen


def random_runs(count: int) -> Counter[str]:
    return sum((random_run(seed) for seed in range(count)), Counter())


def test_the_runs_have_what_the_rules_are_for() -> None:
    seen = random_runs(20)
    for name in (
        "worker 0 gets View of worker 1",
        "worker 0 gets Committed",
        "worker 0 to worker 1: is refused",
        "worker 1 decides on a link",
        "worker 1 runs stage 2",
    ):
        assert seen[name] > 0, name


def what_was_not_used_is_kept() -> AbstractContextManager[Any]:
    return mock.patch.object(Alignment, "restart", lambda self, sender: self.step - 1)


def retained_steps_are_sent_without_a_limit() -> AbstractContextManager[Any]:
    return mock.patch("dataflow.core.peer_links.steps_ahead", 1_000_000)


def newer_terms_do_not_wait() -> AbstractContextManager[Any]:
    original = PeerLinks.admits

    def admits(self: PeerLinks, hello: LinkHello) -> Admission:
        found = original(self, hello)
        return Admission.NOW if found is Admission.LATER else found

    return mock.patch.object(PeerLinks, "admits", admits)


def steps_are_purged_when_they_are_done_here() -> AbstractContextManager[Any]:
    original = ToyWorker.run

    def run(self: ToyWorker, stage: int) -> None:
        original(self, stage)
        self.committed(self.done[2])

    return mock.patch.object(ToyWorker, "run", run)


def steps_that_are_made_again_are_not_retained() -> AbstractContextManager[Any]:
    original = PeerLinks.add

    def add(self: PeerLinks, sent: Sent, records: Records, *, produces: bool) -> None:
        again = self.term > INCARNATION and sent.step <= self.peers_at
        original(self, Sent(sent.step, {}) if again else sent, records, produces=produces)

    return mock.patch.object(PeerLinks, "add", add)


def what_was_sent_before_is_not_sent_again() -> AbstractContextManager[Any]:
    """The place in the queue is kept over links."""
    original = PeerLinks._connected

    def connected(self: PeerLinks, peer: int, have: Any) -> None:
        place = self._outgoing[peer].place
        original(self, peer, have)
        self._outgoing[peer].place = place

    return mock.patch.object(PeerLinks, "_connected", connected)


@pytest.mark.parametrize(
    "bug",
    [
        what_was_not_used_is_kept,
        retained_steps_are_sent_without_a_limit,
        newer_terms_do_not_wait,
        steps_are_purged_when_they_are_done_here,
        steps_that_are_made_again_are_not_retained,
        what_was_sent_before_is_not_sent_again,
    ],
    ids=lambda bug: bug.__name__,
)
def test_the_runs_find_a_planted_bug(bug: Callable[[], AbstractContextManager[Any]]) -> None:
    with bug(), pytest.raises((AssertionError, RemoteProtocolError, ChannelFrameError, StepsMissingError)):
        random_runs(60)
