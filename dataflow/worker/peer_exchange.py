"""Choose the exchange of a worker by the recovery of its region."""

from collections.abc import Callable
from typing import TypeAlias

from checkpoint import Restore
from dataflow.errors import PeerLostError
from dataflow.graph.builder import GraphPlan
from dataflow.worker.exchange import PeerSuspected, ResumedExchange
from dataflow.worker.global_exchange import Exchange
from dataflow.worker.journals import after_step
from dataflow.worker.messages import Inbox, Shared
from dataflow.worker.spec import WorkerSpec

PeerExchange: TypeAlias = Exchange | ResumedExchange


def make_exchange(
    spec: WorkerSpec,
    order: Restore,
    plan: GraphPlan,
    *,
    inbox: Inbox,
    shared: Shared,
    lost: Callable[[PeerLostError], None],
    suspects: Callable[[PeerSuspected], None],
) -> PeerExchange:
    """Return the links to the peers: with global recovery the loss of one ends the incarnation (`lost`), with
    local recovery it is reported (`suspects`).
    """
    if not order.is_local:
        return Exchange(
            spec,
            order.incarnation,
            len(order.layout.workers),
            inbox=inbox,
            shared=shared,
            lost=lost,
            silence_timeout_s=plan.silence_timeout,
        )
    return ResumedExchange(
        spec,
        order,
        at_most_once=plan.delivery == "at-most-once",
        after_step=after_step(order),
        inbox=inbox,
        shared=shared,
        suspects=suspects,
    )
