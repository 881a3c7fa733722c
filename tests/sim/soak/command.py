"""`./run sim --soak N`: the soaks, with their progress on the terminal, their report, an end on SIGTERM."""

import json
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final

from rich.console import Console

from tests.sim.history import ViolationError
from tests.sim.soak.run import Soak, soaking
from tests.support.growth import SAMPLES_MIN

SAMPLES: Final = 400
DISTURBED_EVERY: Final = 50
_SHOWN: Final = ("disk", "open files", "restart", "memory: ")
"""Beginnings of the figures in the table. Those of single containers are shown only if they grow."""
_SHOWN_EVERY_S: Final = 10.0


class SoakCommand:
    """Two soaks of half the checkpoints each, run in turns in one process: one with restarts, and a calm one.

    folder: where figures are written, also meanwhile, and plots at the end; None: nowhere. SIGTERM and SIGINT
    end it with what it has.
    """

    def __init__(
        self, checkpoints: int, *, seed: int, workers: int, folder: Path | None, errors: Console
    ) -> None:
        self._goal = max(checkpoints // 2, 1)
        self._folder = folder
        self._errors = errors
        self._stopped = False
        self._began = self._shown = time.monotonic()
        self._violation = ""
        sampled_every = max(self._goal // SAMPLES, DISTURBED_EVERY)
        self._runs = {
            name: Soak(
                seed,
                calm=name == "calm",
                workers=workers,
                disturbed_every=DISTURBED_EVERY,
                sampled_every=sampled_every,
            )
            for name in ("restarts", "calm")
        }

    def run(self) -> None:
        """Run both."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        try:
            self._advance()
        except ViolationError as error:
            self._violation = str(error)
        if self._folder is not None:
            self._write_all(self._folder)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._stopped = True

    def _advance(self) -> None:
        runs = list(self._runs.values())
        for run in runs:
            run.begin()
        while not self._stopped and any(run.commits < self._goal for run in runs):
            for run in runs:
                run.advance(self._goal)
            if time.monotonic() > self._shown + _SHOWN_EVERY_S:
                self._shown = time.monotonic()
                self._show_progress(runs)
                if self._folder is not None:
                    self._write_samples(self._folder)
        for run in runs:
            run.finish()

    def _show_progress(self, runs: list[Soak]) -> None:
        commits = max(sum(run.commits for run in runs), 1)
        left_s = (self._shown - self._began) / commits * (2 * self._goal - commits)
        grown = sum(len(run.samples.grown()) for run in runs if len(run.samples) >= SAMPLES_MIN)
        days = sum(run.env.now for run in runs) / 86_400
        parts = (
            f"{commits:,} of {2 * self._goal:,} checkpoints",
            f"{1000 * time.process_time() / commits:.1f} ms of CPU each",
            f"{days:.2f} days of virtual time",
            f"{sum(run.disturbances for run in runs):,} disturbances",
            f"{grown} figures grow",
            f"about {left_s / 60:.0f} minutes left",
        )
        self._errors.print(", ".join(parts), highlight=False, soft_wrap=True)

    def _write_samples(self, folder: Path) -> None:
        for name, run in self._runs.items():
            run.samples.write_json(folder / f"{name}.json")

    def _write_all(self, folder: Path) -> None:
        self._write_samples(folder)
        (folder / "report.json").write_text(json.dumps(self.report()), encoding="utf-8")
        for name, run in self._runs.items():
            if len(run.samples) >= SAMPLES_MIN:
                (folder / f"{name}.md").write_text(run.samples.table(), encoding="utf-8")
                run.samples.plot(folder / f"{name}.png", "checkpoints", _groups(run))

    @property
    def is_flat(self) -> bool:
        """Return whether the output is right and nothing grows, as far as that is known."""
        reports = [_report_of(run) for run in self._runs.values()]
        return not self._violation and all(one["enough"] and not one["grown"] for one in reports)

    def report(self) -> dict[str, Any]:
        """Return everything but the samples."""
        return {
            "violation": self._violation,
            "cpu_s": time.process_time(),
            "wall_s": time.monotonic() - self._began,
            **{name: _report_of(run) for name, run in self._runs.items()},
        }

    def show(self, console: Console) -> None:
        """Print the report."""
        for name, run in self._runs.items():
            _show_run(name, run, console)
        if self._violation:
            console.print(self._violation, highlight=False, soft_wrap=True)


def _report_of(run: Soak) -> dict[str, Any]:
    enough = len(run.samples) >= SAMPLES_MIN
    grown = run.samples.grown() if enough else []
    return {
        "checkpoints": run.commits,
        "rows": run.produced,
        "virtual_s": run.env.now,
        "disturbances": run.disturbances,
        "requests": run.verdicts,
        "samples": len(run.samples),
        "figures": len(run.samples.names()),
        "enough": enough,
        "grown": {one.name: [one.second, one.last] for one in grown},
    }


def _show_run(name: str, run: Soak, console: Console) -> None:
    report = _report_of(run)
    parts = (
        f"{name}: {run.commits:,} checkpoints in {run.env.now / 86_400:.2f} days of virtual time",
        f"{run.disturbances:,} disturbances",
        f"{report['figures']} figures",
        f"{report['samples']} samples",
    )
    console.print(", ".join(parts), highlight=False, soft_wrap=True)
    if not report["enough"]:
        text = f"too few samples to compare, at least {SAMPLES_MIN} are needed"
        console.print(text, highlight=False, soft_wrap=True)
        return
    grown = report["grown"]
    names = [figure for figure in run.samples.names() if figure in grown or figure.startswith(_SHOWN)]
    console.print(run.samples.table(names), highlight=False, soft_wrap=True)
    console.print(f"{len(grown)} figures grow" if grown else "nothing grows", highlight=False)


def _groups(run: Soak) -> dict[str, list[str]]:
    """Return the panels of a plot."""

    def named(begin: str, end: str = "") -> list[str]:
        return [name for name in run.samples.names() if name.startswith(begin) and name.endswith(end)]

    return {
        "bytes on stable storage, by directory": named("disk bytes"),
        "files on stable storage, by directory": named("disk files"),
        "open files": named("open files"),
        "requests of a restart": named("restart", "requests"),
        "objects in memory": named("memory: objects"),
        "figures that grow": [one.name for one in run.samples.grown()][:12],
    }


def soak(
    checkpoints: int,
    *,
    seed: int,
    workers: int,
    as_json: bool,
    folder: Path | None,
    console: Console,
    errors: Console,
) -> bool:
    """Run the soaks and print the report. Return whether everything is flat and the output is right."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with soaking():
        command = SoakCommand(checkpoints, seed=seed, workers=workers, folder=folder, errors=errors)
        command.run()
    if as_json:
        print(json.dumps(command.report()))
    else:
        command.show(console)
    return command.is_flat
