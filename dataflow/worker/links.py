"""The links of a worker: control link, exchange listener, store, and one `LinkIncarnation` after the other.

Orders of the coordinator are executed in the order in which they arrive; an incarnation is ended before the
next one begins. Everything here runs on trio. The circuit is reached by messages only.
`worker/own_thread.py` provides the thread.
"""

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio

from checkpoint import Committed, CopyAhead, Counters, Host, Pause, RequestCheckpoint, Restore, Start, View
from checkpoint.errors import StaleIncarnationError, StoppedError
from checkpoint.limits import stop_grace_s
from checkpoint.link import Link, serve_links
from checkpoint.participant import Participant, open_participant
from dataflow import limits
from dataflow.errors import CircuitStoppedError, UserFault
from dataflow.worker.copying import CopiedState, copy_ahead
from dataflow.worker.failures import failure_of, first_error
from dataflow.worker.link_thread import LinkIncarnation
from dataflow.worker.messages import (
    CheckpointRequested,
    CircuitFailed,
    Inbox,
    LinksEnded,
    PauseRequested,
    PublishCheckpoint,
    Published,
    Shared,
    ToLinks,
)
from dataflow.worker.spec import WorkerSpec
from dos_client import Claim, Store, open_store, randomness
from dos_protocol.errors import DosError

logger = logging.getLogger("dos.dataflow")


class Links:
    """The link side of one worker.

    Run `run`; call `deliver` in the same trio run for messages of the circuit.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        inbox: Inbox,
        shared: Shared,
        host: Callable[[int, int], None],
        metrics: Callable[[str], str] = lambda _: "",
    ) -> None:
        """host: runs an attempt of another worker in this process, as `host(worker, attempt)`. metrics:
        returns the address of this worker's figures, from the host at which others reach it.
        """
        self._metrics = metrics
        self._spec = spec
        self._host = host
        self._inbox = inbox
        self._shared = shared
        self._incarnation: LinkIncarnation | None = None
        self._new_incarnation = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._control: Participant | None = None
        self._copies = CopiedState(spec.scratch_dir)
        """What is copied ahead of a change of the layout."""
        self._copying = trio.CancelScope()
        self._unpublished = 0
        """The committed checkpoint that the circuit has to publish, 0 for none."""
        self._published = trio.Event()

    def deliver(self, message: ToLinks) -> None:
        """Take a message of the circuit. Never blocks. Drops a message of an earlier incarnation."""
        incarnation, nursery = self._incarnation, self._nursery
        if incarnation is None or nursery is None or message.incarnation != incarnation.number:
            return
        failed = isinstance(message, CircuitFailed)
        if failed or (isinstance(message, Published) and message.checkpoint == self._unpublished):
            self._unpublished = 0
            self._published.set()
        if not isinstance(message, CircuitFailed):
            incarnation.deliver(message)
        elif incarnation.is_ending:
            logger.error("worker %d failed as it ended: %s", self._spec.worker, message.message)
        else:
            nursery.start_soon(self._report_circuit, message)

    # --- the run ------------------------------------------------------------------------------------------

    async def run(self) -> LinksEnded:
        """Run until the coordinator ends this worker or an error does.

        The result is also sent to the circuit.
        """
        try:
            ended = LinksEnded(await self._run())
        except Exception as error:
            first = first_error(error)
            logger.error("the links of worker %d ended: %s", self._spec.worker, first)
            ended = LinksEnded(f"{type(first).__name__}: {first}", first)
        self._inbox.put(ended)
        return ended

    async def _run(self) -> str:
        spec = self._spec
        stopped = ""
        async with (
            open_participant(spec.participant(), counters=self.sample) as control,
            open_store(spec.store_url, token=spec.token, client=f"{spec.region}.w{spec.worker}") as store,
            trio.open_nursery() as nursery,
        ):
            self._control, self._nursery = control, nursery
            serve = partial(
                serve_links,
                self._accepted,
                job=spec.region,
                key=spec.job_key,
                host=spec.listen_host,
                ports=spec.ports(),
            )
            address: tuple[str, int] = await nursery.start(serve)
            host = spec.advertise_host or control.local_address[0]
            await control.join(
                exchange_host=host,
                exchange_port=address[1],
                scratch=spec.scratch_dir,
                metrics=self._metrics(host),
            )
            try:
                await self._take_orders(control, store, nursery)
            except StoppedError as error:
                stopped = str(error.args[0])
                await self._publish_committed()
            if self._incarnation is not None:
                await self._incarnation.end()
            nursery.cancel_scope.cancel()
        return stopped

    async def _publish_committed(self) -> None:
        """Wait until the rows of the last checkpoint are visible. If that takes too long, or the circuit
        fails, they become visible when the region runs again.
        """
        if self._incarnation is not None:
            self._incarnation.is_ending = True  # peers end too: no loss of them counts
        with trio.move_on_after(stop_grace_s):
            while self._unpublished:
                await self._published.wait()

    async def _take_orders(self, control: Participant, store: Store, nursery: trio.Nursery) -> None:
        while True:
            order = await control.next_order()
            if isinstance(order, Restore):
                await self._begin(order, control, store, nursery)
            elif isinstance(order, CopyAhead):
                nursery.start_soon(self._copy_ahead, order, control, store)
            elif self._incarnation is None or order.incarnation != self._incarnation.of_region:
                logger.warning("ignored an order for incarnation %d: not current", order.incarnation)
            else:
                self._take_order(order, self._incarnation)

    def _take_order(
        self, order: View | Host | Start | RequestCheckpoint | Committed | Pause, incarnation: LinkIncarnation
    ) -> None:
        number = incarnation.number
        if isinstance(order, Start):
            incarnation.start(order)
        elif isinstance(order, View):
            incarnation.view(order)
        elif isinstance(order, Host):
            self._host(order.hosted, order.attempt)
        elif isinstance(order, RequestCheckpoint):
            self._inbox.put(CheckpointRequested(number, order.checkpoint, order.final))
        elif isinstance(order, Committed):
            incarnation.committed(order)
            self._unpublished, self._published = order.checkpoint, trio.Event()
            self._inbox.put(PublishCheckpoint(number, order.checkpoint, order.final, order.step))
        else:
            self._shared.pausing = order.pause > 0
            self._inbox.put(PauseRequested(number, order.pause))

    async def _begin(self, order: Restore, control: Participant, store: Store, nursery: trio.Nursery) -> None:
        """End the current incarnation and begin the next.

        The shared number is set first, so that the circuit stops reading input for the old incarnation.
        """
        self._shared.incarnation = order.epoch
        if self._incarnation is not None:
            await self._incarnation.end()
        self._unpublished = 0
        self._shared.peers_at = 0
        self._shared.room = True
        self._shared.pausing = False
        self._shared.snapshot_due = order.forks
        self._copying.cancel()
        copies, self._copies = self._copies, CopiedState(self._spec.scratch_dir)
        self._incarnation = LinkIncarnation(
            self._spec, order, control, store, inbox=self._inbox, shared=self._shared, copies=copies
        )
        nursery.start_soon(self._run_incarnation, self._incarnation, control)
        self._new_incarnation.set()
        self._new_incarnation = trio.Event()

    async def _copy_ahead(self, order: CopyAhead, control: Participant, store: Store) -> None:
        """Prepare for another layout, in place of what was prepared before. Report how far that is."""
        self._copying.cancel()
        self._copying = trio.CancelScope()
        self._copies = copies = CopiedState(self._spec.scratch_dir)
        reported_at = -math.inf

        async def report(copied: int, total: int) -> None:
            nonlocal reported_at
            if trio.current_time() > reported_at + limits.copied_report_s:
                reported_at = trio.current_time()
                await control.copied(copied, total)

        # Obsolete if an order has arrived meanwhile, which may end this worker.
        with self._copying, suppress(StaleIncarnationError):
            try:
                plan = self._spec.graph.plan()
                total = await copy_ahead(store, order, plan, copies, report, randomness.fresh_id())
            except (DosError, UserFault) as error:
                await control.copied(0, 0, error=str(error))
            else:
                await control.copied(total, total, done=True)

    async def _run_incarnation(self, incarnation: LinkIncarnation, control: Participant) -> None:
        failure = await incarnation.run()
        if failure is None or isinstance(failure, StaleIncarnationError):
            return
        with suppress(StaleIncarnationError):  # a newer order has arrived; the report is obsolete
            await self._report(failure, control)

    async def _report_circuit(self, report: CircuitFailed) -> None:
        """Report that the circuit cannot continue. The links stay open until the coordinator decides.

        If they closed, peers would report a lost worker, perhaps before this report arrives. The region would
        then reset, fail on the same row again, and finally not report the actual error.
        """
        assert self._control is not None
        with suppress(StaleIncarnationError):
            await self._control.failed(
                report.kind,
                message=report.message,
                operator=report.operator,
                position=report.position,
                traceback=report.traceback,
            )
            if report.kind == "internal":
                raise CircuitStoppedError(report.message)

    async def _report(self, error: Exception, control: Participant) -> None:
        """Report the error that ended an incarnation. Raises it if it is internal, which ends the process."""
        logger.warning("worker %d, incarnation %d: %s", self._spec.worker, self._shared.incarnation, error)
        failure = failure_of(error)
        await control.failed(
            failure.kind,
            message=failure.message,
            peer=failure.peer,
            epoch_held=failure.epoch_held,
            damaged=failure.damaged,
            operator=failure.operator,
            position=failure.position,
        )
        if failure.kind == "internal":
            raise error

    async def _accepted(self, link: Link) -> None:
        """Serve a link that a peer dialled.

        Wait for its incarnation: the peer may have got its order earlier.
        """
        wanted = link.hello.to_term or link.hello.incarnation
        if link.hello.role != "exchange":
            logger.warning("refused a link of role %r: not an exchange link", link.hello.role)
            return
        with trio.move_on_after(limits.peer_wait_s):
            while self._incarnation is None or self._incarnation.number < wanted:
                await self._new_incarnation.wait()
        if self._incarnation is not None and self._incarnation.number == wanted:
            await self._incarnation.receive_from(link)
        else:
            logger.info("refused an exchange link of incarnation %d, which does not run here", wanted)

    def sample(self) -> Counters:
        """Return the counters of now. In the trio run of the links."""
        shared, claim = self._shared, None if self._incarnation is None else self._incarnation.claim
        return Counters(
            step=shared.step,
            rows_in=shared.rows_in,
            rows_out=shared.rows_out,
            bytes_in=shared.bytes_in,
            exhausted=shared.exhausted,
            waiting_for_store=claim is not None and claim.waiting,
            waiting_reason=claim.status().waiting if claim is not None and claim.waiting else "",
            lag_bytes=0 if claim is None else _lag_bytes(claim),
            busy_s=round(shared.busy_s, 3),
            load_s=round(shared.load_s, 3),
            backlog_bytes=shared.backlog_bytes,
            operators=shared.operators,
            event_times=shared.event_times,
            operator=shared.running.name,
        )


def _lag_bytes(claim: Claim) -> int:
    """Return the bytes that are appended to the chains but not yet synced on the quorum."""
    return sum(max(0, one.size - one.synced) for one in claim.targets.values())
