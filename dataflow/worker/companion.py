"""The companion of a worker, a small process that speaks for it when it cannot, and what the two share.

User code in C may hold the interpreter lock for minutes. Then no thread of the worker runs, and its
heartbeats stop. The companion shares one page of memory with the worker, where the circuit thread notes which
operator it calls. Over a link of its own it reports to the coordinator, twice a second, which operator runs
for how long, and whether the process is stopped; and in the end which operator was running.
"""

import gc
import logging
import mmap
import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from checkpoint import ChannelFrame, CompanionReport, LinkHello, control_frame
from checkpoint.link import Link, connect_link
from dataflow import limits
from dataflow.worker.spec import WorkerSpec
from dos_protocol.errors import DosError

_PAGE: Final = struct.Struct("<dHH")
"""When the call began, on the monotonic clock; the lengths of the operator's name, and of what it waits for.
Both texts follow.
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
    """The operator whose code runs on the circuit thread, and the sinks that make a checkpoint durable
    meanwhile, in memory that the companion shares.
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
        """Return the operator, what it waits for, and for how many seconds it has run, all about now."""
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


logger = logging.getLogger("dos.dataflow")

_KEPT: Final = 3
"""Standard input, output and error."""


def begin_companion(spec: WorkerSpec) -> RunningOperator:
    """Fork the companion of this process. Call it on the main thread, before any other is started."""
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    worker = os.getpid()
    try:
        child = os.fork()
    except OSError as error:
        logger.warning("worker %d has no companion: %s", spec.worker, error)
        return RunningOperator()
    if child:
        return RunningOperator(memory, child)
    try:
        gc.disable()  # it would write to every page that is shared with the worker
        _let_go()
        trio.run(_run, spec, worker, memory)
    finally:
        os._exit(0)


def _let_go() -> None:
    """Close the files of the worker, and leave its signals to it."""
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) >= _KEPT:
            with suppress(OSError):
                os.close(int(path.name))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(0, 1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


async def _run(spec: WorkerSpec, worker: int, memory: mmap.mmap) -> None:
    """Report until the worker has ended, or the coordinator is gone."""
    hello = LinkHello(role="companion", job=spec.region, worker=spec.worker, attempt=spec.attempt)
    with suppress(DosError, OSError):
        ended = os.pidfd_open(worker)
        link = await connect_link(*spec.coordinator, key=spec.job_key, hello=hello)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_with, link, nursery.cancel_scope)
            nursery.start_soon(_report, spec, link, worker, memory)
            await trio.lowlevel.wait_readable(ended)
            await link.send(_frame(spec, memory, ended=True))
            nursery.cancel_scope.cancel()
        await link.aclose()


async def _end_with(link: Link, scope: trio.CancelScope) -> None:
    with suppress(DosError):
        await link.receive()  # the coordinator sends nothing
    scope.cancel()


async def _report(spec: WorkerSpec, link: Link, worker: int, memory: mmap.mmap) -> None:
    with suppress(DosError):
        while True:
            await link.send(_frame(spec, memory, stopped=_is_stopped(worker)))
            await trio.sleep(limits.companion_s)


def _frame(
    spec: WorkerSpec, memory: mmap.mmap, *, stopped: bool = False, ended: bool = False
) -> ChannelFrame:
    operator, waits, seconds = RunningOperator.read(memory)
    return control_frame(
        CompanionReport(
            job=spec.region,
            worker=spec.worker,
            attempt=spec.attempt,
            operator=operator,
            waits=waits,
            seconds=round(seconds, 3),
            sinks=RunningOperator.read_sinks(memory),
            stopped=stopped,
            ended=ended,
        )
    )


def _is_stopped(worker: int) -> bool:
    """Return whether a process is stopped by a signal or a debugger, or is no process any more."""
    try:
        status = Path(f"/proc/{worker}/stat").read_bytes()
    except OSError:
        return True
    return status.rpartition(b")")[2].split()[0] in (b"T", b"t", b"Z", b"X")
