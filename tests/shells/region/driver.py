"""The process of a coordinator: its real shell, listening, with a manifest and a request queue.

It does what `checkpoint.coordinator.control` does on its thread. The shell's events and effects are recorded.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from checkpoint.coordinator.shell import RegionShell, listening, run_region
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
    Effect,
    End,
    Event,
    ManifestOpened,
    OpenManifest,
    SendControl,
)
from checkpoint.core.region import RegionEvent, RegionSpec
from tests.shells.region.process import RegionProcess
from tests.sim.regions.events import record_event
from tests.sim.regions.launcher import Launcher

if TYPE_CHECKING:
    from tests.shells.region.region import ShellRegion


class RecordedShell(RegionShell):
    """The shell of a coordinator, whose events and effects are recorded."""

    def __init__(self, driver: "Driver", spec: RegionSpec) -> None:
        super().__init__(spec, driver.on_event)
        self._driver = driver

    def _handle(self, event: Event) -> None:
        region = self._driver.region
        if isinstance(event, ManifestOpened):
            region.guarded(region.record.started, event.incarnation, event.last_checkpoint)
        elif isinstance(event, CheckpointAppended):
            region.guarded(region.record.acknowledged, event.checkpoint)
        region.saw(f"event: {type(event).__name__}")
        super()._handle(event)

    def _perform(self, effect: Effect) -> None:
        region = self._driver.region
        if isinstance(effect, SendControl):
            region.guarded(region.record.sent, effect.message)
            region.saw(f"sent: {type(effect.message).__name__}")
        elif isinstance(effect, AppendCheckpoint):
            region.guarded(region.record.appended, effect.checkpoint, len(effect.checkpoint.layout.workers))
            region.saw("appends a checkpoint")
        elif isinstance(effect, OpenManifest):
            region.saw("manifest opens")
        super()._perform(effect)


class Driver(RegionProcess):
    """One coordinator process. `end`: its outcome, None while it runs."""

    kind = "driver"

    def __init__(self, region: "ShellRegion", name: str) -> None:
        super().__init__(region, name)
        self.spec = replace(region.spec, listen_host=name, job_key=self.rng.randbytes(32))
        self.shell = RecordedShell(self, self.spec)
        self.address = ("", 0)
        self.end: End | None = None
        self.launcher = Launcher(self)  # type: ignore[arg-type]

    async def work(self) -> None:
        async with listening(self.spec, self.shell) as self.address:
            self.end = await run_region(self.spec, self.shell, self.launcher)
        self.note(f"ends: {self.end.state.name}, {self.end.reason}")
        self.region.driver_ended(self.end)

    def on_event(self, event: RegionEvent) -> None:
        """Receive an event as the observer of the shell."""
        if text := record_event(self.region, event):
            self.note(text)

    # For the launcher, which is a part of this process

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Make the call in `seconds`, unless this process has ended by then."""
        self.cluster.later(seconds, partial(self._if_alive, call))

    def _if_alive(self, call: Callable[[], None]) -> None:
        if self.alive:
            call()

    def post(self, event: Event) -> None:
        self.shell.post(event)
