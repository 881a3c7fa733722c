"""The worker's end of the control link. The worker runtime (`dataflow.worker.link_thread`) uses it so:

    async with open_participant(spec, counters=sample) as control:   # sample: each second, must not block
        await control.join(exchange_host=..., exchange_port=..., scratch=...)
        while True:
            order = await control.next_order()        # raises StoppedError, OrphanedError: end the process

A Restore discards the earlier incarnation: claim the directory with its epoch, open the chains at its
positions, load the state, dial its peers, then report Restored. An order of an older incarnation is never
returned, and a report of one never sent (core/links/participation.py). The control link is not reconnected.
"""

import logging
import platform
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio
from msgspec.structs import replace

from checkpoint import limits
from checkpoint.core.links.frames import ChannelFrame, control_frame, decode_from_coordinator
from checkpoint.core.links.handshake import LinkHello
from checkpoint.core.links.messages import (
    VERSIONS,
    CopiedAhead,
    CopyAhead,
    Counters,
    Failed,
    Finished,
    Join,
    ToCoordinator,
    Vote,
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
    """The control link of a worker, on its trio loop. local_address: (host, port) of our end."""

    def __init__(self, spec: ParticipantSpec, link: Link, counters: Callable[[], Counters]) -> None:
        self.local_address = link.local_address
        self._spec = spec
        self._link = link
        self.counters = counters
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
        await self.report(
            Join(
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
        """Wait for and return the next order. Raises StoppedError, OrphanedError, also later."""
        while not self._core.orders:
            if self._ended is not None:
                raise self._ended
            await self._changed.wait()
        order = self._core.orders.popleft()
        if not isinstance(order, CopyAhead):  # which begins no incarnation
            self._taken = order.incarnation
        return order

    # --- Effects of the core --------------------------------------------------------------------------------

    async def report(self, message: ToCoordinator) -> None:
        """Queue a report. Its address, and the counters of a Vote or Finished, are filled in.

        Raises StaleIncarnationError, LocalProtocolError: nothing was sent.
        """
        if isinstance(message, Vote):
            counters = self.counters()
            message = replace(message, produced=counters.step, operators=counters.operators)
        elif isinstance(message, Finished):
            message = replace(message, operators=self.counters().operators)
        elif isinstance(message, Failed):
            texts = {
                name: _reportable(getattr(message, name)) for name in ("position", "message", "traceback")
            }
            message = replace(message, **texts)
        elif isinstance(message, CopiedAhead):
            message = replace(message, error=_reportable(message.error))
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
            self._handle(ParticipantTick(due, self.counters()))

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
    """Connect to the coordinator. Raises BrokenConnectionError, HandshakeError."""
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
