"""Whether the circuit thread moves and what it runs, for other threads and for the companion of the process.
Plain attributes, each written by one assignment.
"""

import mmap
import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

_PAGE: Final = struct.Struct("<dHH")
"""When the call began, of the monotonic clock of all processes; the bytes of the operator's name, and of what
it waits for. Both texts follow.
"""
_TEXT_BYTES_MAX: Final = 1024
"""Of each text. All fits a page of memory."""
_SINKS: Final = struct.Struct("<H")
_SINKS_AT: Final = mmap.PAGESIZE - _SINKS.size - _TEXT_BYTES_MAX
"""At the end of the page: the bytes of the names of sinks, which follow."""


@dataclass(slots=True)
class CircuitPulse:
    """Written by the circuit thread, read by the HTTP port of the worker."""

    running: bool = False
    """Whether the incarnation runs steps, or waits for input to do so."""
    began_s: float = 0.0
    """When the current piece of work began, of a monotonic clock; 0 while the thread waits for a message."""

    def begin(self) -> None:
        """Note that the thread begins to work."""
        self.began_s = time.monotonic()

    def end(self) -> None:
        """Note that the thread waits."""
        self.began_s = 0.0

    def busy_for_s(self) -> float:
        """Return how long the thread has worked on its current piece, 0 while it waits."""
        began_s = self.began_s
        return time.monotonic() - began_s if began_s else 0.0


class RunningOperator:
    """The operator whose code runs on the circuit thread, and the sinks that make a checkpoint durable on
    others meanwhile. The companion of the process (`companion.py`) reads both in memory that it shares.
    """

    def __init__(self, memory: mmap.mmap | None = None, companion: int = 0) -> None:
        self.name = ""
        self._sinks = list[str]()
        self._memory = memory
        self._companion = companion

    def begin(self, name: str) -> None:
        """Note that an operator is called; "": none is."""
        self.name = name
        self._write(time.monotonic(), "")

    def waits(self, what: str) -> None:
        """Note what the operator that is called waits for; "": it continues."""
        if self._memory is not None:
            self._write(_PAGE.unpack_from(self._memory, 0)[0], what)

    def _write(self, began_s: float, waits: str) -> None:
        if self._memory is not None:
            name, what = (text.encode(errors="replace")[:_TEXT_BYTES_MAX] for text in (self.name, waits))
            _PAGE.pack_into(self._memory, 0, began_s, len(name), len(what))
            self._memory[_PAGE.size : _PAGE.size + len(name) + len(what)] = name + what

    @contextmanager
    def making_durable(self, sink: str) -> Iterator[None]:
        """Note that code of a sink runs for a checkpoint. Called by the link thread only."""
        self._sinks.append(sink)
        self._note_sinks()
        try:
            yield
        finally:
            self._sinks.remove(sink)
            self._note_sinks()

    def _note_sinks(self) -> None:
        if self._memory is not None:
            data = ", ".join(self._sinks).encode(errors="replace")[:_TEXT_BYTES_MAX]
            self._memory[_SINKS_AT : _SINKS_AT + _SINKS.size + len(data)] = _SINKS.pack(len(data)) + data

    @staticmethod
    def read_sinks(memory: mmap.mmap) -> str:
        """Return the sinks that make a checkpoint durable."""
        (size,) = _SINKS.unpack_from(memory, _SINKS_AT)
        begin = _SINKS_AT + _SINKS.size
        return memory[begin : begin + size].decode(errors="replace")

    @staticmethod
    def read(memory: mmap.mmap) -> tuple[str, str, float]:
        """Return the operator, what it waits for, and for how many seconds it has run. All are of about
        now.
        """
        began_s, size, more = _PAGE.unpack_from(memory, 0)
        data = memory[_PAGE.size : _PAGE.size + size + more]
        name, what = (part.decode(errors="replace") for part in (data[:size], data[size:]))
        return name, what, max(0.0, time.monotonic() - began_s) if name else 0.0

    def close(self) -> None:
        """End the companion: the process may continue without its worker."""
        if self._companion:
            with suppress(OSError):
                os.kill(self._companion, signal.SIGKILL)
                os.waitpid(self._companion, 0)
