"""The worker's end of the control link. The worker runtime (`dataflow.worker.process`) uses it in this order:

    async with open_participant(spec, counters=sample) as control:
        # sample() -> Counters; called each second on the trio thread, must not block and runs no user code
        await control.join(exchange_host=..., exchange_port=..., scratch=...)
            # control.local_address[0] is the address of this machine as the coordinator's network sees it:
            # the default for exchange_host
        while True:
            order = await control.next_order()        # raises StoppedError, OrphanedError: end the process
            match order:
                case Restore():                       # at any time: discard the earlier incarnation
                    # 1. stop the circuit thread; close exchange links, chain writers and the earlier claim
                    # 2. claim NAME.wNNNN with epoch = order.incarnation (`worker_directory`), await it
                    # 3. store = await StateStore.open(claim, at=order.restore and its
                    # WorkerCheckpoint.state, ...)
                    #    steps = await StepsLog.open(claim, ...): rolled forward, never back
                    # 4. load the state into the operators; move sources and sinks to their positions
                    # 5. dial every peer of order.peers (order.peers[own] is this worker), role "exchange",
                    #    incarnation = order.incarnation; refuse links of other incarnations
                    await control.restored(last_step=steps.last_step, replayed_bytes=..., seconds=...)
                case Start():                         # all workers are restored
                    # run; steps <= order.replay_until_step use their recorded division, later ones are
                    # divided anew and recorded with steps.record(...) before they are ended
                case RequestCheckpoint():
                    # flag the next STEP_END with order.checkpoint (and FINAL);
                    # send no reply now. At the end of the step at which the alignment says `checkpoint`:
                    #   drain, store.put(...) each operator's changes, note source and sink positions
                    #   state = await store.commit(checkpoint)     (synced on the quorum)
                    #   position = await steps.synced(step) (likewise)
                    await control.vote(checkpoint=..., step=..., positions=WorkerCheckpoint(...))
                    # the next step runs meanwhile
                case Pause():                         # read no input; order.pause 0: continue
                    await control.paused(order.pause, step=...)
                case Committed():                     # sinks publish checkpoint order.checkpoint
                    if order.final: await control.finished()     # then next_order() raises StoppedError

        # failures that may happen at any time:
        await control.failed("operator", operator=..., position=..., message=..., traceback=...)   # user code
        await control.failed("peer", peer=3, message=...)     # an exchange link broke: a Restore follows
        await control.failed("fenced", epoch_held=error.epoch_held, message=...)  # the claim is lost

An order of an older incarnation than the newest Restore is never returned, and a vote or report of an older
incarnation is never sent: `next_order` and the reports check it (core/links/participation.py). A report
raises `StaleIncarnationError` if a newer Restore has arrived in the meantime, or this worker has ended:
abandon the current work and take the next order.

The control link is not reconnected: when it breaks, the coordinator counts this attempt as lost, and
`next_order` raises OrphanedError. A task of this package on the same trio loop sends and expects heartbeats;
time in which that loop itself was delayed does not count against the coordinator.
"""

import logging
import platform
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from checkpoint import limits
from checkpoint.core.links.frames import ChannelFrame, control_frame, decode_from_coordinator
from checkpoint.core.links.handshake import LinkHello
from checkpoint.core.links.messages import (
    VERSIONS,
    CopiedAhead,
    CopyAhead,
    Counters,
    Failed,
    FailureKind,
    Finished,
    Join,
    Paused,
    Restored,
    Suspects,
    ToCoordinator,
    Vote,
    WantsCheckpoint,
)
from checkpoint.core.links.participation import (
    LinkGone,
    MessageIn,
    Order,
    OrderRefused,
    ParticipantEnded,
    ParticipantInput,
    ParticipantTick,
    ReportWanted,
    SendReport,
)
from checkpoint.core.links.participation import ParticipantCore as Core
from checkpoint.core.records.manifest import WorkerCheckpoint
from checkpoint.errors import LinkClosedError
from checkpoint.link import Link, connect_link
from checkpoint.runtime import package_version, runtime
from dos_protocol.errors import BrokenConnectionError, ClosedError, DosError, encodable

__all__ = ["Order", "Participant", "ParticipantSpec", "open_participant"]

logger: Final = logging.getLogger("dos.checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticipantSpec:
    """The identity of this worker, and the address of its coordinator."""

    job: str
    worker: int
    attempt: int
    coordinator: tuple[str, int]
    job_key: bytes = field(repr=False)
    heartbeat_s: float = limits.heartbeat_s
    orphan_timeout_s: float = limits.orphan_timeout_s


class Participant:
    """The control link of a worker. Not thread-safe: call it on the trio loop it was opened on.

    `local_address`: (host, port) of our end of the control link.
    """

    def __init__(self, spec: ParticipantSpec, link: Link, counters: Callable[[], Counters]) -> None:
        self.local_address = link.local_address
        self._spec = spec
        self._link = link
        self._counters = counters
        self._core = Core(
            spec.job,
            spec.worker,
            now=trio.current_time(),
            orphan_timeout_s=spec.orphan_timeout_s,
            heartbeat_s=spec.heartbeat_s,
        )
        self._taken = 0
        """The incarnation of the last order returned, to which the runtime's reports refer."""
        self._ended: DosError | None = None
        self._changed = trio.Event()
        # Unbounded but small: reports are few, and a coordinator that reads none for the orphan timeout ends
        # this worker.
        self._to_send, self._outgoing = trio.open_memory_channel[ChannelFrame](float("inf"))

    @property
    def incarnation(self) -> int:
        """The incarnation of the newest Restore, 0 before the first."""
        return self._core.incarnation

    async def join(
        self,
        *,
        exchange_host: str,
        exchange_port: int,
        scratch: str = "",
        metrics: str = "",
    ) -> None:
        """Register this worker. Call it once, after its exchange listener is bound."""
        await self._report(
            Join(
                job=self._spec.job,
                worker=self._spec.worker,
                attempt=self._spec.attempt,
                pid=runtime().process_id(),
                host=runtime().host_name(),
                exchange_host=exchange_host,
                exchange_port=exchange_port,
                scratch=scratch,
                metrics=metrics,
                python=platform.python_version(),
                package=package_version(),
                speaks=VERSIONS,
            )
        )

    async def next_order(self) -> Order:
        """Wait for and return the next order.

        Raises StoppedError (the coordinator ended this worker) or OrphanedError (the coordinator is gone),
        also on every later call.
        """
        while not self._core.orders:
            if self._ended is not None:
                raise self._ended
            await self._changed.wait()
        order = self._core.orders.popleft()
        if not isinstance(order, CopyAhead):  # which begins no incarnation
            self._taken = order.incarnation
        return order

    async def restored(
        self,
        *,
        last_step: int,
        replayed_bytes: int = 0,
        seconds: float = 0.0,
        scratch_bytes: int = 0,
        phases_s: Mapping[str, float] | None = None,
    ) -> None:
        """Report that this worker is at the ordered checkpoint and its chains' starts are acknowledged."""
        await self._report(
            Restored(
                job=self._spec.job,
                worker=self._spec.worker,
                last_step=last_step,
                replayed_bytes=replayed_bytes,
                seconds=seconds,
                scratch_bytes=scratch_bytes,
                phases_s=dict(phases_s or {}),
            )
        )

    async def vote(
        self,
        *,
        checkpoint: int,
        step: int,
        positions: WorkerCheckpoint,
        phases_s: Mapping[str, float] | None = None,
    ) -> None:
        """Vote for a checkpoint. Everything that `positions` name must be synced on the quorum before."""
        counters = self._counters()
        await self._report(
            Vote(
                job=self._spec.job,
                worker=self._spec.worker,
                checkpoint=checkpoint,
                step=step,
                positions=positions,
                phases_s=dict(phases_s or {}),
                produced=counters.step,
                operators=counters.operators,
            )
        )

    async def failed(
        self,
        kind: FailureKind,
        *,
        message: str,
        operator: str = "",
        position: str = "",
        traceback: str = "",
        peer: int = -1,
        epoch_held: int = 0,
        damaged: bool = False,
    ) -> None:
        """Report a failure; FailureKind defines the consequences. Only the first report of an incarnation
        counts.
        """
        await self._report(
            Failed(
                job=self._spec.job,
                worker=self._spec.worker,
                kind=kind,
                operator=operator,
                position=_reportable(position),
                message=_reportable(message),
                traceback=_reportable(traceback),
                peer=peer,
                epoch_held=epoch_held,
                damaged=damaged,
            )
        )

    async def copied(self, copied: int, total: int, *, done: bool = False, error: str = "") -> None:
        """Report how many bytes of state are copied ahead of a change of the layout."""
        await self._report(
            CopiedAhead(
                job=self._spec.job,
                worker=self._spec.worker,
                copied_bytes=copied,
                total_bytes=total,
                done=done,
                error=_reportable(error),
            )
        )

    async def wants_checkpoint(self, step: int) -> None:
        """Report that a source waits for a checkpoint at the end of that step."""
        await self._report(WantsCheckpoint(job=self._spec.job, worker=self._spec.worker, step=step))

    async def paused(self, pause: int, step: int) -> None:
        """Report that the order to pause with that number was carried out after that step."""
        await self._report(
            Paused(
                job=self._spec.job,
                worker=self._spec.worker,
                pause=pause,
                step=step,
                counters=self._counters(),
            )
        )

    async def suspects(self, peer: int, term: int, reason: str) -> None:
        """Report that a peer does not answer."""
        worker = self._spec.worker
        await self._report(Suspects(job=self._spec.job, worker=worker, peer=peer, term=term, reason=reason))

    async def finished(self) -> None:
        """Report that the final checkpoint is committed and all of its output is published."""
        await self._report(
            Finished(job=self._spec.job, worker=self._spec.worker, operators=self._counters().operators)
        )

    # --- Effects of the core --------------------------------------------------------------------------------

    async def _report(self, message: ToCoordinator) -> None:
        """Queue a report for sending. Raises StaleIncarnationError, LocalProtocolError: nothing was sent."""
        self._handle(ReportWanted(message, of=self._taken))
        await trio.lowlevel.checkpoint()

    def _handle(self, event: ParticipantInput) -> None:
        for effect in self._core.handle(event, trio.current_time()):
            if isinstance(effect, SendReport):
                self._to_send.send_nowait(control_frame(effect.message))  # here: its caller gets the error
            elif isinstance(effect, OrderRefused):
                logger.warning("worker %d refused an order: %s", self._spec.worker, effect.refusal)
            else:
                assert isinstance(effect, ParticipantEnded)
                self._ended = effect.error
        self._changed.set()
        self._changed = trio.Event()

    async def _receive(self) -> None:
        try:
            while self._ended is None:
                self._handle(MessageIn(decode_from_coordinator(await self._link.receive())))
        except (DosError, LinkClosedError) as error:
            self._handle(LinkGone(str(error.args[0])))

    async def _send(self) -> None:
        try:
            async for frame in self._outgoing:
                await self._link.send(frame)
        except (BrokenConnectionError, ClosedError) as error:
            self._handle(LinkGone(str(error.args[0])))

    async def _beat(self) -> None:
        while (due := self._core.deadline()) is not None:
            await trio.sleep_until(due)
            self._handle(ParticipantTick(due, self._counters()))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Transfer messages and heartbeats inside the context. For `open_participant`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receive)
            nursery.start_soon(self._beat)
            try:
                async with trio.open_nursery() as sending:
                    sending.start_soon(self._send)
                    try:
                        yield
                    finally:
                        self._to_send.close()  # queued reports are still sent, within a time limit
                        sending.cancel_scope.deadline = trio.current_time() + limits.handshake_timeout_s
            finally:
                nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_participant(
    spec: ParticipantSpec, *, counters: Callable[[], Counters]
) -> AsyncIterator[Participant]:
    """Connect to the coordinator; both ends prove the job key. Raises BrokenConnectionError,
    HandshakeError.
    """
    try:
        link = await connect_link(
            *spec.coordinator,
            key=spec.job_key,
            hello=LinkHello(role="control", job=spec.job, worker=spec.worker, attempt=spec.attempt),
        )
    except BrokenConnectionError as error:
        host, port = spec.coordinator
        raise BrokenConnectionError(
            f"worker {spec.worker} on {runtime().host_name()} cannot connect to the driver: {error.args[0]}",
            remedy=f"if {host} is not the address at which this host reaches the driver, pass"
            " coordinator_address or set spark.driver.host; if a firewall is between them, open port"
            f" {port} (`port_range`)",
        ) from error
    participant = Participant(spec, link, counters)
    try:
        async with participant.running():
            yield participant
    finally:
        with trio.CancelScope(shield=True):
            await link.aclose()


def _reportable(text: str) -> str:
    """Return a text from anybody's exception as a message can have it: encodable, and short enough."""
    half = limits.report_chars_max // 2
    if len(text) > limits.report_chars_max:
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"
    return encodable(text)
