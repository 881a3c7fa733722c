"""The coordinator's shell: listens for workers, keeps the manifest, and performs what `core/coordinator.py`
decides.

Rules of this file: events in, effects out, in order; nothing is decided here. Events come from links, from
the manifest, from the clock and from other threads; one task hands them to the core, one at a time. What an
effect starts that takes time (the manifest) runs in a task of its own and answers by an event.

`RegionControl` is the thread-safe facade: it runs `run_coordinator` in a thread of its own.
"""

import logging
import math
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final

import trio

from checkpoint import limits
from checkpoint.core.coordinator import Coordinator
from checkpoint.core.coordinator_vocabulary import (
    AppendCut,
    Begin,
    CancelWorker,
    CloseLink,
    CutWanted,
    Effect,
    End,
    Event,
    LaunchWorker,
    LinkDown,
    OpenManifest,
    Received,
    Refused,
    ResetWanted,
    Send,
    StopWanted,
    Tell,
    Tick,
    WorkerEnded,
)
from checkpoint.core.messages import ToWorker, control_frame, decode_from_worker
from checkpoint.core.region import (
    CutCommitted,
    Launcher,
    RegionEvent,
    RegionSpec,
    RegionState,
    RegionStatus,
)
from checkpoint.link import Link, serve_links
from checkpoint.manifest_log import ManifestLog
from dos_client import MemberStatus, Store, open_store
from dos_protocol.errors import BrokenConnectionError, ClosedError, DosError, LocalProtocolError

logger: Final = logging.getLogger("dos.checkpoint")

Observer = Callable[[RegionEvent], None]
"""Called on the coordinator's thread for each event; must not block."""


class _Shell:
    """One region's run on one trio loop. `post` takes an event of this thread; `events` those of all."""

    def __init__(self, spec: RegionSpec, observer: Observer | None) -> None:
        self.spec = spec
        self.core = Coordinator(spec)
        self.end: End | None = None
        self._observer = observer
        self._launcher: Launcher | None = None
        # Not bounded: each event answers an effect, a message of a worker or a call of the user, all few; a
        # bound would let a busy link hold up the manifest's word.
        self._post, self._events = trio.open_memory_channel[Event](math.inf)
        self._links: dict[int, trio.MemorySendChannel[ToWorker | None]] = {}
        self._next_link = 1
        self._manifest: ManifestLog | None = None
        self._manifest_work, self._manifest_orders = trio.open_memory_channel[OpenManifest | AppendCut](
            math.inf
        )
        self._opening: trio.CancelScope | None = None
        self.handled: Callable[[RegionStatus], None] = _nothing
        """Called with a fresh snapshot after each event."""

    def post(self, event: Event) -> None:
        """An event for the core, after those posted before. On this thread only."""
        self._post.send_nowait(event)

    # --- the run ------------------------------------------------------------------------------------------

    async def run(self, launcher: Launcher, manifest: ManifestLog) -> End:
        """Until the region is over."""
        self._launcher, self._manifest = launcher, manifest
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_manifest)
            nursery.start_soon(manifest.watch)
            self._handle(Begin())
            while self.end is None:
                self._handle(await self._next_event())
            nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + limits.handshake_timeout_s):
            await manifest.aclose()
        assert self.end is not None
        return self.end

    async def _next_event(self) -> Event:
        due = self.core.deadline()
        with trio.move_on_at(math.inf if due is None else due):
            return await self._events.receive()
        assert due is not None
        return Tick(due)

    def _handle(self, event: Event) -> None:
        for effect in self.core.handle(event, trio.current_time()):
            self._perform(effect)
        self.handled(self.core.status())

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            self._send(effect.link, effect.message)
        elif isinstance(effect, Tell):
            self._tell(effect.event)
        elif isinstance(effect, OpenManifest | AppendCut):
            if isinstance(effect, OpenManifest) and self._opening is not None:
                self._opening.cancel()  # what the old incarnation still waits for is void
            self._manifest_work.send_nowait(effect)
        elif isinstance(effect, LaunchWorker):
            self._launch(effect)
        elif isinstance(effect, CancelWorker):
            assert self._launcher is not None
            self._launcher.cancel(effect.worker)
        elif isinstance(effect, CloseLink):
            self._send(effect.link, None)
        elif isinstance(effect, Refused):
            logger.info("refused on link %d of region %s: %s", effect.link, self.spec.name, effect.refusal)
        else:
            self.end = effect

    def _launch(self, effect: LaunchWorker) -> None:
        assert self._launcher is not None
        logger.info("worker %d of region %s: attempt %d", effect.worker, self.spec.name, effect.attempt)
        self._launcher.start(effect.worker, effect.attempt)

    def _tell(self, event: RegionEvent) -> None:
        logger.info("region %s: %s", self.spec.name, event)
        if self._observer is not None:
            self._observer(event)

    # --- the manifest -------------------------------------------------------------------------------------

    async def _keep_manifest(self) -> None:
        """One thing at a time, in the order asked for; an opening voids what the one before was doing."""
        assert self._manifest is not None
        async for order in self._manifest_orders:
            with trio.CancelScope() as self._opening:
                if isinstance(order, OpenManifest):
                    await self._manifest.open(order)
                else:
                    await self._manifest.append(order)
            self._opening = None

    # --- links --------------------------------------------------------------------------------------------

    async def serve(self, link: Link) -> None:
        """One proved link, until it ends. Handed to `serve_links`."""
        number, self._next_link = self._next_link, self._next_link + 1
        outgoing, messages = trio.open_memory_channel[ToWorker | None](limits.control_queue_max)
        self._links[number] = outgoing
        reason = "closed"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, link, messages, nursery.cancel_scope)
                reason = await self._read(number, link)
                nursery.cancel_scope.cancel()
        finally:
            del self._links[number]
            self.post(LinkDown(number, reason))

    async def _read(self, number: int, link: Link) -> str:
        """Hand over what the worker says; why it ended."""
        try:
            while True:
                self.post(Received(number, decode_from_worker(await link.receive())))
        except DosError as error:
            return str(error.args[0])

    async def _write(
        self, link: Link, messages: trio.MemoryReceiveChannel[ToWorker | None], scope: trio.CancelScope
    ) -> None:
        """Send what the core said, in order; None closes the link, which ends the reading of it too."""
        try:
            async for message in messages:
                if message is None:
                    break
                await link.send(control_frame(message))
        except (BrokenConnectionError, ClosedError) as error:
            logger.info("a link of region %s broke: %s", self.spec.name, error.args[0])
        scope.cancel()

    def _send(self, number: int, message: ToWorker | None) -> None:
        channel = self._links.get(number)
        if channel is None:
            return  # gone; its LinkDown is on the way
        try:
            channel.send_nowait(message)
        except trio.WouldBlock:
            channel.close()  # a worker that takes nothing is as good as gone: its link ends here


def _nothing(status: RegionStatus) -> None:
    del status


async def run_coordinator(
    spec: RegionSpec, launcher: Launcher, *, observer: Observer | None = None
) -> RegionState:
    """Run a region until its end and return how it ended. The trio face of `RegionControl`."""
    shell = _Shell(spec, observer)
    async with _listening(spec, shell):
        return (await _run(spec, shell, launcher)).state


async def _run(
    spec: RegionSpec, shell: _Shell, launcher: Launcher, opened: Callable[[Store], None] | None = None
) -> End:
    async with open_store(spec.store_url, token=spec.token, client=f"{spec.name}.coord") as store:
        if opened is not None:
            opened(store)
        return await shell.run(launcher, ManifestLog(store, spec.name, shell.post))


@asynccontextmanager
async def _listening(spec: RegionSpec, shell: _Shell) -> AsyncGenerator[tuple[str, int]]:
    """Accept workers meanwhile. Raises BrokenConnectionError when no port is free."""
    ports = (0,) if spec.port_range is None else range(spec.port_range[0], spec.port_range[1] + 1)
    serve = partial(
        serve_links, shell.serve, job=spec.name, key=spec.job_key, host=spec.listen_host, ports=ports
    )
    async with trio.open_nursery() as nursery:
        address: tuple[str, int] = await nursery.start(serve)
        yield address
        nursery.cancel_scope.cancel()


class RegionControl:
    """A region, run in a thread of its own. Every method may be called from any thread.

        control = RegionControl(spec, observer=show)
        address = control.listen()          # bound before any worker is launched
        control.start(launcher)             # takes the manifest over, calls launcher.start(0..N-1, attempt)
        control.wait(timeout)

    The launcher calls `control.worker_ended(worker, attempt, error)` when a worker's process or task has
    ended.
    """

    def __init__(self, spec: RegionSpec, *, observer: Observer | None = None) -> None:
        self.spec = spec
        self._observer = observer
        self._lock = threading.Condition()
        self._thread: threading.Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._shell: _Shell | None = None
        self._store: Store | None = None
        self._launcher: Launcher | None = None
        self._go: trio.Event | None = None
        self._address: tuple[str, int] | None = None
        self._cut = 0
        self._over = False
        self._error: Exception | None = None
        self._abandon = trio.CancelScope()
        self._status = Coordinator(spec).status()

    # --- starting -----------------------------------------------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        """Where workers dial. Raises LocalProtocolError before `listen`."""
        if self._address is None:
            raise LocalProtocolError("the region does not listen yet", remedy="call listen() first")
        return self._address

    def listen(self) -> tuple[str, int]:
        """Start the thread and bind the listener. Raises BrokenConnectionError when no port is free."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"dos-region-{self.spec.name}", daemon=True
                )
                self._thread.start()
            self._lock.wait_for(lambda: self._address is not None or self._over)
            if self._address is None:
                assert self._error is not None
                raise self._error
            return self._address

    def start(self, launcher: Launcher) -> None:
        """Begin: manifest and workers. Returns at once. Raises what `listen` raises."""
        self.listen()
        self._launcher = launcher
        self._on_loop(lambda: self._go.set() if self._go is not None else None)

    # --- asking and telling -------------------------------------------------------------------------------

    def status(self) -> RegionStatus:
        """A snapshot, at most one event old."""
        with self._lock:
            return self._status

    def members(self) -> list[MemberStatus]:
        """The store's members as the coordinator sees them; empty before it is connected."""
        store = self._store
        return store.members() if store is not None else []

    def request_cut(self) -> int:
        """Ask for a cut now; the number it will have at least. Whether it came: `wait_cut`."""
        with self._lock:
            number = self._status.last_cut + 1
        self._post(CutWanted())
        return number

    def wait_cut(self, cut: int, timeout: float | None = None) -> bool:
        """Wait until a cut of at least that number is committed. False at the time-out or the end."""
        with self._lock:
            self._lock.wait_for(lambda: self._cut >= cut or self._over, timeout)
            return self._cut >= cut

    def reset(self) -> None:
        """Go back to the last committed cut now. Spends no attempt."""
        self._post(ResetWanted())

    def stop(self) -> None:
        """Take a last cut if the region runs, then stop all workers. Returns at once; `wait` for the end.

        A region that was never started ends at once.
        """
        if self._launcher is None and self._thread is not None:
            self._on_loop(lambda: self._abandon.cancel())
        else:
            self._post(StopWanted())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end (FINISHED, STOPPED, FAILED, FENCED). False at the time-out. Raises nothing."""
        with self._lock:
            return self._lock.wait_for(lambda: self._over, timeout)

    def exception(self) -> Exception | None:
        """Why it FAILED or is FENCED (RegionFailedError, RegionFencedError, ...), else None."""
        with self._lock:
            return self._error

    def worker_ended(self, worker: int, attempt: int, error: str | None) -> None:
        """For the launcher: this attempt's process or task is over."""
        self._post(WorkerEnded(worker, attempt, error))

    def _post(self, event: Event) -> None:
        shell = self._shell
        if shell is not None:
            self._on_loop(lambda: shell.post(event))

    def _on_loop(self, do: Callable[[], None]) -> None:
        token = self._token
        if token is None:
            return
        with suppress(trio.RunFinishedError):  # the region is over: nothing is left to tell
            token.run_sync_soon(do)

    # --- the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        error: Exception | None = None
        try:
            trio.run(self._main)
        except Exception as group:
            error = first_error(group)
            logger.error("region %s ended by an error: %s", self.spec.name, error, exc_info=group)
        with self._lock:
            if error is not None:
                self._error = error
                self._status = replace(self._status, state=RegionState.FAILED, reason=str(error))
            self._over = True
            self._lock.notify_all()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._shell = shell = _Shell(self.spec, self._observe)
        shell.handled = self._keep_status
        self._go = trio.Event()
        async with _listening(self.spec, shell) as address:
            with self._abandon:
                with self._lock:
                    self._address = address
                    self._lock.notify_all()
                await self._go.wait()
                assert self._launcher is not None
                end = await _run(self.spec, shell, self._launcher, self._keep_store)
                with self._lock:
                    self._error = end.error
                return
        with self._lock:
            self._status = replace(self._status, state=RegionState.STOPPED, reason="stopped before it began")

    def _keep_store(self, store: Store) -> None:
        self._store = store

    def _keep_status(self, status: RegionStatus) -> None:
        with self._lock:
            self._status = status
            self._lock.notify_all()

    def _observe(self, event: RegionEvent) -> None:
        if isinstance(event, CutCommitted):
            with self._lock:
                self._cut = max(self._cut, event.cut)
                self._lock.notify_all()
        if self._observer is not None:
            self._observer(event)


def first_error(error: Exception) -> Exception:
    """The first plain exception in nested groups: what to show."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
