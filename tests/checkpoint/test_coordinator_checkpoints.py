"""The coordinator commits checkpoints: when one is requested, which votes count, what commits it."""

import pytest

from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
    CheckpointWanted,
    NotifyObservers,
    SendControl,
)
from checkpoint.core.links.messages import (
    Committed,
    RequestCheckpoint,
    Restore,
    Restored,
    Vote,
    WantsCheckpoint,
)
from checkpoint.core.progress import status_json, under_way_text
from checkpoint.core.records.manifest import WorkerCheckpoint
from checkpoint.core.region import CheckpointCommitted
from journal.core.chain import Position
from tests.checkpoint.coordinator_harness import CoordinatorHarness


def test_a_checkpoint_commits_only_by_the_acknowledged_append_after_every_vote() -> None:
    # EVIDENCE-OF: P-6
    region = CoordinatorHarness().run()
    region.progress(0, step=3)
    region.tick(1)
    assert [order.checkpoint for _, order in region.sent(RequestCheckpoint)] == [1, 1]
    region.vote(0, 1)
    assert region.take(AppendCheckpoint, SendControl) == []
    region.vote(1, 1)
    (append,) = region.take()
    assert isinstance(append, AppendCheckpoint)
    checkpoint = append.checkpoint
    assert (
        checkpoint.number,
        checkpoint.step,
        checkpoint.incarnation,
        checkpoint.parent,
        sorted(checkpoint.workers),
    ) == (1, 5, 1, 0, [0, 1])
    assert region.core.status().last_checkpoint == 0
    region.play(CheckpointAppended(checkpoint))
    assert [(order.checkpoint, order.step) for _, order in region.sent(Committed)] == [(1, 5), (1, 5)]
    assert region.core.status().last_checkpoint == 1


def test_checkpoints_follow_one_another_never_two_at_a_time() -> None:
    region = CoordinatorHarness().run()
    region.progress(0, step=3)
    region.tick(1)
    region.tick(3)
    assert [order.checkpoint for _, order in region.sent(RequestCheckpoint)] == [1, 1]
    region.progress(0, step=9)
    for worker in (0, 1):
        region.vote(worker, 1, step=5)
    (append,) = region.take(AppendCheckpoint)
    region.tick(2)
    region.play(CheckpointWanted())
    assert region.sent(RequestCheckpoint) == []
    region.play(CheckpointAppended(append.checkpoint))
    assert [order.checkpoint for _, order in region.sent(RequestCheckpoint)] == [
        2,
        2,
    ]  # the time had come meanwhile


def test_an_idle_region_makes_no_checkpoints_but_a_user_can_have_one() -> None:
    region = CoordinatorHarness().run()
    region.tick(10)
    assert region.sent(RequestCheckpoint) == []
    region.play(CheckpointWanted())
    assert [order.checkpoint for _, order in region.sent(RequestCheckpoint)] == [1, 1]


def test_a_checkpoint_wanted_while_one_is_under_way_follows_it() -> None:
    region = CoordinatorHarness().run()
    region.play(CheckpointWanted())
    assert [order.checkpoint for _, order in region.sent(RequestCheckpoint)] == [1, 1]
    for _ in range(3):
        region.play(CheckpointWanted())
    for checkpoint in (1, 2):
        for worker in (0, 1):
            region.vote(worker, checkpoint, step=5)
        (append,) = region.take(AppendCheckpoint)
        region.play(CheckpointAppended(append.checkpoint))
        expected = [2, 2] if checkpoint == 1 else []  # nothing is new, and one is enough for all requests
        assert [order.checkpoint for _, order in region.sent(RequestCheckpoint)] == expected


def test_a_wanted_checkpoint_follows_a_reset() -> None:
    region = CoordinatorHarness().run()
    region.play(CheckpointWanted())
    assert [order.checkpoint for _, order in region.sent(RequestCheckpoint)] == [1, 1]
    region.die(1)
    region.opened()
    region.join(1, attempt=2)
    region.receive_from_all(Restored, last_step=0, incarnation=2)
    region.take()
    region.tick(1)
    assert [(order.checkpoint, order.incarnation) for _, order in region.sent(RequestCheckpoint)] == [
        (1, 2),
        (1, 2),
    ]


def test_where_operators_trigger_checkpoints_time_does_not_and_each_place_gets_one() -> None:
    region = CoordinatorHarness(trigger="operator").run()
    region.progress(0, step=3)
    region.tick(5)
    assert region.sent(RequestCheckpoint) == []
    region.receive(0, WantsCheckpoint, step=3)
    assert [order.checkpoint for _, order in region.sent(RequestCheckpoint)] == [1, 1]
    region.receive(1, WantsCheckpoint, step=6)
    assert region.sent(RequestCheckpoint) == [], "one at a time"
    for worker in (0, 1):
        region.vote(worker, 1, step=5)
    (append,) = region.take(AppendCheckpoint)
    region.play(CheckpointAppended(append.checkpoint))
    assert [order.checkpoint for _, order in region.sent(RequestCheckpoint)] == [2, 2], (
        "checkpoint 1 does not hold step 6"
    )
    for worker in (0, 1):
        region.vote(worker, 2, step=7)
    (append,) = region.take(AppendCheckpoint)
    region.play(CheckpointAppended(append.checkpoint))
    region.tick(5)
    assert region.sent(RequestCheckpoint) == []


def test_where_time_triggers_checkpoints_operators_may_request_more() -> None:
    region = CoordinatorHarness(checkpoint_interval_s=100.0).run()
    region.progress(0, step=1)
    assert region.sent(RequestCheckpoint) == []
    region.receive(0, WantsCheckpoint, step=3)
    region.tick(5)
    assert [order.checkpoint for _, order in region.sent(RequestCheckpoint)] == [1, 1]


def test_the_first_step_after_a_pause_is_checkpoint_at_once() -> None:
    region = CoordinatorHarness().run()
    region.tick(10)
    region.take()
    region.progress(0, step=1)
    assert [order.checkpoint for _, order in region.sent(RequestCheckpoint)] == [1, 1]
    for worker in (0, 1):
        region.vote(worker, 1, step=2)
    (append,) = region.take(AppendCheckpoint)
    region.play(CheckpointAppended(append.checkpoint))
    region.progress(0, step=3)
    assert region.sent(RequestCheckpoint) == []  # its time has not come yet


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"checkpoint": 1, "epoch": 3}, "STALE_INCARNATION"),
        ({"checkpoint": 1, "epoch": 5}, "FUTURE_INCARNATION"),
        ({"checkpoint": 2}, "STALE_CHECKPOINT"),
    ],
)
def test_a_vote_of_another_life_or_number_is_refused_by_name(fields, name) -> None:
    # EVIDENCE-OF: P-4
    region = CoordinatorHarness()
    region.epoch = 3
    region.run()
    assert region.epoch == 4
    region.play(CheckpointWanted())
    region.take()
    region.vote(0, **fields)
    region.vote(1, 1)
    effects = region.take()
    assert [effect.refusal.name for effect in effects] == [name]
    region.vote(0, 1)
    assert len(region.take(AppendCheckpoint)) == 1


def test_a_vote_whose_positions_are_of_another_epoch_is_refused() -> None:
    region = CoordinatorHarness().run()
    region.play(CheckpointWanted())
    region.take()
    positions = WorkerCheckpoint(state=Position(9, 1, 1), steps=Position(1, 1, 1))
    region.receive(0, Vote, checkpoint=1, step=5, positions=positions)
    region.vote(1, 1)
    assert [effect.refusal.name for effect in region.take()] == ["STALE_INCARNATION"]


def test_a_vote_of_an_earlier_incarnation_does_not_complete_the_same_number_in_this_one() -> None:
    # EVIDENCE-OF: P-6
    # worker 0 voted for checkpoint 1 in incarnation 1, worker 1 died before it did; checkpoint 1 is asked
    # for again
    region = CoordinatorHarness().run()
    region.play(CheckpointWanted())
    region.vote(0, 1, epoch=1)
    region.die(1)
    region.opened()
    region.join(1, attempt=2)
    region.receive_from_all(Restored, last_step=0)
    region.play(CheckpointWanted())
    region.take()
    region.vote(1, 1)
    region.vote(0, 1, epoch=1)  # once more, late
    assert region.take(AppendCheckpoint) == []
    region.vote(0, 1)
    (append,) = region.take(AppendCheckpoint)
    assert {part.state.epoch for part in append.checkpoint.workers.values()} == {2}


def test_a_worker_votes_once() -> None:
    region = CoordinatorHarness().run()
    region.play(CheckpointWanted())
    region.take()
    region.vote(0, 1, step=5)
    region.vote(0, 1, step=6)
    assert [effect.refusal.name for effect in region.take()] == ["UNEXPECTED"]


def test_votes_for_different_steps_make_no_checkpoint_and_stop_the_region() -> None:
    region = CoordinatorHarness().run()
    region.play(CheckpointWanted())
    region.vote(0, 1, step=5)
    region.vote(1, 1, step=6)
    assert region.take(AppendCheckpoint) == []
    assert "different steps: {0: 5, 1: 6}" in region.core.run.reason


def died_during_append():
    """A region whose worker 1 died while checkpoint 1 was appended to the manifest, and that append."""
    region = CoordinatorHarness().run()
    region.play(CheckpointWanted())
    for worker in (0, 1):
        region.vote(worker, 1)
    (append,) = region.take(AppendCheckpoint)
    region.die(1)
    return region, append


def test_an_acknowledgement_of_an_earlier_incarnation_commits_nothing() -> None:
    region, append = died_during_append()
    region.play(CheckpointAppended(append.checkpoint))
    assert region.sent(Committed) == []
    region.opened()
    region.join(1, attempt=2)
    region.receive_from_all(Restored, last_step=0)
    region.play(CheckpointWanted())
    for worker in (0, 1):
        region.vote(worker, 1)
    region.play(CheckpointAppended(append.checkpoint))  # of incarnation 1, while the same number is out in 2
    assert region.sent(Committed) == []
    assert region.core.status().last_checkpoint == 0


def test_a_checkpoint_in_doubt_that_is_in_the_manifest_is_restored_and_forgives() -> None:
    # EVIDENCE-OF: P-6
    region, append = died_during_append()
    region.take()
    region.opened(append.checkpoint)
    assert [e.event for e in region.take(NotifyObservers) if isinstance(e.event, CheckpointCommitted)] != []
    assert region.core.status().reset_attempts == 0
    region.join(1, attempt=2)
    assert [order.restore for _, order in region.sent(Restore)] == [append.checkpoint, append.checkpoint]
    region.receive_from_all(Restored, last_step=5)
    region.play(CheckpointWanted())
    assert [order.checkpoint for _, order in region.sent(RequestCheckpoint)] == [2, 2]


def test_the_status_says_what_a_checkpoint_that_is_under_way_waits_for() -> None:
    region = CoordinatorHarness(workers=5).run()
    assert region.core.status().under_way is None
    region.play(CheckpointWanted())
    region.progress(0, step=4, operator="enrich")
    region.progress(1, step=5)
    region.progress(2, step=5, waiting_for_store=True, waiting_reason="h2:1 is unavailable")
    region.progress(3, step=5, lag_bytes=70)
    region.progress(4, step=3)
    region.vote(1, 1)
    region.tick(2)
    under_way = region.core.status().under_way
    assert under_way is not None
    assert (under_way.checkpoint, under_way.seconds) == (1, 2)
    assert under_way.waits_for == {
        0: "it runs operator 'enrich', after step 4 of 5",
        2: "it waits for a quorum of the store: h2:1 is unavailable",
        3: "70 bytes of it are not synced, after step 5 of 5",
        4: "it waits for rows of other workers, after step 3 of 5",
    }
    assert str(region.core.status()).startswith(
        "WAITING_FOR_STORE, 5 workers, checkpoint 0; worker 2 waits for"
    )
    assert "; the next checkpoint waits for worker 0: it runs operator 'enrich', after" in str(
        region.core.status()
    )
    shown = status_json(region.core.status())["underWay"]
    assert under_way_text(shown).startswith("checkpoint 1 has waited 2.0 s for the vote of worker 0: it runs")
    for worker in (0, 2, 3, 4):
        region.vote(worker, 1)
    committing = status_json(region.core.status())["underWay"]
    assert under_way_text(committing) == "checkpoint 1 is being committed"
    (append,) = region.take(AppendCheckpoint)
    region.play(CheckpointAppended(append.checkpoint))
    assert region.core.status().under_way is None
