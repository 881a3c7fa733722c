"""The worker's end of the control link. For the worker runtime (`dataflow.worker.process`): what to call, in which
order.

    async with open_participant(spec, counters=sample) as control:
        # sample() -> Counters; called each second on the trio thread, must not block and runs no user code
        await control.join(exchange_host=..., exchange_port=..., scratch=...)
            # control.local_address[0] is the address of this machine as the coordinator's network sees it:
            # the default for exchange_host
        while True:
            order = await control.next_order()        # raises StoppedError, OrphanedError: end the process
            match order:
                case Restore():                       # also any time later: drop the incarnation before
                    # 1. stop the circuit thread; close exchange links, chain writers and the claim before it
                    # 2. claim NAME.wNNNN with epoch = order.incarnation (`worker_directory`), await it
                    # 3. store = await StateStore.open(claim, at=order.restore and its WorkerCut.state, ...)
                    #    steps = await StepsLog.open(claim, ...): rolled forward, never back
                    # 4. load the state into the operators; sources and sinks go to their positions in the cut
                    # 5. dial every peer of order.peers (order.peers[own] is oneself), role "exchange",
                    #    incarnation = order.incarnation; refuse links of other incarnations
                    await control.restored(last_step=steps.last_step, replayed_bytes=..., seconds=...)
                case Start():                         # all workers stand
                    # run; steps <= order.replay_until_step take their recorded division, later ones are
                    # divided anew and recorded with steps.record(...) before they are ended
                case RequestCut():                    # flag the next STEP_END with cut=order.cut (and FINAL)
                    # nothing is answered now. At the end of the step at which the alignment says `cut`:
                    #   drain, store.put(...) each operator's changes, note source and sink positions
                    #   state = await store.commit(cut)     (synced on the quorum)
                    #   position = await steps.synced(step) (likewise)
                    await control.prepared(cut=..., step=..., positions=WorkerCut(...), phases_s=...)
                    # the next step runs meanwhile
                case Pause():                         # take no input; order.pause 0: go on
                    await control.paused(order.pause, step=...)
                case Committed():                     # sinks publish cut order.cut
                    if order.final: await control.finished()     # then next_order() raises StoppedError

        # whatever goes wrong meanwhile:
        await control.failed("operator", operator=..., position=..., message=..., traceback=...)   # user code
        await control.failed("peer", peer=3, message=...)     # an exchange link broke: a Restore comes
        await control.failed("fenced", epoch_held=error.epoch_held, message=...)  # the claim is lost

An order of an older incarnation than the newest Restore is never handed out, and a vote or report of an
older one is never sent: `next_order` and the reports check it (core/participant.py). Reports raise
`StaleIncarnationError` when a newer Restore has come meanwhile: drop what you were doing and take the next
order.

The control link has no second try: when it breaks, the coordinator counts this attempt as lost.
`next_order` then raises OrphanedError. Heartbeats are sent and expected by a task of this package on the
same trio loop; time in which that loop itself was late does not count against the coordinator.
"""

import logging
import platform
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from checkpoint import limits
from checkpoint.core.handshake import LinkHello
from checkpoint.core.manifest import WorkerCut
from checkpoint.core.messages import (
    Counters,
    Failed,
    FailureKind,
    Finished,
    Join,
    Paused,
    Prepared,
    Restored,
    ToCoordinator,
    WantsCut,
    control_frame,
    decode_from_coordinator,
)
from checkpoint.core.participant import (
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
from checkpoint.core.participant import ParticipantCore as Core
from checkpoint.errors import LinkClosedError
from checkpoint.link import Link, connect_link
from checkpoint.runtime import runtime
from dos_protocol.errors import BrokenConnectionError, ClosedError, DosError

__all__ = ["Order", "Participant", "ParticipantSpec", "open_participant"]

logger: Final = logging.getLogger("dos.checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticipantSpec:
    """Who this worker is and where its coordinator listens."""

    job: str
    worker: int
    attempt: int
    coordinator: tuple[str, int]
    job_key: bytes = field(repr=False)
    heartbeat_s: float = limits.heartbeat_s
    orphan_timeout_s: float = limits.orphan_timeout_s


class Participant:
    """See the top of this file. Not thread-safe: call it on the trio loop it was opened on.

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
        """The incarnation of the last order handed out: what the runtime's reports are about."""
        self._ended: DosError | None = None
        self._changed = trio.Event()
        # Not bounded, and small all the same: reports are few, and a coordinator that takes none for the
        # orphan time-out ends this worker.
        self._to_send, self._outgoing = trio.open_memory_channel[ToCoordinator](float("inf"))

    @property
    def incarnation(self) -> int:
        """Of the newest Restore, 0 before the first."""
        return self._core.incarnation

    async def join(
        self,
        *,
        exchange_host: str,
        exchange_port: int,
        scratch: str = "",
        packages: Mapping[str, str] | None = None,
    ) -> None:
        """Introduce this worker. Call once, when its exchange listener listens."""
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
                python=platform.python_version(),
                packages=dict(packages or {}),
            )
        )

    async def next_order(self) -> Order:
        """The next thing to do.

        Raises StoppedError (the coordinator ended us) and OrphanedError (it is gone), and goes on raising it.
        """
        while not self._core.orders:
            if self._ended is not None:
                raise self._ended
            await self._changed.wait()
        order = self._core.orders.popleft()
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
        """This worker stands at the ordered cut, its chains' starts acknowledged."""
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

    async def prepared(
        self, *, cut: int, step: int, positions: WorkerCut, phases_s: Mapping[str, float] | None = None
    ) -> None:
        """Vote. Everything the positions name is synced on the quorum already."""
        counters = self._counters()
        await self._report(
            Prepared(
                job=self._spec.job,
                worker=self._spec.worker,
                cut=cut,
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
    ) -> None:
        """Report a failure: see FailureKind for what follows. Only the first of an incarnation counts."""
        await self._report(
            Failed(
                job=self._spec.job,
                worker=self._spec.worker,
                kind=kind,
                operator=operator,
                position=position,
                message=message,
                traceback=traceback,
                peer=peer,
                epoch_held=epoch_held,
            )
        )

    async def wants_cut(self, step: int) -> None:
        """A start operator waits for a cut at the end of that step."""
        await self._report(WantsCut(job=self._spec.job, worker=self._spec.worker, step=step))

    async def paused(self, pause: int, step: int) -> None:
        """The order to pause of that number is carried out, after that step."""
        await self._report(
            Paused(
                job=self._spec.job,
                worker=self._spec.worker,
                pause=pause,
                step=step,
                counters=self._counters(),
            )
        )

    async def finished(self) -> None:
        """The final cut is committed and everything of it is published."""
        await self._report(
            Finished(job=self._spec.job, worker=self._spec.worker, operators=self._counters().operators)
        )

    # --- performing what the core says ------------------------------------------------------------------

    async def _report(self, message: ToCoordinator) -> None:
        """Hand a report to the sender. Raises StaleIncarnationError, LocalProtocolError: nothing was sent."""
        self._handle(ReportWanted(message, of=self._taken))
        await trio.lowlevel.checkpoint()

    def _handle(self, event: ParticipantInput) -> None:
        for effect in self._core.handle(event, trio.current_time()):
            if isinstance(effect, SendReport):
                self._to_send.send_nowait(effect.message)
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
            async for message in self._outgoing:
                await self._link.send(control_frame(message))
        except (BrokenConnectionError, ClosedError) as error:
            self._handle(LinkGone(str(error.args[0])))

    async def _beat(self) -> None:
        while (due := self._core.deadline()) is not None:
            await trio.sleep_until(due)
            self._handle(ParticipantTick(due, self._counters()))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Move messages and heartbeats meanwhile. `open_participant`'s part."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receive)
            nursery.start_soon(self._beat)
            try:
                async with trio.open_nursery() as sending:
                    sending.start_soon(self._send)
                    try:
                        yield
                    finally:
                        self._to_send.close()  # what was reported still goes out, for a while
                        sending.cancel_scope.deadline = trio.current_time() + limits.handshake_timeout_s
            finally:
                nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_participant(
    spec: ParticipantSpec, *, counters: Callable[[], Counters]
) -> AsyncIterator[Participant]:
    """Dial the coordinator and prove the job key, both ways. Raises BrokenConnectionError, HandshakeError."""
    link = await connect_link(
        *spec.coordinator,
        key=spec.job_key,
        hello=LinkHello(role="control", job=spec.job, worker=spec.worker, attempt=spec.attempt),
    )
    participant = Participant(spec, link, counters)
    try:
        async with participant.running():
            yield participant
    finally:
        with trio.CancelScope(shield=True):
            await link.aclose()
