"""The savepoints of a region, as a person makes and drops them at random, and what must be true of them."""

from typing import TYPE_CHECKING

from checkpoint.core.coordination.vocabulary import SavepointWanted
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.region import SavepointSettled
from tests.sim.history import ViolationError

if TYPE_CHECKING:
    from tests.sim.regions.driver import Driver
    from tests.sim.regions.region import Region


class SavepointRequests:
    """The requests for savepoints of one region. `held`: name -> checkpoint of those that were acknowledged,
    until a person requests to drop them."""

    def __init__(self, region: "Region") -> None:
        self.held: dict[str, int] = {}
        self._region = region
        self._rng = region.stream("savepoints")
        self._requested = 0
        self._dropped: set[str] = set()

    def request(self, driver: "Driver") -> None:
        """Make a savepoint of the last checkpoint or of an earlier one now and then, or drop one."""
        drawn, committed = self._rng.random(), self._region.record.committed
        if drawn < 0.4 and committed:
            self._requested += 1
            numbers = [0, 0, *(checkpoint.number for checkpoint in committed[-2:-1])]
            driver.post(SavepointWanted(f"s{self._requested}", self._rng.choice(numbers)))
        elif drawn < 0.5 and self.held:
            name = self._rng.choice(sorted(self.held))
            del self.held[name]
            self._dropped.add(name)
            driver.post(SavepointWanted(name, on=False))

    def settled(self, event: SavepointSettled) -> None:
        """Note the answer to a request."""
        self._region.saw("a savepoint is settled" if not event.error else "a savepoint is refused")
        if not event.error and event.name not in self._dropped and event.name.startswith("s"):
            self.held[event.name] = event.checkpoint

    def check(self, last: Checkpoint) -> None:
        """Check that the last checkpoint of the manifest has the savepoints that were acknowledged."""
        for name, checkpoint in self.held.items():
            if last.savepoints.get(name) != checkpoint or checkpoint not in last.retained:
                raise ViolationError(
                    "O7",
                    f"savepoint {name} holds checkpoint {checkpoint}; checkpoint {last.number} has"
                    f" {last.savepoints}"
                    f" and retains {list(last.retained)}",
                )
