"""Progress of long work, on standard error: a bar on a terminal, else a line now and then.

Rules of this file: showing. What is told, and when, the work says."""

from types import TracebackType
from typing import Self

import trio
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from dos_client.cli.support import count_text

LINE_PAUSE_S = 1.0


class ProgressShown:
    """A context manager. `quiet`: shows nothing, for programs."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._last = (-LINE_PAUSE_S, "")
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        if self._console.is_terminal and not quiet:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task("", total=None)

    def tell(self, text: str, done: int, total: int = 0, phase: str = "") -> None:
        """So far: words, bytes done, of so many (0: not known). A new phase is told at once."""
        if self._bar is not None:
            self._bar.update(self._task, description=text, total=total or None, completed=done)
        elif not self._quiet and (
            trio.current_time() - self._last[0] > LINE_PAUSE_S or phase != self._last[1]
        ):
            self._last = (trio.current_time(), phase)
            of = f" of {count_text(total)}" if total else ""
            so_far = f", {count_text(done)}{of}" if done or total else ""
            self._console.print(f"{text}{so_far}", highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
