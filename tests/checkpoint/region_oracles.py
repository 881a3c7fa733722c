"""The oracles of the region model, checked at every effect:

- No order is sent before the manifest start of its incarnation is acknowledged, and none of another one.
- A checkpoint enters the manifest only with every worker's vote of that incarnation, and with their
  positions.
- No two checkpoints have one number; one append at a time; Committed only after the acknowledgement.
- A Restore names the last checkpoint of the chain as it was taken over; at most one for each worker and
  incarnation. With local recovery it may also take a worker over: in a higher term, from the checkpoint that
  was committed last, while no append is under way. What the lost process has voted is void.
"""

from typing import TYPE_CHECKING

from checkpoint.core.coordination.vocabulary import AppendCheckpoint, SendControl
from checkpoint.core.links.messages import Committed, RequestCheckpoint, Restore, Start
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.region import RegionState
from tests.checkpoint.region_model_state import Driver, Manifest

if TYPE_CHECKING:
    from tests.checkpoint.region_model import RegionModel

ORDERS = (Restore, Start, RequestCheckpoint, Committed)


def check_sent(model: "RegionModel", driver: Driver, effect: SendControl) -> None:
    message = effect.message
    if not isinstance(message, ORDERS):
        return
    assert message.incarnation in driver.restored, "an order before its manifest start was acknowledged"
    assert message.incarnation == max(driver.restored), "an order of an incarnation that is over"
    if isinstance(message, Restore):
        if message.takes_over:
            _check_take_over(model, driver, message)
        else:
            last = driver.restored[message.incarnation]
            assert message.restore == last, "not the last checkpoint of the chain"
        key = (message.epoch, message.worker)
        assert key not in model.restores, "two attempts of one worker in one incarnation or term"
        model.restores.add(key)
    if isinstance(message, Committed):
        assert (message.incarnation, message.checkpoint) in driver.acknowledged, (
            "sent before it was committed"
        )


def _check_take_over(model: "RegionModel", driver: Driver, order: Restore) -> None:
    assert not any(isinstance(job, AppendCheckpoint) for job in driver.jobs), "an append is not settled"
    opened, number = driver.restored[order.incarnation], order.incarnation
    committed = [checkpoint for incarnation, checkpoint in driver.acknowledged if incarnation == number]
    assert order.checkpoint == max(committed, default=opened.number if opened else 0), (
        "not the last committed one"
    )
    assert order.epoch > number
    for (incarnation, _), votes in model.votes.items():
        if incarnation == number:
            votes.pop(order.worker, None)  # those of the lost process are void


def check_append(model: "RegionModel", driver: Driver, checkpoint: Checkpoint) -> None:
    assert not any(isinstance(job, AppendCheckpoint) for job in driver.jobs), "two appends at a time"
    assert checkpoint.incarnation == max(driver.restored)
    if checkpoint.rewound:
        assert checkpoint.workers in [one.workers for one in model.manifest.checkpoints], (
            "nobody voted for these positions"
        )
        return
    votes = model.votes.get((checkpoint.incarnation, checkpoint.number), {})
    assert set(votes) == set(range(model.workers)), (
        f"checkpoint {checkpoint.number} without all votes of {checkpoint.incarnation}"
    )
    assert all(checkpoint.workers[worker] == vote.positions for worker, vote in votes.items())
    assert {vote.step for vote in votes.values()} == {checkpoint.step}


def check_manifest(manifest: Manifest) -> None:
    numbers = [checkpoint.number for checkpoint in manifest.checkpoints]
    assert numbers == sorted(set(numbers)), f"checkpoint numbers {numbers}"
    for before, checkpoint in zip(manifest.checkpoints, manifest.checkpoints[1:], strict=False):
        assert checkpoint.step >= before.step or checkpoint.rewound
        assert checkpoint.parent == before.number, (
            "a checkpoint that does not continue the last committed one"
        )


def check_status(driver: Driver) -> None:
    status = driver.core.status()
    if driver.end is None:
        assert status.state is not RegionState.RUNNING or status.incarnation in driver.restored
        assert status.reset_attempts <= driver.core.run.spec.max_consecutive_reset_attempts + 1
