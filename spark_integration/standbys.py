"""The stand-by jobs of one region: submitted, handed over to become workers, and ended.

`core/standbys.py` decides which ones run; `launcher.py` runs their jobs like those of workers. `StandbyLinks`
has the links of those that wait.
"""

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from checkpoint import RegionState
from checkpoint.coordinator.control import RegionControl
from spark_integration.core.standbys import StandbyJobs
from spark_integration.executors import Executors

logger = logging.getLogger("dos.spark_integration")


@dataclass(frozen=True, slots=True)
class StandbySettings:
    """How many stand-bys a region has, and what it must know for them."""

    count: int
    control: RegionControl
    shortage: Callable[[], str | None]
    """Returns why there is no slot for another stand-by, None if there is one. May block."""


def standby_tag(region: str, number: int) -> str:
    """Return the Spark job tag of a stand-by. It keeps this tag, and has no other, when it is a worker."""
    return f"dos:{region}:standby{number}"


class Standbys:
    """The stand-bys of one region; `settings` None: it has none. For the launcher's thread.

    `submit(number)` is called to start a job with a stand-by's tag, `cancel(tag)` to cancel it.
    """

    def __init__(
        self,
        region: str,
        settings: StandbySettings | None,
        executors: Executors,
        *,
        submit: Callable[[int], None],
        cancel: Callable[[str], None],
    ) -> None:
        self._region = region
        self._settings = settings
        self._executors = executors
        self._submit = submit
        self._cancel = cancel
        self._jobs = StandbyJobs(0 if settings is None else settings.count)

    @property
    def is_idle(self) -> bool:
        """Whether no stand-by runs. One that has become a worker is not counted here."""
        return self._jobs.is_idle

    @property
    def count(self) -> int:
        """How many stand-bys wait. May be called from any thread."""
        return len(self._waiting())

    def tag_of(self, worker: int, attempt: int) -> str | None:
        """Return the tag of the job in which this attempt runs, if that was a stand-by's; otherwise None."""
        number = self._jobs.number_of(worker, attempt)
        return None if number is None else standby_tag(self._region, number)

    def assign(self, worker: int, attempt: int, rejected: Collection[str]) -> bool:
        """Let a stand-by become an attempt of a worker. Return whether one does.

        rejected: tags of jobs whose hosts are not to be used. A stand-by that does not accept within
        `standby_answer_s` is canceled.
        """
        waiting = self._waiting()
        avoided = self._executors.hosts(rejected) if waiting else set()
        for number in waiting:
            tag = standby_tag(self._region, number)
            if avoided and avoided & self._executors.hosts([tag]):
                continue
            if not self._executors.leaving([tag]) and self._assign(number, worker, attempt):
                return True
            self._cancel_all(self._jobs.cancel([number]))
        return False

    def worker_submitted(self) -> None:
        """Cancel the stand-bys that do not wait yet, because a worker is submitted as a job of its own."""
        self._cancel_all(self._jobs.worker_submitted(self._waiting()))

    def ended(self, number: int, error: str | None) -> tuple[int, int] | None:
        """Note the end of a job. Return the attempt (worker, attempt) that it has become, None if none."""
        if number in self._jobs.live:
            logger.log(
                logging.WARNING if error else logging.INFO,
                "%s: stand-by %d ended: %s",
                self._region,
                number,
                error or "it is not needed",
            )
        self._executors.forget(standby_tag(self._region, number))
        return self._jobs.ended(number, time.monotonic())

    def look_for_leaving(self) -> None:
        """Cancel the stand-bys whose executors are being decommissioned. Others follow."""
        tags = {standby_tag(self._region, number): number for number in self._jobs.live}
        self._cancel_all(self._jobs.cancel([tags[tag] for tag in self._executors.leaving(tags)]))

    def tick(self) -> None:
        """Submit and cancel what is due. Call it every half second."""
        if self._settings is None:
            return
        now = time.monotonic()
        status = self._settings.control.status()
        self._cancel_all(self._jobs.tick(now, over=status.state.is_end))
        region_runs = status.state is RegionState.RUNNING and status.scaling is None
        if not region_runs or not self._jobs.is_due(now):
            return
        try:
            shortage = self._settings.shortage()
        except Exception:  # the SparkContext is stopped
            logger.debug("%s: cannot determine the free slots", self._region, exc_info=True)
            self._jobs.no_slot(now)
            return
        if shortage is None:
            self._submit(self._jobs.submit())
        elif self._jobs.no_slot(now):
            logger.warning("%s runs without a further stand-by: %s", self._region, shortage)

    def close(self) -> None:
        """Cancel all stand-bys."""
        self._cancel_all(self._jobs.cancel(self._jobs.live))

    def _waiting(self) -> list[int]:
        if self._settings is None:
            return []
        return [number for number in self._settings.control.standbys.numbers() if number in self._jobs.live]

    def _assign(self, number: int, worker: int, attempt: int) -> bool:
        assert self._settings is not None
        if not self._settings.control.standbys.assign(number, worker, attempt):
            return False
        logger.info("%s: stand-by %d becomes worker %d attempt %d", self._region, number, worker, attempt)
        self._jobs.assigned(number, worker, attempt)
        return True

    def _cancel_all(self, numbers: Collection[int]) -> None:
        for number in numbers:
            self._cancel(standby_tag(self._region, number))
