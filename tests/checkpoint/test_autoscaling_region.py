"""A region that changes its number of workers on its own, as the coordinator does it."""

from dataclasses import replace

import pytest

from checkpoint import limits
from checkpoint.core.coordination.vocabulary import (
    CoordinatorTick,
    LaunchWorker,
    NotifyObservers,
    PauseWanted,
    ScaleWanted,
    StoreWaiting,
    WorkerEnded,
)
from checkpoint.core.links.messages import Counters, Progress, Restored
from checkpoint.core.region import AutoScale, AutoScaleStatus, ScaleDecided, ScaleSettled
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.test_rescaling_region import commit, copied, paused, reopened, settled

MB = 1_000_000
SPEC = AutoScale(1, 4, window=10.0, cool_down=20.0)


def started(**fields: object) -> CoordinatorHarness:
    region = CoordinatorHarness(**{"autoscale": SPEC, **fields}).run()
    region.commit(1, step=5)
    return region


def load(region: CoordinatorHarness, seconds: int, *, busy: float, grows: int = 0, **more: object) -> None:
    """Seconds pass. Each worker is busy for this share of them, reads 1 MB/s, and leaves `grows` MB/s."""
    for _ in range(seconds):
        region.now += 1.0
        for worker, link in list(region.core.run.roster.linked(coming=True)):
            c = worker.counters
            counters = Counters(
                **{
                    "bytes_in": c.bytes_in + MB,
                    "busy_s": c.busy_s + 1,  # with the fixed cost of steps, which does not count
                    "load_s": c.load_s + busy,
                    "backlog_bytes": max(0, c.backlog_bytes) + grows * MB,
                    **more,
                }
            )
            region.receive(worker.index, Progress, link=link, counters=counters)
        region.play(CoordinatorTick(region.now))


def decided(region: CoordinatorHarness) -> list[ScaleDecided]:
    return [one.event for one in region.take(NotifyObservers) if isinstance(one.event, ScaleDecided)]


def status(region: CoordinatorHarness) -> AutoScaleStatus:
    found = region.core.status().autoscale
    assert found is not None
    return found


def completed(region: CoordinatorHarness, before: int, after: int) -> None:
    """The change under way is made."""
    for worker in range(before, after):
        region.join(worker, attempt=region.core.run.roster[worker].attempt)
    copied(region, after)
    number = region.core.run.last_number
    paused(region, before, checkpoint=number + 1, step=8 + number)
    reopened(region)
    for worker in range(after):
        region.receive(worker, Restored, last_step=8 + number)
    commit(region, after, checkpoint=number + 2, step=8 + number)
    assert region.core.changes.change is None


def test_it_requests_what_the_load_needs_as_a_user_would_and_reports_why() -> None:
    region = started()
    region.take()
    load(region, 10, busy=0.95)
    assert region.take(LaunchWorker) == []
    assert status(region).wanted is None
    assert "being measured" in status(region).reason
    load(region, 15, busy=0.95)
    assert [(one.present, one.wanted) for one in decided(region)] == [(2, 3)]
    assert region.core.status().scaling.workers == 3
    assert status(region).reason == "the region is going to 3 workers"
    last = str(status(region).decided)
    assert last.startswith("autoscale from 2 to 3 workers: the load needs 3 workers; load 95% of 2 workers")
    completed(region, 2, 3)
    region.take()
    load(region, 1, busy=0.95)
    assert status(region).next_s == SPEC.cool_down, "the cool-down begins when the change is settled"
    load(region, 19, busy=0.95)
    assert decided(region) == []
    load(region, 5, busy=0.95)
    assert [(one.present, one.wanted) for one in decided(region)] == [(3, 4)]


def test_a_lower_load_lets_workers_leave() -> None:
    region = started()
    region.take()
    load(region, 40, busy=0.1)
    assert [(one.present, one.wanted) for one in decided(region)] == [(2, 1)]
    completed(region, 2, 1)
    assert len(region.core.run.roster) == 1


def test_a_paused_region_or_one_that_waits_for_its_store_is_not_measured() -> None:
    region = started()
    load(region, 15, busy=0.95)
    region.play(PauseWanted(on=True))
    load(region, 30, busy=0.95)
    assert status(region).reason == "the region is paused"
    region.play(PauseWanted(on=False), StoreWaiting("s1 is unavailable"))
    load(region, 30, busy=0.95)
    assert status(region).reason == "the region waits for its store: s1 is unavailable"
    region.play(StoreWaiting(""))
    load(region, 9, busy=0.95)
    assert "being measured" in status(region).reason
    assert region.core.changes.change is None
    load(region, 5, busy=0.95, exhausted=True)
    assert status(region).reason == "all input is read"


def test_a_change_that_is_given_up_is_tried_again_only_after_the_cool_down() -> None:
    region = started()
    load(region, 25, busy=0.95)
    assert region.core.changes.change is not None
    region.take()
    region.play(WorkerEnded(2, 1, "no slot"), WorkerEnded(2, 2, "no slot"))
    (outcome,) = settled(region)
    assert outcome.given_up
    load(region, 12, busy=0.95)
    assert "the last change failed: worker 2 was lost: no slot; the load needs 3 workers" in (
        status(region).reason
    )
    assert region.core.changes.change is None
    load(region, 15, busy=0.95)
    assert [one.wanted for one in decided(region)] == [3]


def test_a_user_changes_the_number_and_the_policy_continues_from_there_after_the_cool_down() -> None:
    region = started()
    load(region, 5, busy=0.6)
    region.play(ScaleWanted(4))
    completed(region, 2, 4)
    region.take()
    load(region, 30, busy=0.1)
    assert decided(region) == [], "the window after the cool-down is not over"
    load(region, 10, busy=0.1)
    assert [one.wanted for one in decided(region)] == [1]


def test_a_user_goes_beyond_the_limits_and_the_policy_returns_to_them() -> None:
    region = started()
    region.play(ScaleWanted(6))
    completed(region, 2, 6)
    region.take()
    load(region, 25, busy=0.6)
    assert [(one.present, one.wanted) for one in decided(region)] == [(6, 4)]


def test_a_reason_to_change_nothing_is_reported_once() -> None:
    region = started(autoscale=AutoScale(1, 2, window=10.0, cool_down=20.0))
    region.take()
    load(region, 60, busy=1.0, grows=1)
    (held,) = decided(region)
    assert str(held).startswith(
        "autoscale keeps 2 workers: the load needs more than the maximum of 2 workers"
    )


def test_a_region_without_it_has_no_timer_and_a_new_region_begins_within_the_limits() -> None:
    region = CoordinatorHarness().run()
    assert not region.core.run.timers.running("autoscale")
    assert region.core.status().autoscale is None
    for policy, workers in ((AutoScale(3, 5), 3), (AutoScale(1, 1), 1), (AutoScale(1, 8), 2)):
        assert replace(region.spec, workers=None, autoscale=policy).first_workers == workers
    assert replace(region.spec, workers=None).first_workers == limits.workers_default == 2


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"workers": 5}, "workers=5 is outside of autoscale, 1 to 4 workers"),
        ({"keeps_workers": "'own' has no rule for it: it keeps files"}, "'own' has no rule for it"),
        ({"without_checkpoints": True}, "autoscale needs checkpoints"),
    ],
)
def test_a_region_that_cannot_be_scaled_is_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        started(**fields)


def test_the_answer_to_a_request_is_not_that_of_the_policy() -> None:
    region = started()
    load(region, 25, busy=0.95)
    region.take()
    region.play(ScaleWanted(4))
    assert settled(region) == [
        ScaleSettled(4, 2, "the region is already going to 3 workers: wait, or cancel that first")
    ]
