"""The coordinator's shell: listens for workers, keeps the manifest, and performs what `core/coordinator.py`
decides.

`RegionControl` is the thread-safe facade: it runs `run_coordinator` in a thread of its own.
"""

from collections.abc import Callable

from checkpoint.core.region import Launcher, RegionEvent, RegionSpec, RegionState, RegionStatus

Observer = Callable[[RegionEvent], None]
"""Called on the coordinator's thread for each event; must not block."""


class RegionControl:
    """A region, run in a thread of its own. Every method may be called from any thread.

        control = RegionControl(spec, observer=show)
        address = control.listen()                 # bound before any worker is launched
        control.start(launcher)                    # takes over the manifest, calls launcher.start(0..N-1,
        attempt) control.wait(timeout); control.status(); control.stop()

    The launcher calls `control.worker_ended(worker, attempt, error)` when a worker's process or task has
    ended.
    """

    def __init__(self, spec: RegionSpec, *, observer: Observer | None = None) -> None:
        raise NotImplementedError

    @property
    def address(self) -> tuple[str, int]:
        """Where workers dial, known after `listen`."""
        raise NotImplementedError

    def listen(self) -> tuple[str, int]:
        """Start the thread and bind the control listener. Raises BrokenConnectionError when no port is
        free.
        """
        raise NotImplementedError

    def start(self, launcher: Launcher) -> None:
        """Begin: manifest and workers. Returns at once."""
        raise NotImplementedError

    def status(self) -> RegionStatus:
        """A snapshot, at most one event old."""
        raise NotImplementedError

    def request_cut(self) -> int:
        """Ask for a cut now; returns its number (the pending one's, if one is under way; 0 if none can be
        had).
        """
        raise NotImplementedError

    def wait_cut(self, cut: int, timeout: float | None = None) -> bool:
        """Wait until a cut of that number or higher is committed. False at the time-out or the region's
        end.
        """
        raise NotImplementedError

    def reset(self) -> None:
        """Go back to the last committed cut now. Spends no attempt."""
        raise NotImplementedError

    def stop(self) -> None:
        """Take a last cut if the region runs, then stop all workers. Returns at once; `wait` for the end."""
        raise NotImplementedError

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end (FINISHED, STOPPED, FAILED, FENCED). False at the time-out. Raises nothing."""
        raise NotImplementedError

    def exception(self) -> Exception | None:
        """Why it FAILED or is FENCED (RegionFailedError, RegionFencedError, ...), else None."""
        raise NotImplementedError

    def worker_ended(self, worker: int, attempt: int, error: str | None) -> None:
        """For the launcher: this attempt's process or task is over."""
        raise NotImplementedError


async def run_coordinator(
    spec: RegionSpec, launcher: Launcher, *, observer: Observer | None = None
) -> RegionState:
    """Run a region until its end and return how it ended. The trio face of `RegionControl`."""
    raise NotImplementedError
