"""What the demo shows while it runs: a live table in a terminal, plain lines anywhere else.

The demo calls `happened(text)` for an event, which is a line, and `show(Picture)` several times a second for
figures that change all the time.
"""

import sys
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

PLAIN_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class WorkerPicture:
    index: int
    state: str
    pid: int
    attempt: int
    step: int
    lag_bytes: int


@dataclass(frozen=True, slots=True)
class Picture:
    """The current state, as displayed."""

    state: str = "STARTING"
    words: int = 0
    words_per_s: float = 0.0
    step: int = 0
    checkpoint: int = 0
    incarnation: int = 0
    workers: tuple[WorkerPicture, ...] = ()
    servers: tuple[tuple[str, str], ...] = field(default=())
    """(name, its status)."""


class Display:
    """The display; a context manager. The live table disappears at its end, the lines stay."""

    def __init__(self, *, plain: bool = False) -> None:
        self._console = Console(highlight=False)
        self._live: Live | None = None
        if self._console.is_terminal and not plain:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._started = time.monotonic()
        self._displayed_at = 0.0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def happened(self, text: str, style: str = "") -> None:
        """Write one line, with the time since the start."""
        with self._lock:
            line = Text(f"{time.monotonic() - self._started:6.1f} s  {text}", style=style)
            self._console.print(line, soft_wrap=True)
            sys.stdout.flush()

    def show(self, picture: Picture) -> None:
        """Show the current state: in place in a terminal, otherwise a line every few seconds."""
        if self._live is not None:
            self._live.update(_table(picture))
        elif time.monotonic() - self._displayed_at >= PLAIN_EVERY_S:
            self._displayed_at = time.monotonic()
            self.happened(_line(picture))


def _line(picture: Picture) -> str:
    return (
        f"{picture.state.lower()}: {picture.words_per_s / 1e6:.2f} M words/s,"
        f" {picture.words / 1e6:.1f} M words, step {picture.step}, checkpoint {picture.checkpoint}"
    )


def _table(picture: Picture) -> Group:
    workers = Table("worker", "state", "pid", "attempt", "step", "unsynced", box=None, header_style="bold")
    for worker in picture.workers:
        workers.add_row(
            str(worker.index),
            worker.state.lower(),
            str(worker.pid or "-"),
            str(worker.attempt),
            str(worker.step),
            f"{worker.lag_bytes / 1e6:.1f} MB",
        )
    servers = Table("server", "", box=None, header_style="bold")
    for name, doing in picture.servers:
        servers.add_row(name, doing)
    columns = Table.grid(padding=(0, 6))
    columns.add_row(workers, servers)
    head = Text.assemble(
        (f"{picture.state}  ", "bold green" if picture.state == "RUNNING" else "bold yellow"),
        (f"{picture.words_per_s / 1e6:.2f} M words/s  ", "bold"),
        f"{picture.words / 1e6:.1f} M words  step {picture.step}  checkpoint {picture.checkpoint}"
        f"  incarnation {picture.incarnation}",
    )
    return Group(Text(), head, Text(), columns)
