"""The oracles of the region model, checked at every effect:

- No order is sent before the manifest start of its incarnation is acknowledged, and none of another one.
- A cut enters the manifest only with every worker's vote of that incarnation, and with their positions.
- No two cuts have one number; one append at a time; Committed only after the acknowledgement.
- A Restore names the last checkpoint of the chain as it was taken over; at most one for each worker and
  incarnation. With local recovery it may also take a worker over: in a higher term, from the checkpoint that
  was committed last, while no append is under way. What the lost process has voted is void.
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
        if message.takes_over:
            _check_take_over(model, driver, message)
        else:
            last = driver.restored[message.incarnation]
            assert message.restore == last, "not the last checkpoint of the chain"
        key = (message.epoch, message.worker)
        assert key not in model.restores, "two attempts of one worker in one incarnation or term"
        model.restores.add(key)
    if isinstance(message, Committed):
        assert (message.incarnation, message.cut) in driver.acknowledged, "sent before it was committed"


def _check_take_over(model: "RegionModel", driver: Driver, order: Restore) -> None:
    assert not any(isinstance(job, AppendCut) for job in driver.jobs), "an append is not settled"
    opened, number = driver.restored[order.incarnation], order.incarnation
    committed = [cut for incarnation, cut in driver.acknowledged if incarnation == number]
    assert order.cut == max(committed, default=opened.cut if opened else 0), "not the last committed one"
    assert order.epoch > number
    for (incarnation, _), votes in model.votes.items():
        if incarnation == number:
            votes.pop(order.worker, None)  # those of the lost process are void


def check_append(model: "RegionModel", driver: Driver, cut: Cut) -> None:
    assert not any(isinstance(job, AppendCut) for job in driver.jobs), "two appends at a time"
    assert cut.incarnation == max(driver.restored)
    if cut.rewound:
        assert cut.workers in [one.workers for one in model.manifest.cuts], "nobody voted for these positions"
        return
    votes = model.votes.get((cut.incarnation, cut.cut), {})
    assert set(votes) == set(range(model.workers)), f"cut {cut.cut} without all votes of {cut.incarnation}"
    assert all(cut.workers[worker] == vote.positions for worker, vote in votes.items())
    assert {vote.step for vote in votes.values()} == {cut.step}


def check_manifest(manifest: Manifest) -> None:
    numbers = [cut.cut for cut in manifest.cuts]
    assert numbers == sorted(set(numbers)), f"cut numbers {numbers}"
    for before, cut in zip(manifest.cuts, manifest.cuts[1:], strict=False):
        assert cut.step >= before.step or cut.rewound
        assert cut.parent == before.cut, "a checkpoint that does not continue the last committed one"


def check_status(driver: Driver) -> None:
    status = driver.core.status()
    if driver.end is None:
        assert status.state is not RegionState.RUNNING or status.incarnation in driver.restored
        assert status.reset_attempts <= driver.core.state.spec.max_consecutive_reset_attempts + 1
