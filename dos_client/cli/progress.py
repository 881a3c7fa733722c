"""Progress of long work on standard error: a bar on a terminal, otherwise at most a line per second."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import trio
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from dos_client.cli.kit import count_text

LINE_PAUSE_S = 1.0


class ProgressDisplay:
    """Shows progress while it is entered. `quiet` shows nothing; `lines=False` shows nothing off a terminal.

    The bar is removed when the work ends. Lines are timed by trio's clock, so they need a trio run; so does
    `after_s`, the seconds without any progress at the beginning.
    """

    def __init__(self, *, quiet: bool, lines: bool = True, after_s: float = 0.0) -> None:
        self._quiet = quiet or not lines
        self._from_s = trio.current_time() + after_s if after_s else 0.0
        self._last = (-LINE_PAUSE_S, "")
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        if self._console.is_terminal and not quiet:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=None)

    def show(self, text: str, done: int, total: int = 0, phase: str = "") -> None:
        """Show the text, with bytes done and in all (0: not known). A new phase is shown at once."""
        if self._from_s and trio.current_time() < self._from_s:
            return
        if self._bar is not None:
            self._bar.start()  # does nothing to a bar that is started
            self._bar.update(self._task, description=text, total=total or None, completed=done)
        elif not self._quiet and (
            trio.current_time() - self._last[0] > LINE_PAUSE_S or phase != self._last[1]
        ):
            self._last = (trio.current_time(), phase)
            of = f" of {count_text(total)}" if total else ""
            so_far = f", {count_text(done)}{of}" if done or total else ""
            self._console.print(f"{text}{so_far}", highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._bar is not None and not self._from_s:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def bar_of(text: str, *, quiet: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a function that moves a bar: bytes done, and in all if known. Shows nothing off a terminal."""
    with ProgressDisplay(quiet=quiet, lines=False) as display:
        yield lambda done, total: display.show(text, done, total or 0)
