"""Whether the circuit thread moves and what it runs, for other threads and for the companion of the process.
Plain attributes, each written by one assignment.
"""

import mmap
import os
import signal
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_PAGE: Final = struct.Struct("<dH")
"""When the call began, of the monotonic clock of all processes; the bytes of the operator's name, which
follows.
"""
_NAME_BYTES_MAX: Final = 1024


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
    """The operator whose code runs. Written by the circuit thread, read by others. The companion of the
    process (`companion.py`) reads it in memory that both share.
    """

    def __init__(self, memory: mmap.mmap | None = None, companion: int = 0) -> None:
        self.name = ""
        self._memory = memory
        self._companion = companion

    def begin(self, name: str) -> None:
        """Note that an operator is called; "": none is."""
        self.name = name
        if self._memory is not None:
            data = name.encode(errors="replace")[:_NAME_BYTES_MAX]
            _PAGE.pack_into(self._memory, 0, time.monotonic(), len(data))
            self._memory[_PAGE.size : _PAGE.size + len(data)] = data

    @staticmethod
    def read(memory: mmap.mmap) -> tuple[str, float]:
        """Return the operator and for how many seconds it has run. Both are of about now."""
        began_s, size = _PAGE.unpack_from(memory, 0)
        name = memory[_PAGE.size : _PAGE.size + size].decode(errors="replace")
        return name, max(0.0, time.monotonic() - began_s) if name else 0.0

    def close(self) -> None:
        """End the companion: the process may continue without its worker."""
        if self._companion:
            with suppress(OSError):
                os.kill(self._companion, signal.SIGKILL)
                os.waitpid(self._companion, 0)
