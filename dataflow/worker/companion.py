"""The companion of a worker: a small process that speaks for it when it cannot.

User code in C may hold the interpreter lock for minutes (a regular expression, one call of a library). Then
no thread of the worker runs, and its heartbeats stop. The companion is forked before the worker has any
thread, and shares one page of memory with it, where the circuit thread notes which operator it calls. Over a
link of its own it reports to the coordinator, twice a second, which operator runs for how long, and whether
the process is stopped. When the process has ended, by whatever cause, it reports which operator was running.

It holds nothing else of the worker: it closes all files that it inherits.
"""

import gc
import logging
import mmap
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from checkpoint import ChannelFrame, CompanionReport, LinkHello, control_frame
from checkpoint.link import Link, connect_link
from dataflow import limits
from dataflow.worker.pulse import RunningOperator
from dataflow.worker.spec import WorkerSpec
from dos_protocol.errors import DosError

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
