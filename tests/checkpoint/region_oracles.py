"""The oracles of the region model, checked at every effect:

- No order is sent before the manifest start of its incarnation is acknowledged, and none of another one.
- A cut enters the manifest only with every worker's vote of that incarnation, and with their positions.
- No two cuts have one number; one append at a time; Committed only after the acknowledgement.
- A Restore names the last checkpoint of the chain as it was taken over; at most one for each worker and
  incarnation.
"""

from typing import TYPE_CHECKING

from checkpoint.core.coordinator_vocabulary import AppendCut, SendControl
from checkpoint.core.manifest import Cut
from checkpoint.core.messages import Committed, RequestCut, Restore, Start
from checkpoint.core.region import RegionState
from tests.checkpoint.region_model_state import Driver, Manifest

if TYPE_CHECKING:
    from tests.checkpoint.region_model import RegionModel

ORDERS = (Restore, Start, RequestCut, Committed)


def check_sent(model: "RegionModel", driver: Driver, effect: SendControl) -> None:
    message = effect.message
    if not isinstance(message, ORDERS):
        return
    assert message.incarnation in driver.restored, "an order before its manifest start was acknowledged"
    assert message.incarnation == max(driver.restored), "an order of an incarnation that is over"
    if isinstance(message, Restore):
        assert message.restore == driver.restored[message.incarnation], "not the last checkpoint of the chain"
        key = (message.incarnation, message.worker)
        assert key not in model.restores, "two attempts of one worker in one incarnation"
        model.restores.add(key)
    if isinstance(message, Committed):
        assert (message.incarnation, message.cut) in driver.acknowledged, "sent before it was committed"


def check_append(model: "RegionModel", driver: Driver, cut: Cut) -> None:
    assert not any(isinstance(job, AppendCut) for job in driver.jobs), "two appends at a time"
    assert cut.incarnation == max(driver.restored)
    votes = model.votes.get((cut.incarnation, cut.cut), {})
    assert set(votes) == set(range(model.workers)), f"cut {cut.cut} without all votes of {cut.incarnation}"
    assert all(cut.workers[worker] == vote.positions for worker, vote in votes.items())
    assert {vote.step for vote in votes.values()} == {cut.step}


def check_manifest(manifest: Manifest) -> None:
    numbers = [cut.cut for cut in manifest.cuts]
    assert numbers == sorted(set(numbers)), f"cut numbers {numbers}"
    steps = [cut.step for cut in manifest.cuts]
    assert steps == sorted(steps)
    for before, cut in zip(manifest.cuts, manifest.cuts[1:], strict=False):
        assert cut.parent == before.cut, "a checkpoint that does not continue the last committed one"


def check_status(driver: Driver) -> None:
    status = driver.core.status()
    if driver.end is None:
        assert status.state is not RegionState.RUNNING or status.incarnation in driver.restored
        assert status.reset_attempts <= driver.core.state.spec.max_consecutive_reset_attempts + 1
