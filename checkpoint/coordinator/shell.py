"""The coordinator's shell: listens for workers, keeps the manifest, performs the effects of the core in
order.

It decides nothing. One task passes the events of links, the manifest, the clock and other threads to the
core. An effect that takes time (the manifest) runs in a separate task and reports back by an event.
"""

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import trio

from checkpoint import limits
from checkpoint.chains.manifest_log import (
    ManifestLog,
    ManifestView,
    StoreHost,
    last_checkpoints_of,
    read_manifest,
)
from checkpoint.chains.whole_checkpoints import examine
from checkpoint.core.applications import check_application
from checkpoint.core.coordination.coordinator import Coordinator
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    AskForRegion,
    Begin,
    CancelWorker,
    CheckpointsExamined,
    CloseLink,
    ControlReceived,
    CoordinatorTick,
    Effect,
    End,
    Event,
    ExaminationWaits,
    ExamineCheckpoints,
    HandOverAnswered,
    LastCheckpointRead,
    LaunchWorker,
    LinkDown,
    MessageRefused,
    NotifyObservers,
    OpenManifest,
    ReadLastCheckpoint,
    SavepointWanted,
    SendControl,
    WorkerHosted,
)
from checkpoint.core.links.frames import control_frame, decode_from_task, decode_from_worker
from checkpoint.core.links.messages import CompanionReport, Host, ToTask, ToWorker
from checkpoint.core.log_lines import Line, LogLines
from checkpoint.core.progress import ProgressMeter, dropped_rows, dropped_text, late_by_text, merge_counters
from checkpoint.core.records.lines import made_for_forks, upgrades_over
from checkpoint.core.records.manifest import Checkpoint, Examination, OutputIdentity, SavepointNote
from checkpoint.core.region import (
    CheckpointCommitted,
    Launcher,
    RegionEvent,
    RegionSpec,
    RegionStatus,
    change_of,
    removed_sinks,
    when_restored,
)
from checkpoint.core.requests import Answer
from checkpoint.errors import GraphChangeRefusedError, NoAnswerError, NoRegionError, NotHandedOverError
from checkpoint.link import Link, StandbyLinks, ports_of, serve_links
from checkpoint.maintenance.forking import fork_needs
from checkpoint.maintenance.stopped_region import find_restored, restore_stopped
from checkpoint.requests.client import RegionReader, RequestClient
from checkpoint.requests.server import answering
from checkpoint.runtime import checkpoint_named, this_driver, timestamp, wall_time_ms
from dos_client import Store, open_store
from dos_protocol.errors import BrokenConnectionError, ClosedError, DosError

logger: Final = logging.getLogger("dos.checkpoint")
_LEVELS: Final = logging.getLevelNamesMapping()

Observer = Callable[[RegionEvent], None]
"""Called on the coordinator's thread for each event; must not block."""


Examine = Callable[[Sequence[Checkpoint]], Awaitable[Examination]]


class RegionShell:
    """One run of a region on one trio loop. `post` accepts events from this thread."""

    def __init__(self, spec: RegionSpec, observer: Observer | None) -> None:
        self.spec = spec
        self.core = Coordinator(spec)
        self.end: End | None = None
        self._observer = observer
        self._launcher: Launcher | None = None
        # Unbounded: each event results from an effect, a worker's message or a user's call, all of which are
        # few. A bound would let a busy link delay the manifest's events.
        self._event_sender, self._event_receiver = trio.open_memory_channel[Event](math.inf)
        self._links: dict[int, trio.MemorySendChannel[ToWorker | ToTask | None]] = {}
        self._next_link = 1
        self._manifest: ManifestLog | None = None
        self._manifest_sender, self._manifest_receiver = trio.open_memory_channel[
            OpenManifest | AppendCheckpoint
        ](math.inf)
        self._opening: trio.CancelScope | None = None
        self.examine: Examine | None = None
        """Reads retained checkpoints."""
        self._to_examine, self._examinations = trio.open_memory_channel[ExamineCheckpoints](math.inf)
        self._examining: trio.CancelScope | None = None
        self.ask_for_region: Callable[[], Awaitable[HandOverAnswered]] = _nobody
        """Asks the driver that runs the region to lend it."""
        self.read_last: Callable[[], Awaitable[LastCheckpointRead]] = _nothing_read
        """Reads the last checkpoint of a region that another driver runs."""
        self._to_ask, self._asked = trio.open_memory_channel[AskForRegion | ReadLastCheckpoint](math.inf)
        self.handled: Callable[[RegionStatus], None] = _nothing
        """Called with a new status after each event."""
        self.also_observed: Callable[[RegionEvent], None] = _nothing
        """Called after the observer with the same event, for the task that answers requests through the
        store.
        """
        self.access_problem: Callable[[], str] = str
        """Returns `RegionStatus.access_problem`."""
        self.meter = ProgressMeter(spec.name, spec.operators)
        self.standbys = StandbyLinks(spec.name)
        self._drops = DropLog(spec.name)
        self._lines = LogLines(spec)

    def post(self, event: Event) -> None:
        """Queue an event for the core. On this thread only."""
        self._event_sender.send_nowait(event)

    # --- Run ------------------------------------------------------------------------------------------

    async def run(
        self,
        launcher: Launcher,
        manifest: ManifestLog,
        begin: Begin,
        *,
        beside: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> End:
        """Run the region to its end. begin: the first event. beside: a task that runs as long."""
        self._launcher, self._manifest = launcher, manifest
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_manifest)
            nursery.start_soon(self._examine_all)
            nursery.start_soon(self._ask_all)
            nursery.start_soon(manifest.watch)
            nursery.start_soon(beside)
            self._handle(begin)
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
            return await self._event_receiver.receive()
        assert due is not None
        return CoordinatorTick(due)

    def _handle(self, event: Event) -> None:
        for effect in self.core.handle(event, trio.current_time()):
            self._perform(effect)
        now, status = trio.current_time(), self.status()
        self._drops.inspect((one.counters.operators for one in self.core.run.roster), now)
        if (line := self._lines.of_status(status, now)) is not None:
            self._log(line)
        self.handled(status)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, SendControl):
            self._send(effect.link, effect.message)
        elif isinstance(effect, NotifyObservers):
            self._notify(effect.event)
        elif isinstance(effect, OpenManifest | AppendCheckpoint):
            if isinstance(effect, OpenManifest) and self._opening is not None:
                # Otherwise an opening that waits for the store could end after the newer one and fence our
                # own claim.
                self._opening.cancel()  # the older incarnation's pending opening is void
            self._manifest_sender.send_nowait(effect)
        elif isinstance(effect, ExamineCheckpoints):
            if self._examining is not None:
                self._examining.cancel()  # it is of an older incarnation
            self._to_examine.send_nowait(effect)
        elif isinstance(effect, AskForRegion | ReadLastCheckpoint):
            self._to_ask.send_nowait(effect)
        elif isinstance(effect, LaunchWorker):
            self._launch(effect)
        elif isinstance(effect, CancelWorker):
            assert self._launcher is not None
            self._launcher.cancel(effect.worker, effect.attempt)
        elif isinstance(effect, CloseLink):
            self._send(effect.link, None)
        elif isinstance(effect, MessageRefused):
            logger.debug("region %s: refused on link %d: %s", self.spec.name, effect.link, effect.refusal)
        else:
            self.end = effect

    def _launch(self, effect: LaunchWorker) -> None:
        assert self._launcher is not None
        logger.debug("region %s: worker %d, attempt %d", self.spec.name, effect.worker, effect.attempt)
        if effect.host is not None and not self._launcher.standbys:
            number = self.core.run.incarnation
            name, hosted, attempt = self.spec.name, effect.worker, effect.attempt
            order = Host(job=name, incarnation=number, epoch=number, hosted=hosted, attempt=attempt)
            self._send(effect.host_link, order)
            self.post(WorkerHosted(hosted, attempt, effect.host))
            return
        self._launcher.start(effect.worker, effect.attempt, beside=effect.beside)

    def _notify(self, event: RegionEvent) -> None:
        self._log(self._lines.of_event(event, self.core.status(), trio.current_time()))
        if isinstance(event, CheckpointCommitted):
            self.meter.report(event, self.core.status(), now=trio.current_time(), timestamp=timestamp())
        if self._observer is not None:
            self._observer(event)
        self.also_observed(event)

    def _log(self, line: Line) -> None:
        logger.log(_LEVELS[line.level], "region %s: %s", self.spec.name, line.text)

    # --- Requests through the store -------------------------------------------------------------------

    def status(self) -> RegionStatus:
        """Return the current status."""
        standbys = 0 if self._launcher is None else self._launcher.standbys
        return replace(self.core.status(), standbys=standbys, access_problem=self.access_problem())

    def held(self) -> int:
        """Return the incarnation in which the manifest is held, 0 for none."""
        return self._manifest.held if self._manifest is not None else 0

    def last_checkpoint(self) -> Checkpoint | None:
        """Return the last committed checkpoint."""
        return self.core.run.last_checkpoint

    def last_progress(self) -> dict[str, Any] | None:
        """Return the report of the last checkpoint."""
        return self.meter.last

    # --- Manifest -------------------------------------------------------------------------------------

    async def _keep_manifest(self) -> None:
        """Perform manifest effects one at a time, in order; a new opening cancels the previous one."""
        assert self._manifest is not None
        async for order in self._manifest_receiver:
            with trio.CancelScope() as self._opening:
                if isinstance(order, OpenManifest):
                    await self._manifest.open(order)
                else:
                    await self._manifest.append(order)
            self._opening = None

    async def _examine_all(self) -> None:
        """Read retained checkpoints as ordered; a new order cancels the previous one."""
        async for order in self._examinations:
            with trio.CancelScope() as self._examining:
                await self._examine(order)
            self._examining = None

    async def _examine(self, order: ExamineCheckpoints) -> None:
        assert self.examine is not None
        waits = ""
        while True:
            try:
                found = await self.examine(order.kept)
            except DosError as error:
                if waits != (waits := str(error.args[0])):
                    logger.warning("region %s: its checkpoints cannot be read yet: %s", self.spec.name, error)
                    self.post(ExaminationWaits(order.incarnation, waits))
                await trio.sleep(limits.store_poll_s)
            else:
                self.post(CheckpointsExamined(order.incarnation, found))
                return

    async def _ask_all(self) -> None:
        async for order in self._asked:
            asks = isinstance(order, AskForRegion)
            self.post(await (self.ask_for_region() if asks else self.read_last()))

    # --- Links ----------------------------------------------------------------------------------------

    async def serve(self, link: Link) -> None:
        """Serve one authenticated link until it ends. Passed to `serve_links`."""
        if link.hello.role == "standby":
            await self.standbys.serve(link)
            return
        if link.hello.role == "companion":
            await self._serve_companion(link)
            return
        number, self._next_link = self._next_link, self._next_link + 1
        outgoing, messages = trio.open_memory_channel[ToWorker | ToTask | None](limits.control_queue_max)
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

    async def _serve_companion(self, link: Link) -> None:
        """Pass the reports of a companion to the core; its end, too."""
        hello = link.hello
        ended = CompanionReport(job=hello.job, worker=hello.worker, attempt=hello.attempt, ended=True)
        with suppress(DosError):
            while True:
                message = decode_from_worker(await link.receive())
                if not isinstance(message, CompanionReport):
                    break
                self.post(ControlReceived(0, message))
                if message.ended:
                    return
        self.post(ControlReceived(0, ended))

    async def _read(self, number: int, link: Link) -> str:
        """Pass the messages of a worker, or of a task, to the core. Return why the link ended."""
        decode = decode_from_task if link.hello.role == "batch" else decode_from_worker
        try:
            while True:
                self.post(ControlReceived(number, decode(await link.receive())))
        except DosError as error:
            return str(error.args[0])

    async def _write(
        self,
        link: Link,
        messages: trio.MemoryReceiveChannel[ToWorker | ToTask | None],
        scope: trio.CancelScope,
    ) -> None:
        """Send the core's messages in order; None closes the link, which also ends its reader."""
        try:
            async for message in messages:
                if message is None:
                    break
                await link.send(control_frame(message))
        except (BrokenConnectionError, ClosedError) as error:
            logger.debug("region %s: a link broke: %s", self.spec.name, error.args[0])
        scope.cancel()

    def _send(self, number: int, message: ToWorker | ToTask | None) -> None:
        channel = self._links.get(number)
        if channel is None:
            return  # the link is closed; its LinkDown event follows
        try:
            channel.send_nowait(message)
        except trio.WouldBlock:
            channel.close()  # a worker that does not read its messages is treated as lost: close its link


PlacesCheck: TypeAlias = Callable[[bytes, OutputIdentity | None, Mapping[str, str], Mapping[str, str]], None]
"""Checks the places of a region, with the id of its store, its identity, and `Checkpoint.uids`."""


Prepare: TypeAlias = Callable[[Store, Checkpoint | None], Awaitable[Checkpoint | None]]
"""Records what a program gives a region before its coordinator begins, and returns the record that then is
the last checkpoint; None: there is nothing to record. Called with the last checkpoint that was read.
"""


def _nothing(_: object) -> None:
    return


async def _nobody() -> HandOverAnswered:
    await trio.lowlevel.checkpoint()
    return HandOverAnswered()


async def _nothing_read() -> LastCheckpointRead:
    await trio.lowlevel.checkpoint()
    return LastCheckpointRead()


async def run_region(
    spec: RegionSpec,
    shell: RegionShell,
    launcher: Launcher,
    opened: Callable[[Store], None] | None = None,
    check: PlacesCheck | None = None,
    prepare: Prepare | None = None,
) -> End:
    """Run the region to its end, from an older checkpoint if `spec.restore` names one. check: called in a
    thread before anything is claimed; its exceptions propagate, as those of `prepare`.
    """
    async with open_store(spec.store_url, token=spec.token, client=f"{spec.name}.coord") as store:
        shell.examine = partial(examine, store, spec.name)
        shell.ask_for_region = partial(lent_by_its_driver, store, spec.name)
        shell.read_last = partial(last_of_its_driver, store, spec.name)
        shell.access_problem = store.access_problem
        if opened is not None:
            opened(store)
        if check is not None:
            await check_places(spec, store, check)
        begin = await before_claim(store, spec)
        if spec.restore:
            allowed = spec.allow_republish
            host = StoreHost(store)
            begin = Begin(
                await restore_stopped(
                    host,
                    spec.name,
                    checkpoint_named(spec.restore),
                    allow_republish=allowed,
                    by_program=True,
                    graph=spec.operators,
                )
            )
        if prepare is not None and not begin.unread:
            begin = Begin(await prepare(store, begin.seen) or begin.seen)
        manifest = ManifestLog(StoreHost(store), spec.name, shell.post, driver=this_driver())
        savepoints = partial(watch_savepoints, store, spec, shell.last_checkpoint, shell.post)
        async with answering(store, spec, shell) as requests:
            shell.also_observed = requests.on_event
            return await shell.run(launcher, manifest, begin, beside=savepoints)


@asynccontextmanager
async def listening(spec: RegionSpec, shell: RegionShell) -> AsyncGenerator[tuple[str, int]]:
    """Accept links of workers inside the context. Raises BrokenConnectionError if no port is free."""
    ports = ports_of(spec.port_range)
    serve = partial(
        serve_links, shell.serve, job=spec.name, key=spec.job_key, host=spec.listen_host, ports=ports
    )
    async with trio.open_nursery() as nursery:
        address: tuple[str, int] = await nursery.start(serve)
        yield address
        nursery.cancel_scope.cancel()


async def check_places(spec: RegionSpec, store: Store, check: PlacesCheck) -> None:
    """Check the places of a region; if they are refused, as those of the region that it replaces."""
    try:
        last = (await read_manifest(store, spec.name)).last
    except DosError:
        last = None
    uids: Mapping[str, str] = {}
    removed: Mapping[str, str] = {}
    if last is not None:
        with suppress(GraphChangeRefusedError):  # it is reported by the decision about the graph
            uids, removed = change_of(spec, last).uids, removed_sinks(spec, last)
    try:
        await trio.to_thread.run_sync(check, store.record.store_id, None, uids, removed)
    except DosError:
        if last is None or last.identity is None:
            raise
        await trio.to_thread.run_sync(check, store.record.store_id, last.identity, uids, removed)


async def before_claim(store: Store, spec: RegionSpec) -> Begin:
    """Read the manifest before it is claimed, and return the first event, with its last checkpoint.

    If it cannot be read now, the claim decides; for a hand-over, the error is raised. Raises
    RestoreRefusedError, ManifestError or GraphChangeRefusedError if the region cannot begin with it.
    """
    others: dict[str, Checkpoint] = {}
    try:
        view = await _read_or_empty(store, spec.name)
        if spec.beside or view.last is None:
            others = await last_checkpoints_of(store, spec.application)
    except DosError as error:
        if spec.hand_over:
            raise
        logger.info("the manifest of region %s cannot be read before it is claimed: %s", spec.name, error)
        return Begin(unread=True)
    last = view.last
    if spec.restore and not view.unproved:
        target = find_restored(
            view.kept,
            checkpoint_named(spec.restore),
            region=spec.name,
            allow_republish=spec.allow_republish,
            by_program=True,
        )
        if target is not None:
            last = when_restored(spec, view.kept, target)
    check_application(spec, others | ({} if last is None else {spec.name: last}))
    return Begin(view.last)


async def _read_or_empty(store: Store, region: str) -> ManifestView:
    try:
        return await read_manifest(store, region)
    except NoRegionError:
        return ManifestView(region, 0)


async def last_of_its_driver(store: Store, region: str) -> LastCheckpointRead:
    """Return the last checkpoint of a region that another driver runs, once the store can be read."""
    waits = ""
    while True:
        try:
            return LastCheckpointRead((await _read_or_empty(store, region)).last)
        except DosError as error:
            if waits != (waits := str(error.args[0])):
                logger.warning("region %s: its last checkpoint cannot be read yet: %s", region, error)
            await trio.sleep(limits.store_poll_s)


async def lent_by_its_driver(store: Store, region: str) -> HandOverAnswered:
    """Ask the driver that runs a region to lend it, and return its answer, if a driver runs it."""
    refused: Answer | None = None
    while True:
        try:
            if (runs := (await RegionReader(store, region).read()).reply) is None:
                return HandOverAnswered()
            number = runs.answer.incarnation
            if refused is not None and refused.incarnation == number:
                break  # the driver has not been reset since
            # To that driver alone: this one reads the request, too, once it holds the manifest. In turns: a
            # driver that dies before its answer is noticed by the next reading.
            reply = await RequestClient(store, region).send(
                "hand_over", incarnation=number, wait_s=limits.request_patience_s
            )
            if reply.answer.verdict == "done":
                return HandOverAnswered()
            # A driver that was reset meanwhile refuses what was asked of its former incarnation: ask again.
            refused = reply.answer if reply.answer.incarnation == number else None
        except NoRegionError:
            return HandOverAnswered()
        except NoAnswerError as silence:
            logger.info("region %s: %s", region, silence)
        except DosError as error:
            logger.warning("region %s: its driver cannot be asked for it yet: %s", region, error)
            await trio.sleep(limits.store_poll_s)
    text = f"{refused.driver} does not hand region {region!r} over: {refused.reason}"
    return HandOverAnswered(NotHandedOverError(text))


async def watch_savepoints(
    store: Store,
    spec: RegionSpec,
    last: Callable[[], Checkpoint | None],
    post: Callable[[SavepointWanted], None],
) -> None:
    """Post the end of each savepoint whose fork needs it no more, and of those before changes of the graph.
    last: returns the last checkpoint.
    """
    reported: set[str] = set()
    while True:
        await trio.sleep(limits.savepoints_poll_s)
        for name, note in made_for_forks(last()).items():
            if await _is_over(store, spec.name, name, note):
                post(SavepointWanted(name, on=False))
        full = store.full_members()
        for name, why in upgrades_over(last(), wall_time_ms(), spec.keep_before_s, full).items():
            if name not in reported:
                text = "region %s drops savepoint %s, and cannot go back to it any more: %s"
                logger.warning(text, spec.name, name, why)
            reported.add(name)
            post(SavepointWanted(name, on=False))


async def _is_over(store: Store, region: str, savepoint: str, note: SavepointNote) -> bool:
    """Return whether the fork needs the savepoint no more. What cannot be read now is asked again later."""
    try:
        return await fork_needs(store, region, savepoint, note) is False
    except DosError as error:
        logger.info("region %s keeps savepoint %s: %s", region, savepoint, error)
        return False


class DropLog:
    """The warnings of one region."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._reported: dict[str, dict[str, int]] = {}
        self._next_check = 0.0

    def inspect(self, workers: Iterable[Mapping[str, Mapping[str, int]]], now: float) -> None:
        """Warn of rows dropped since the last warning, if that is old. workers: their operators' counters."""
        if now < self._next_check:
            return
        self._next_check = now + limits.heartbeat_s
        operators: dict[str, dict[str, int]] = {}
        for worker in workers:
            for name, counters in worker.items():
                merge_counters(operators.setdefault(name, {}), counters)
        dropped = dropped_rows([operators])
        for rule, by_operator in dropped.items():
            for name, count in by_operator.items():
                more = count - self._reported.get(rule, {}).get(name, 0)
                if more > 0:
                    self._next_check = now + limits.drop_warnings_s
                    behind = late_by_text(operators[name]) if rule == "late" else ""
                    logger.warning(
                        "region %s: %s (%s since the region started%s)",
                        self._region,
                        dropped_text({rule: {name: more}}),
                        f"{count:,}",
                        behind,
                    )
        self._reported = dropped
