"""A region of real workers that counts ticks until it is stopped; and its driver as a process of its own:
`python -m tests.checkpoint.real_region STORE FOLDER` prints one JSON line for each event.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from checkpoint.coordinator.control import RegionControl
from checkpoint.core.region import CheckpointCommitted, RegionEvent, ResetReport, StateChanged
from dataflow import Graph, LogSink, RateSource, local
from tests.dataflow.fork_launcher import ForkLauncher
from tests.dataflow.test_region_processes import Watch, running

NAME = "ticks"


class RealRegion:
    """What tests of one region use: its control, its store, and what it has reported."""

    def __init__(self, control: RegionControl, watch: Watch, store: str) -> None:
        self.control, self.watch, self.store = control, watch, store

    def wait_for(self, reached: Callable[[], bool]) -> None:
        """Wait until something is so after an event."""
        self.watch.wait(lambda _: reached())

    def wait_checkpoints(self, count: int) -> None:
        """Wait for so many checkpoints more."""
        self.watch.checkpoints(self.checkpoints + count)

    @property
    def checkpoints(self) -> int:
        return sum(isinstance(event, CheckpointCommitted) for event in self.watch.events)

    @property
    def resets(self) -> list[ResetReport]:
        return [event for event in self.watch.events if isinstance(event, ResetReport)]


@contextmanager
def ticking(store: str, folder: Path, *, name: str = NAME, **fields: Any) -> Iterator[RealRegion]:
    """Run a region, and wait for its first checkpoint. fields: of its `RegionSpec`."""
    graph = Graph(name)
    graph.source("ticks", RateSource(200)).key_by("by_value", "value").count("counts").sink("out", LogSink())
    options: dict[str, Any] = {"checkpoint_interval": 0.3, "workers": 2, "fields": fields}
    with (
        mock.patch.object(local, "ProcessLauncher", ForkLauncher),
        running(graph, store, folder / name, **options) as (handle, watch),
    ):
        region = RealRegion(handle._control, watch, store)
        region.wait_checkpoints(1)
        yield region


def main(store: str, folder: str) -> None:
    def show(event: RegionEvent) -> None:
        if isinstance(event, CheckpointCommitted):
            print(json.dumps({"checkpoint": event.checkpoint}), flush=True)
        elif isinstance(event, StateChanged):
            print(json.dumps({"state": event.state.value}), flush=True)

    with ticking(store, Path(folder)) as region:
        region.watch.also = show
        region.control.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
