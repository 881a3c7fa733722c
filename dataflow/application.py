"""The handle of an application of several parts: the handle of a region, for all parts together.

It forwards calls to the parts and combines their results. A part that fails ends alone: the others continue
until they have read everything that it had published.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from checkpoint import AutoScale, RegionSpec, RegionStatus
from checkpoint.coordinator.control import RegionControl
from checkpoint.coordinator.listeners import RegionListener
from dataflow.graph.builder import Graph
from dataflow.graph.parts import GraphPart
from dataflow.handle import RegionEvents, RegionHandle, WorkerLauncher, start_part

if TYPE_CHECKING:
    from dos_ui.serving import PageServer


class Application:
    """Several parts that run concurrently. Every method may be called from any thread.

    `parts`: handle of each part by name, to control one alone. A listener gets the events of all parts; each
    report has the name of its part.
    """

    def __init__(
        self,
        name: str,
        parts: Mapping[str, RegionHandle],
        *,
        without_checkpoints: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name
        self.parts = dict(parts)
        self._without_checkpoints = without_checkpoints

    def __repr__(self) -> str:
        states = ", ".join(f"{name}: {status.state.value}" for name, status in self.status.items())
        return f"<Application {self.name}: {states}>"

    @property
    def status(self) -> dict[str, RegionStatus]:
        """A snapshot of the status of each part."""
        return {name: part.status for name, part in self.parts.items()}

    def serve_page(self, listen: str = "127.0.0.1:0") -> "PageServer":
        """Serve a web page of all parts and their store, as `RegionHandle.serve_page`."""
        first = next(iter(self.parts.values()))
        return first.serve_page(listen, beside=self.parts)

    @property
    def isActive(self) -> bool:  # noqa: N802  # Spark's name
        """Whether any part has not ended."""
        return any(not status.state.is_end for status in self.status.values())

    @property
    def lastProgress(self) -> dict[str, dict[str, Any] | None]:  # noqa: N802  # Spark's name
        """The report of each part's last committed checkpoint."""
        return {name: part.lastProgress for name, part in self.parts.items()}

    @property
    def recentProgress(self) -> dict[str, list[dict[str, Any]]]:  # noqa: N802  # Spark's name
        """The reports of each part's last checkpoints, oldest first."""
        return {name: part.recentProgress for name, part in self.parts.items()}

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802  # Spark's name
        """Wait until every part has ended, at most `timeout` seconds. Return whether all have.

        Raises the error of `exception()` as soon as a part is FAILED or FENCED; the other parts continue.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            failure = self.exception()
            if failure is not None:
                raise failure
            running = self._running()
            if not running:
                return True
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            running[0].wait(_POLL_S if left is None else min(left, _POLL_S))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every part has ended, successfully or not. Return False on timeout."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for part in self.parts.values():
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if not part.wait(left):
                return False
        return True

    def exception(self) -> Exception | None:
        """Return why the first FAILED or FENCED part ended so; None if there is none."""
        return next((error for part in self.parts.values() if (error := part.exception())), None)

    def stop(self) -> None:
        """Stop every part, upstream parts first.

        Each takes a final checkpoint, from which a later `run` continues.
        """
        for part in self.parts.values():
            part.stop()

    def checkpoint(self, timeout: float | None = None) -> dict[str, int]:
        """Commit a checkpoint in every consistent region that has not ended; return their numbers.

        Raises RegionFailedError for a region without a new checkpoint within `timeout` seconds.
        """
        return {
            name: part.checkpoint(timeout)
            for name, part in self.parts.items()
            if name not in self._without_checkpoints and not part.status.state.is_end
        }

    def addListener(self, listener: RegionListener) -> None:  # noqa: N802  # Spark's name
        """Send the events of every part to this listener from now on."""
        for part in self.parts.values():
            part.addListener(listener)

    def removeListener(self, listener: RegionListener) -> None:  # noqa: N802  # Spark's name
        """Send no more events to this listener."""
        for part in self.parts.values():
            part.removeListener(listener)

    def _running(self) -> list[RegionHandle]:
        return [part for part in self.parts.values() if not part.status.state.is_end]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)


_POLL_S = 0.2


def check_autoscale(
    parts: Sequence[GraphPart[Graph]], autoscale: AutoScale | None, workers: int | None
) -> None:
    """Raise ValueError, before anything is started, if a part cannot be scaled, or has too many workers."""
    if autoscale is None:
        return
    for part in parts:
        keeps = part.graph.plan().stored()["keeps_workers"]
        try:
            autoscale.check(workers, keeps, without_checkpoints=part.settings is None)
        except ValueError as error:
            raise ValueError(f"{part.name}: {error}") from None


def start_application(
    name: str,
    parts: Sequence[GraphPart[Graph]],
    make_launcher: Callable[[GraphPart[Graph], RegionSpec, RegionControl, RegionEvents], WorkerLauncher],
    **options: Any,
) -> RegionHandle | Application:
    """Start each part of an application as a region; if one cannot be started, end those that were.

    Returns the handle of the region, or an `Application` for several parts. `options` and errors: those of
    `start_part`; ValueError for `restore` of several parts, which have no checkpoint in common.
    """
    if options.get("restore") and len(parts) > 1:
        names = ", ".join(part.name for part in parts)
        raise ValueError(
            f"{name!r} has {len(parts)} regions, and each has its own checkpoints: stop it, and restore"
            f" them with `dos region restore --stopped` ({names})"
        )
    options |= {"application": name, "parts": tuple(part.name for part in parts)}
    with ExitStack() as undo:
        handles = {
            part.name: start_part(part, partial(make_launcher, part), undo, **options) for part in parts
        }
        undo.pop_all()
    if len(parts) == 1:
        return handles[parts[0].name]
    outside = frozenset(part.name for part in parts if part.settings is None)
    return Application(name, handles, without_checkpoints=outside)
