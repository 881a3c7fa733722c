"""The text of a driver's events, for the trace."""

from typing import TYPE_CHECKING

from checkpoint.core.region import (
    CheckpointCommitted,
    FellBack,
    ReplaceSettled,
    RestoreSettled,
    StateChanged,
    WorkerLost,
)

if TYPE_CHECKING:
    from tests.sim.regions.base import RegionBase


def record_event(region: "RegionBase", event: object) -> str:
    """Count a change of the region's state. Return the text of an event, '' if it has none."""
    if isinstance(event, StateChanged):
        region.saw(f"region: {event.state.name}")
        return f"{event.state.name} {event.reason}"
    if isinstance(event, CheckpointCommitted):
        return f"checkpoint {event.checkpoint} at step {event.step} is committed"
    if isinstance(event, WorkerLost):
        return f"worker {event.worker} is lost: {event.reason}"
    if isinstance(event, ReplaceSettled):
        region.saw("workers are replaced" if event.replaced else "no worker is replaced")
        return str(event)
    if isinstance(event, FellBack):
        region.saw("a region fell back")
        return str(event)
    if isinstance(event, RestoreSettled):
        region.saw("a restore is refused" if event.error else "a checkpoint is restored")
        return f"{event.to}: {event.error or 'restored'}"
    return ""
