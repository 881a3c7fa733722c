"""`./run python -m tests.soak`: real processes for a long time. Does anything grow?"""

import json
import logging
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer

from tests.soak.cast import Cast
from tests.support.growth import SAMPLES_MIN, Samples

LOOSE: Final = {
    "memory MiB": (1.15, 8.0),
    "restart s": (1.5, 1.0),
    "threads": (1.1, 4.0),
    "open files": (1.1, 4.0),
    "disk": (1.15, 5_000.0),
    "entries": (1.15, 10.0),
}
"""Limits by the beginning of a figure: (factor, slack). Moments of real processes differ more than those of
simulated ones: a sample may fall between the roll of a chain and the deletion of what it replaces, or into a
restart. A leak that stays below these limits in a run is found by a longer one.
"""
_PROGRESS_S: Final = 30.0
_SHOWN: Final = ("disk", "memory", "open files", "restart", "threads")


class Run:
    """One run. `samples`: what was sampled; `stopped`: it ended early, on a signal."""

    def __init__(self, minutes: float, *, sampled_s: float, disturbed_s: float) -> None:
        self.samples = Samples(LOOSE)
        self.stopped = False
        self.report: dict[str, Any] = {}
        self._seconds = 60 * minutes
        self._sampled_s = sampled_s
        self._disturbed_s = disturbed_s
        self._shown_s = 0.0

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        """End the run with what it has."""
        del number, frame
        self.stopped = True

    def go(self, folder: Path) -> None:
        """Run, with all data in `folder`. Raises what ends the region or the producer, and AssertionError if
        the region does not recover.
        """
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with Cast(folder) as cast:
            if not cast.commits.wait(1, 60.0):
                raise AssertionError("no checkpoint within 60 s")
            disturb_at = time.monotonic() + self._disturbed_s
            while not self.stopped and time.monotonic() < began + self._seconds:
                cast.check()
                if time.monotonic() >= disturb_at:
                    cast.disturb()
                    disturb_at = time.monotonic() + self._disturbed_s
                else:
                    cast.commits.wait(sys.maxsize, self._sampled_s)
                    self.samples.add(time.monotonic() - began, cast.sample())
                    self._show_progress(time.monotonic() - began, cast)
            self.report = {
                "seconds": round(time.monotonic() - began),
                "checkpoints": cast.commits.count,
                "rows": cast.sent,
                "requests": cast.requests,
                "restarts": {kind: [round(one, 2) for one in times] for kind, times in cast.restarts.items()},
                "samples": len(self.samples),
            }
        if len(self.samples) >= SAMPLES_MIN:
            self.report["grown"] = [one.name for one in self.samples.grown()]

    def _show_progress(self, seconds: float, cast: Cast) -> None:
        if seconds < self._shown_s + _PROGRESS_S:
            return
        self._shown_s = seconds
        grown = [one.name for one in self.samples.grown()] if len(self.samples) >= SAMPLES_MIN else []
        text = f"{seconds / 60:.1f} of {self._seconds / 60:g} minutes, {cast.commits.count:,} checkpoints"
        print(f"{text}, {cast.sent:,} rows, {len(grown)} figures grow: {', '.join(grown)}", file=sys.stderr)

    def table(self) -> str:
        """Return the table of what is sampled, and of entries that grow."""
        grown = {one.name for one in self.samples.grown()}
        return self.samples.table(
            name for name in self.samples.names() if name.startswith(_SHOWN) or name in grown
        )

    def plot(self, path: Path) -> None:
        """Write a PNG."""
        names = self.samples.names()
        groups = {
            title: [name for name in names if name.startswith(begin)]
            for title, begin in {
                "bytes on disk, by directory, three servers": "disk bytes",
                "files on disk, by directory, three servers": "disk files",
                "open files, by process": "open files",
                "memory, by process": "memory MiB",
                "seconds until the second checkpoint after a kill": "restart s",
            }.items()
        }
        self.samples.plot(path, "seconds", groups)


def main(
    minutes: Annotated[float, typer.Option(min=0.2, help="How long.")] = 10.0,
    sampled: Annotated[float, typer.Option(min=0.2, help="Seconds between samples.")] = 5.0,
    disturbed: Annotated[float, typer.Option(min=1.0, help="Seconds between disturbances.")] = 10.0,
    data: Annotated[
        Path | None, typer.Option(help="A new directory for all data; default: temporary.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write the figures and the table to this directory.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG of the figures.")] = None,
    in_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Run a region on real servers, disturb it, and report whether anything grows: bytes and files on disk,
    open files, memory, entries of the driver's containers, the time of a restart.

    The rule: the median of the last quarter of a run must not exceed the maximum of its second quarter by
    more than a tolerance (tests/support/growth.py).

    ./run python -m tests.soak --minutes 60 --report out --plot out.png

    Exit codes: 0 nothing grows; 1 something grows, or the region failed; 2 usage. SIGTERM ends the run with
    what it has.
    """
    logging.basicConfig(level=logging.ERROR)
    run = Run(minutes, sampled_s=sampled, disturbed_s=disturbed)
    signal.signal(signal.SIGTERM, run.stop)
    signal.signal(signal.SIGINT, run.stop)
    with tempfile.TemporaryDirectory(prefix="dos-soak-") as temporary:
        run.go(Path(temporary) if data is None else data)
    if len(run.samples) < SAMPLES_MIN:
        print(f"{len(run.samples)} samples are too few, at least {SAMPLES_MIN} are needed", file=sys.stderr)
        sys.exit(1)
    if report is not None:
        report.mkdir(parents=True, exist_ok=True)
        run.samples.write_json(report / "figures.json")
        (report / "table.md").write_text(run.table(), encoding="utf-8")
        (report / "report.json").write_text(json.dumps(run.report), encoding="utf-8")
    if plot is not None:
        run.plot(plot)
    print(json.dumps(run.report) if in_json else f"{run.table()}\n\n{run.report}")
    sys.exit(1 if run.report["grown"] else 0)


if __name__ == "__main__":
    typer.run(main)
