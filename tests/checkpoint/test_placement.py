"""Workers whose hosts cannot reach each other: which is moved, where it may join, when the region fails."""

import pytest

from checkpoint import limits
from checkpoint.core.coordination.vocabulary import CancelWorker, LaunchWorker, MessageRefused, SendControl
from checkpoint.core.coordination.workers import Placement
from checkpoint.core.links.messages import Failed, Restore, Restored, Stop
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.region import RegionState
from tests.checkpoint.coordinator_harness import CoordinatorHarness


def running(*hosts: str, **fields: object) -> CoordinatorHarness:
    """A region that runs with a worker on each of the hosts."""
    test = CoordinatorHarness(len(hosts), **fields)
    test.opened()
    for worker, host in enumerate(hosts):
        test.join(worker, host=host)
    test.receive_from_all(Restored, last_step=0)
    assert test.state is RegionState.RUNNING
    test.take()
    return test


def report(test: CoordinatorHarness, worker: int, peer: int) -> None:
    test.receive(worker, Failed, kind="unreachable", peer=peer, message=f"cannot reach h{peer}:4{peer}")


def reopen(test: CoordinatorHarness, last: Checkpoint | None = None) -> None:
    """Let the pause before the next incarnation pass; `last` is the last checkpoint in the manifest."""
    test.tick(1)
    test.opened(last)


def launched(test: CoordinatorHarness) -> list[LaunchWorker]:
    test.tick(1)
    return test.take(LaunchWorker)


def test_the_peer_is_launched_again_once_the_manifest_is_held() -> None:
    test = running("a", "b")
    report(test, 0, 1)
    assert not test.take(CancelWorker), "until the manifest is held, the old attempt may still commit"
    reopen(test)
    assert test.take(CancelWorker, LaunchWorker) == [CancelWorker(1, 1), LaunchWorker(1, 2)]


def test_a_worker_is_rejected_on_the_host_that_a_peer_could_not_reach() -> None:
    test = running("a", "b")
    report(test, 0, 1)
    reopen(test)
    launched(test)
    test.join(1, attempt=2, host="b")
    out = test.take()
    assert [one for one in out if isinstance(one, MessageRefused)]
    (stop,) = [one.message for one in out if isinstance(one, SendControl) and isinstance(one.message, Stop)]
    assert stop.reason == "a worker on b cannot reach worker 0 on a"
    assert launched(test) == [LaunchWorker(1, 3)]
    test.join(1, attempt=3, host="c")
    assert {link for link, _ in test.sent(Restore)} == {test.links[0], test.links[1]}


def test_the_worker_that_reaches_fewer_hosts_is_moved() -> None:
    test = running("a", "b", "c")
    report(test, 0, 1)
    reopen(test)
    launched(test)
    test.join(1, attempt=2, host="d")
    test.take()
    report(test, 0, 1)
    reopen(test)
    assert test.take(CancelWorker) == [CancelWorker(0, 1)], "host a reaches neither b nor d"


def test_workers_on_one_host_stay_there() -> None:
    test = running("a", "a")
    report(test, 0, 1)
    reopen(test)
    out = test.take()
    assert not [one for one in out if isinstance(one, CancelWorker)]
    assert len([one for one in out if isinstance(one, SendControl) and isinstance(one.message, Restore)]) == 2


def test_a_placement_is_accepted_after_many_rejections_and_kept_for_a_while() -> None:
    test = running("a", "b")
    report(test, 0, 1)
    reopen(test)
    for attempt in range(2, 2 + limits.placement_tries_max):
        launched(test)
        test.join(1, attempt=attempt, host="b")
        assert not test.take(CancelWorker), "it keeps its place, so that the next one gets another"
    launched(test)
    test.join(1, attempt=attempt + 1, host="b")
    assert len(test.sent(Restore)) == 2, "no other host seems to be available"
    report(test, 0, 1)
    reopen(test)
    assert not test.take(CancelWorker), "it was just found that there is no other host"


def test_the_region_outlasts_many_reports_and_fails_after_the_time_limit() -> None:
    test = running("a", "a", reset_timeout_s=60.0)
    last = test.commit()
    for _ in range(25):
        report(test, 0, 1)
        reopen(test, last)
        assert len(test.sent(Restore)) == 2
        test.tick(1)
    assert not test.core.run.over
    test.tick(20)
    report(test, 0, 1)
    status = test.core.status()
    assert test.core.run.over
    assert "no placement was found in which all workers reach each other" in status.reason
    assert "h1:41" in status.reason


def test_a_commit_ends_the_time_that_counts() -> None:
    test = running("a", "a", reset_timeout_s=60.0)
    report(test, 0, 1)
    reopen(test)
    test.receive_from_all(Restored, last_step=0)
    test.commit()
    test.tick(100)
    report(test, 0, 1)
    assert not test.core.run.over


def test_a_region_that_never_had_a_checkpoint_fails_soon() -> None:
    test = running("a", "a")
    report(test, 0, 1)
    reopen(test)
    test.tick(int(limits.unreachable_at_start_s))
    report(test, 0, 1)
    assert test.core.run.over


@pytest.mark.parametrize("peer", [-1, 2, 99])
def test_a_report_about_no_worker_is_a_plain_reset(peer: int) -> None:
    test = running("a", "b")
    report(test, 0, peer)
    reopen(test)
    assert not test.take(CancelWorker)
    assert test.core.rounds.attempts == 1


def test_hosts_count_as_separated_for_a_while_only() -> None:
    test = running("a", "b")
    workers = list(test.core.run.roster)
    placement = Placement()
    placement.report(workers[0], workers[1], 0.0)
    assert placement.rejects("b", [workers[0]], 1.0) is workers[0]
    assert placement.rejects("b", [workers[0]], limits.unreachable_counts_s) is None
    assert placement.rejects("c", [workers[0]], 1.0) is None


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "127.0.1.1", "localhost"])
def test_a_worker_whose_address_is_loopback_on_every_host_fails_the_region(address: str) -> None:
    test = CoordinatorHarness(2)
    test.opened()
    test.join(0, host="a")
    test.join(1, host="b", address=address)
    reason = f"worker 1 on b gave {address} as its address, which workers on other machines cannot reach"
    ordered = [one.message for one in test.take(SendControl)]
    assert [one.reason for one in ordered if isinstance(one, Stop)] == [reason, reason]
    assert not [one for one in ordered if isinstance(one, Restore)]


def test_workers_of_one_host_may_use_loopback() -> None:
    test = CoordinatorHarness(2)
    test.opened()
    for worker in (0, 1):
        test.join(worker, host="a", address="127.0.0.1")
    assert len([one for one in test.take(SendControl) if isinstance(one.message, Restore)]) == 2
