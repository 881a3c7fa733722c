"""The worker's end of the control link. For the worker runtime (`dataflow.worker`): what to call, in which
order.

    async with open_participant(spec, counters=sample) as control:
        # sample() -> Counters; called each second on the trio thread, must not block and runs no user code
        await control.join(exchange_host=..., exchange_port=..., scratch=...)
            # control.local_address[0] is the address of this machine as the coordinator's network sees it:
            # the default for exchange_host
        while True:
            order = await control.next_order()        # raises StoppedError, OrphanedError: end the process
            match order:
                case Restore():                       # also any time later: drop everything of the
                incarnation before
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
                case Committed():                     # sinks publish cut order.cut
                    if order.final: await control.finished()     # then next_order() raises StoppedError

        # whatever goes wrong meanwhile:
        await control.failed("operator", operator=..., position=..., message=..., traceback=...)   # user code
        await control.failed("peer", peer=3, message=...)         # an exchange link broke: wait for the
        next Restore await control.failed("fenced", epoch_held=error.epoch_held, message=...)  # the claim
        was lost: wait likewise

An order of an older incarnation than the newest Restore is never handed out, and a vote or report of an
older one is never sent: `next_order` and the reports check it (core/participant.py). Reports raise
`StaleIncarnationError` when a newer Restore has come meanwhile: drop what you were doing and take the next
order.

The control link has no second try: when it breaks, the coordinator counts this attempt as lost.
`next_order` then raises OrphanedError. Heartbeats are sent and expected by a task of this package on the
same trio loop; time in which that loop itself was late does not count against the coordinator.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from checkpoint import limits
from checkpoint.core.manifest import WorkerCut
from checkpoint.core.messages import Committed, Counters, FailureKind, RequestCut, Restore, Start

Order: TypeAlias = Restore | Start | RequestCut | Committed


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
    """See the top of this file. Not thread-safe: call it on the trio loop it was opened on."""

    local_address: tuple[str, int]
    """(host, port) of our end of the control link."""
    incarnation: int
    """Of the newest Restore, 0 before the first."""

    async def join(
        self,
        *,
        exchange_host: str,
        exchange_port: int,
        scratch: str = "",
        packages: Mapping[str, str] | None = None,
    ) -> None:
        """Introduce this worker. Call once, when its exchange listener listens."""
        raise NotImplementedError

    async def next_order(self) -> Order:
        """The next thing to do. Raises StoppedError (the coordinator ended us) and OrphanedError (it is
        gone).
        """
        raise NotImplementedError

    async def restored(
        self, *, last_step: int, replayed_bytes: int = 0, seconds: float = 0.0, scratch_bytes: int = 0
    ) -> None:
        """This worker stands at the ordered cut, its chains' starts acknowledged."""
        raise NotImplementedError

    async def prepared(
        self, *, cut: int, step: int, positions: WorkerCut, phases_s: Mapping[str, float] | None = None
    ) -> None:
        """Vote. Everything the positions name is synced on the quorum already."""
        raise NotImplementedError

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
        raise NotImplementedError

    async def finished(self) -> None:
        """The final cut is committed and everything of it is published."""
        raise NotImplementedError


@asynccontextmanager
async def open_participant(
    spec: ParticipantSpec, *, counters: Callable[[], Counters]
) -> AsyncIterator[Participant]:
    """Dial the coordinator and prove the job key, both ways. Raises BrokenConnectionError, HandshakeError."""
    del spec, counters
    yield Participant()
    raise NotImplementedError
