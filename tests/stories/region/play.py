"""A region of a story, and the next event in it.

After each step everything that can happen without a fault happens, in a fixed order, except what is held back
and the steps of workers, which the story controls.
"""

from typing import Any

from checkpoint.core.coordination.vocabulary import (
    CheckpointAppended,
    CoordinatorTick,
    Effect,
    ManifestLost,
    ManifestOpened,
    MessageRefused,
    SendControl,
)
from checkpoint.core.links.messages import Counters
from checkpoint.core.links.participation import ParticipantState, ParticipantTick
from tests.checkpoint.region_model import Driver, Process, RegionModel
from tests.stories.region.links import StoryLinks
from tests.stories.region.telling import Told, cut_in_words, performed, reported
from tests.stories.words import WrongStepError

_ACTIONS_MAX = 1_000


class StoryWorld(RegionModel):
    """The model, which tells what happens."""

    def __init__(self, workers: int, *, local: bool) -> None:
        super().__init__(workers, **({"recovery": "local"} if local else {}))
        self.told = Told()
        self.links = StoryLinks(lambda worker, text: self.told.say_of(worker, text)) if local else None
        self.hung: list[int] = []
        """The links of processes that are stopped."""

    def owner(self, driver: Driver) -> str:
        """Of which driver a worker is, where there are several."""
        return f"driver {driver.number + 1}'s " if len(self.drivers) > 1 else ""

    def feed(self, driver: Driver, event: Any) -> None:
        name = f"driver {driver.number + 1}"
        match event:
            case ManifestOpened(incarnation, last, _):
                goes_on = f"it continues from {cut_in_words(last)}"
                self.told.say(f"{name}'s start is acknowledged: incarnation {incarnation}; {goes_on}")
            case CheckpointAppended(checkpoint):
                self.told.say(
                    f"the manifest has checkpoint {checkpoint.number} on its quorum: it is committed"
                )
            case ManifestLost(_, held):
                self.told.say(f"the manifest refuses {name}: it is claimed with epoch {held}")
        super().feed(driver, event)

    def _perform(self, driver: Driver, effect: Effect) -> None:
        text, worker = performed(effect)
        if isinstance(effect, SendControl | MessageRefused):
            process = self._process(driver, effect.link)
            worker = process.worker if process is not None else None
        if text and worker is not None:
            self.told.say_of(worker, f"driver {driver.number + 1} {text}")
        elif text:
            self.told.say(f"driver {driver.number + 1} {text}")
        super()._perform(driver, effect)

    def _open(self, driver: Driver, job: Any) -> None:
        super()._open(driver, job)
        if driver.claim:
            self.told.say(f"driver {driver.number + 1} claims the manifest with epoch {driver.claim}")

    def deliver_to_worker(self, process: Process) -> None:
        if process.to_worker[0] is None:
            self.told.say_of(process.worker, "{} has lost its driver, and ends", self.owner(process.driver))
        super().deliver_to_worker(process)

    def carry_out(self, process: Process) -> None:
        order = process.core.orders[0]
        super().carry_out(process)
        if self.links is not None:
            self.links.ordered(process.worker, order)

    def work(self, process: Process) -> None:
        if process.link not in self.hung:
            before = process.step
            super().work(process)
            if self.links is not None and process.step > before:
                self.links.stepped(process.worker, process.step)

    def kill(self, process: Process) -> None:
        super().kill(process)
        if self.links is not None:
            self.links.gone(process.worker)

    def pass_a_second(self) -> None:
        """All send heartbeats and pings, except those that hang."""
        self.now += 1.0
        live = [one for one in self.processes if one.alive and one.joined and one.link not in self.hung]
        for process in live:
            self._participant(process, ParticipantTick(self.now, Counters(step=process.step)))
            if self.links is not None and (
                report := self.links.ping(process.worker, [p.worker for p in live])
            ):
                self.report(process, report)
        for driver in self.drivers:
            self.feed(driver, CoordinatorTick(self.now))

    def report(self, process: Process, message: Any, of: int | None = None) -> None:
        text = reported(message)
        if text:
            self.told.say_of(process.worker, text, self.owner(process.driver))
        super().report(process, message, of)


class Play:
    """The state of one story of a region. `held`: prefixes of names of actions that wait."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.world: StoryWorld
        self.held: list[str] = []

    def end(self) -> None:
        """Nothing runs on its own here."""

    def make(self, workers: int, *, local: bool = False) -> None:
        if not 1 <= workers <= 9:
            raise WrongStepError("a region has 1 to 9 workers here")
        self.world, self.held = StoryWorld(workers, local=local), []

    # Who is there

    def driver(self, number: int) -> Driver:
        if not 1 <= number <= len(self.world.drivers):
            raise WrongStepError(f"there is no driver {number} yet")
        driver = self.world.drivers[number - 1]
        if not driver.alive or driver.end is not None:
            raise WrongStepError(f"driver {number} has ended")
        return driver

    def worker(self, number: int) -> Process:
        """The newest living process of that worker."""
        living = [one for one in self.world.processes if one.alive and one.worker == number]
        if not living:
            raise WrongStepError(f"no process of worker {number} lives")
        return living[-1]

    def running(self) -> list[Process]:
        return [
            one for one in self.world.processes if one.alive and one.core.state is ParticipantState.RUNNING
        ]

    # What happens

    def settle(self) -> None:
        """Perform everything that can happen now, and its consequences; then print it."""
        for _ in range(_ACTIONS_MAX):
            action = next(
                (act for name, act in self.world.actions() if not name.startswith(("step ", *self.held))),
                None,
            )
            if action is not None:
                action()
            elif self.world.links is None or not self.world.links.advance():
                break
        else:
            raise AssertionError("it goes round in circles")
        self.told += self.world.told.lines()
        self.world.told = Told()
