"""Requests that a region settles later, for the threads that wait: savepoints, restores, changes of the
workers.
"""

import threading
from collections.abc import Callable
from typing import TypeAlias

from checkpoint.core.coordination.vocabulary import ReplaceWanted, RestoreWanted, SavepointWanted, ScaleWanted
from checkpoint.core.records.layout import workers_text
from checkpoint.core.records.manifest import savepoint_name_problem
from checkpoint.core.region import (
    ReplaceSettled,
    RestoreSettled,
    SavepointSettled,
    ScaleSettled,
    replaced_text,
)
from checkpoint.errors import NotReplacedError, NotScaledError, RegionFailedError, RestoreRefusedError
from dos_client import randomness
from dos_protocol.errors import LocalProtocolError

Wanted: TypeAlias = SavepointWanted | RestoreWanted | ScaleWanted | ReplaceWanted
Settled: TypeAlias = SavepointSettled | RestoreSettled | ScaleSettled | ReplaceSettled
_Key: TypeAlias = tuple[str, str | int | None]


class Outcomes:
    """The requests of one region that wait for their outcome.

    changed: notified of each outcome, and when the region is over; hold it for `note`. post: passes a request
    to the coordinator. end_text: how the region ended, '' while it has not; called with `changed` held.
    """

    def __init__(
        self,
        region: str,
        changed: threading.Condition,
        post: Callable[[Wanted], None],
        end_text: Callable[[], str],
    ) -> None:
        self._region = region
        self._changed = changed
        self._post = post
        self._end_text = end_text
        self._settled: dict[_Key, Settled] = {}

    def note(self, event: Settled) -> None:
        """Note an outcome."""
        for key in _keys_of(event):
            self._settled[key] = event
        self._changed.notify_all()

    def savepoint(self, wanted: SavepointWanted, timeout: float | None) -> int:
        """Make or drop a person's savepoint; return its checkpoint. Raises LocalProtocolError, also for a
        reserved name, and RegionFailedError.
        """
        if wanted.on and (problem := savepoint_name_problem(wanted.name)) != "":
            raise LocalProtocolError(f"region {self._region}: {problem}")
        self._check_numbers("a checkpoint", wanted.checkpoint)
        outcome = self._wait(wanted, ("savepoint", wanted.name), timeout)
        if not isinstance(outcome, SavepointSettled):
            raise RegionFailedError(
                f"region {self._region} committed no checkpoint that records savepoint {wanted.name!r}"
            )
        if outcome.error:
            raise LocalProtocolError(f"region {self._region}: {outcome.error}")
        return outcome.checkpoint

    def restore(self, to: str, timeout: float | None, *, allow_republish: bool) -> RestoreSettled:
        """Restore an older checkpoint. Raises RestoreRefusedError, RegionFailedError."""
        outcome = self._wait(RestoreWanted(to, allow_republish), ("restore", to), timeout)
        if not isinstance(outcome, RestoreSettled):
            with self._changed:
                why = self._end_text() or "it is not known yet"
            raise RegionFailedError(f"region {self._region} may be restored to {to} or not: {why}")
        if outcome.error:
            raise RestoreRefusedError(f"region {self._region}: {outcome.error}")
        return outcome

    def scale(self, workers: int | None, timeout: float | None) -> ScaleSettled:
        """Change the number of workers, or give a change up. Raises NotScaledError, RegionFailedError."""
        if workers is not None:
            self._check_numbers("a number of workers", workers)
        outcome = self._wait(ScaleWanted(workers), ("scale", workers), timeout)
        if not isinstance(outcome, ScaleSettled):
            with self._changed:
                why = self._end_text() or "the change is still under way"
            raise RegionFailedError(f"region {self._region} has the workers that it had: {why}")
        if outcome.error and not (workers is None and outcome.given_up):
            raise NotScaledError(
                f"region {self._region} keeps {workers_text(outcome.workers)}: {outcome.error}"
            )
        return outcome

    def replace(self, workers: tuple[int, ...], timeout: float | None) -> ReplaceSettled:
        """Replace workers by other processes. Raises NotReplacedError, RegionFailedError."""
        self._check_numbers("a worker", *workers)
        by = randomness.fresh_id().hex()
        outcome = self._wait(ReplaceWanted(workers, by), ("replace", by), timeout)
        if not isinstance(outcome, ReplaceSettled):
            with self._changed:
                why = self._end_text() or "workers are still being replaced"
            raise RegionFailedError(f"region {self._region}: not all workers are replaced: {why}")
        if outcome.error:
            raise NotReplacedError(f"region {self._region}: {replaced_text(outcome)}")
        return outcome

    def _check_numbers(self, what: str, *values: object) -> None:
        """Raise LocalProtocolError here, and not an error of the driver's own thread, which would end it."""
        if wrong := [value for value in values if type(value) is not int]:
            raise LocalProtocolError(f"region {self._region}: {what} is an int, got {wrong[0]!r}")

    def _wait(self, wanted: Wanted, key: _Key, timeout: float | None) -> Settled | None:
        with self._changed:
            self._settled.pop(key, None)
        self._post(wanted)
        with self._changed:
            self._changed.wait_for(lambda: key in self._settled or self._end_text(), timeout)
            return self._settled.pop(key, None)


def _keys_of(event: Settled) -> list[_Key]:
    if isinstance(event, SavepointSettled):
        return [("savepoint", event.name)]
    if isinstance(event, RestoreSettled):
        return [("restore", event.to)]
    if isinstance(event, ReplaceSettled):
        return [("replace", event.by)]
    return [("scale", event.wanted), *([("scale", None)] if event.given_up else [])]
