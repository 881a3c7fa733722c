"""Reports that a peer does not answer: when the coordinator counts that peer as lost."""

from typing import Any

import pytest

from checkpoint import limits
from checkpoint.core.coordination.vocabulary import (
    CancelWorker,
    LaunchWorker,
    MessageRefused,
    NotifyObservers,
)
from checkpoint.core.links.messages import CompanionReport, Suspects
from checkpoint.core.region import RegionState, WorkerLost
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.test_taking_over import FIRST, joins, reports, restored, running

SILENT = "it did not answer for 0.4 s"


def suspects(region: CoordinatorHarness, by: int, peer: int = 1, term: int = FIRST, **fields: Any) -> None:
    region.receive(by, Suspects, peer=peer, term=term, **{"reason": SILENT, **fields})


def lost(region: CoordinatorHarness) -> list[str]:
    """The reasons of the losses since the last call."""
    return [event.reason for event in reports(region, WorkerLost)]


def test_one_report_about_a_worker_that_lives_does_nothing() -> None:
    region = running()
    suspects(region, by=0)
    effects = region.take()
    assert not [one for one in effects if isinstance(one, CancelWorker | LaunchWorker | MessageRefused)]
    region.tick(1)
    suspects(region, by=0)
    assert lost(region) == []


def test_two_workers_that_report_a_third_one_make_it_lost() -> None:
    region = running()
    suspects(region, by=2)
    region.now += 1.0
    suspects(region, by=0)
    effects = region.take()
    assert [one for one in effects if isinstance(one, CancelWorker | LaunchWorker)] == [
        CancelWorker(1, 1),
        LaunchWorker(1, 2, host=0, host_link=100),
    ]
    events = [one.event for one in effects if isinstance(one, NotifyObservers)]
    assert [one.reason for one in events if isinstance(one, WorkerLost)] == [
        f"workers 0, 2 report that {SILENT}"
    ]
    joins(region, 1)
    restored(region)
    (report,) = region.core.status().resets
    assert (report.reason, report.term) == (
        f"worker 1 was lost: workers 0, 2 report that {SILENT}",
        FIRST + 1,
    )


def test_a_report_about_a_worker_that_is_silent_here_too_makes_it_lost() -> None:
    region = running()
    region.tick(1, silent=(1,))
    suspects(region, by=0)
    assert lost(region) == []
    region.now += limits.suspected_silent_s - 1.0 + 0.1
    suspects(region, by=0)
    (reason,) = lost(region)
    assert reason == f"worker 0 reports that {SILENT}, and it sent nothing for 1.6 s"
    assert region.state is RegionState.RUNNING


def test_one_worker_that_cannot_reach_another_one_for_long_has_it_replaced() -> None:
    """No step can end without the link between them."""
    region = running()
    found: list[str] = []
    while not found and region.now < 60.0:
        suspects(region, by=0)
        found = lost(region)
        region.tick(1)
    assert found == [f"worker 0 cannot reach it, although it lives: {SILENT}"]
    assert limits.suspects_alone_s < region.now <= limits.suspects_alone_s + 2.0


def test_reports_with_a_pause_between_them_are_counted_from_the_last_pause_on() -> None:
    region = running()
    for _ in range(4):
        suspects(region, by=0)
        region.tick(1)
    region.tick(2)  # the link is well again
    for _ in range(4):
        suspects(region, by=0)
        region.tick(1)
    assert lost(region) == [], "four seconds each"


def test_reports_of_two_workers_at_different_times_are_no_agreement() -> None:
    region = running()
    suspects(region, by=0)
    region.tick(2)
    suspects(region, by=2)
    assert lost(region) == []


def test_a_worker_that_reports_twice_is_no_second_reporter() -> None:
    region = running()
    suspects(region, by=0)
    suspects(region, by=0)
    assert lost(region) == []


def test_a_report_about_a_former_term_is_ignored() -> None:
    region = running()
    region.die(1)
    joins(region, 1)
    restored(region)
    region.take()
    for by in (0, 2):
        suspects(region, by=by, term=FIRST)
    assert lost(region) == []
    for by in (0, 2):
        suspects(region, by=by, term=FIRST + 1)
    assert lost(region) == [f"workers 0, 2 report that {SILENT}"], "of the present term it counts"


def test_a_report_about_a_worker_that_is_known_to_be_lost_is_ignored() -> None:
    region = running()
    region.die(1)
    region.take()
    for by in (0, 2):
        suspects(region, by=by, term=FIRST + 1)
    assert lost(region) == []
    joins(region, 1)
    assert region.state is RegionState.RUNNING


@pytest.mark.parametrize("peer", [-1, 3, 9])
def test_a_report_about_no_worker_is_refused(peer: int) -> None:
    region = running()
    suspects(region, by=0, peer=peer)
    (refused,) = region.take(MessageRefused)
    assert (refused.refusal.name, refused.refusal.text) == ("UNEXPECTED", f"worker 0 suspects worker {peer}")


def test_with_global_recovery_such_a_report_is_refused() -> None:
    region = CoordinatorHarness(3).run()
    for by in (0, 2):
        suspects(region, by=by, term=1)
    assert [one.refusal.name for one in region.take(MessageRefused)] == ["UNEXPECTED"] * 2
    assert region.state is RegionState.RUNNING


def test_a_report_of_an_earlier_incarnation_is_refused() -> None:
    region = running()
    suspects(region, by=0, incarnation=0)
    suspects(region, by=2, incarnation=0)
    assert [one.refusal.name for one in region.take(MessageRefused)] == ["STALE_INCARNATION"] * 2


@pytest.mark.parametrize("stopped", [False, True])
def test_a_worker_in_user_code_is_no_lost_one_if_its_companion_says_that_it_runs(stopped: bool) -> None:
    region = running()
    for _ in range(8):
        region.receive(1, CompanionReport, attempt=1, operator="regex", stopped=stopped)
        suspects(region, by=0)
        suspects(region, by=2)
        region.tick(1, silent=(1,))
    assert bool(lost(region)) == stopped


def test_a_worker_that_lives_and_that_nobody_reaches_is_replaced_although_its_companion_reports() -> None:
    region = running()
    for _ in range(8):
        region.receive(1, CompanionReport, attempt=1, operator="regex")
        suspects(region, by=0)
        suspects(region, by=2)
        region.tick(1)
    assert lost(region)
