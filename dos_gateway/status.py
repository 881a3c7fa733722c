"""What the store alone shows of a tree: who serves it, what it holds. No gateway is asked."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple

import trio

from dos_client import Store
from dos_gateway.core.confs import logical_name
from dos_gateway.core.records import read_change
from dos_gateway.core.roles import NO_REACH, CopyReach, TreeWatch, acknowledged_at_most
from dos_gateway.core.status import TreeStatus, server_text
from dos_gateway.core.tree import Tree, TreeHead
from dos_gateway.limits import status_wait_s, tree_reads_max, trees_read_max, watch_s
from dos_gateway.serving import CHAIN, clock, directory_of, now_ms, replay
from dos_protocol.errors import BusyError, DosError, NotFoundError
from journal import ChainState, Op, inspect_chain, parse_segment_name, read_plain_batches


class TreeSight(NamedTuple):
    """One look at a chain. reached: as of `acknowledged_at_most`. epoch: the highest that was granted."""

    reached: CopyReach | None
    epoch: int


async def look(store: Store, directory: str) -> TreeSight:
    """Return how far the chain of a tree reaches. Raises QuorumUnavailableError."""
    view = await store.inspect(directory)
    copies = []
    for objects in view.answers.values():
        reach = NO_REACH
        for name, info in objects.items():
            segment = parse_segment_name(name)
            if segment is not None and segment.chain == CHAIN:
                reach = max(reach, CopyReach(segment.epoch, segment.base, info.synced))
        copies.append(reach)
    record = store.record
    return TreeSight(acknowledged_at_most(copies, len(record.voters), record.ack_quorum), view.epoch_seen)


async def server_of(store: Store, name: str) -> tuple[int, str]:
    """Return the epoch of the newest segment of a tree, and the gateway that wrote its newest snapshot: it
    serves the tree, if the chain grows. Raises the errors of `inspect_chain` and `read_plain_batches`.
    """
    directory = directory_of(name)
    state = await inspect_chain(store, directory, CHAIN)
    epoch = 0 if state.end is None else state.end.epoch
    async with aclosing(read_plain_batches(store, state, directory=directory)) as batches:
        async for batch in batches:
            for end, record in batch:
                if record.op is Op.FS_CHANGE:
                    head = read_change(record, end)
                    return epoch, server_text(head.served_at if isinstance(head, TreeHead) else "", epoch)
    return epoch, server_text("", epoch)


async def read_tree(
    store: Store, directory: str, inspect: Callable[..., Awaitable[ChainState]] = inspect_chain
) -> tuple[ChainState, Tree]:
    """Return the chain of a tree, as `inspect` finds it, and the tree. Raises the errors of `inspect` and of
    `read_plain_batches`.
    """
    tries = tree_reads_max
    while True:
        state = await inspect(store, directory, CHAIN)
        try:
            return state, await replay(store, state, directory)
        except (NotFoundError, BusyError):  # its gateway has released a segment meanwhile
            tries -= 1
            if not tries:
                raise


async def read_status(store: Store, name: str) -> TreeStatus:
    """Read a tree, and watch its chain for `status_wait_s` at most. Raises as `read_tree`."""
    directory, watch, begun = directory_of(name), TreeWatch(), clock()
    watch.observe(*await look(store, directory), clock())
    state, tree = await read_tree(store, directory)
    epoch = 0 if state.end is None else state.end.epoch
    seen = await look(store, directory)
    watch.observe(*seen, clock())
    while watch.wrote_at < begun and (epoch or seen.epoch) and clock() < begun + status_wait_s:
        await trio.sleep(watch_s)
        seen = await look(store, directory)
        watch.observe(*seen, clock())
    below = tree.summary(())
    return TreeStatus(
        tree=name,
        host=logical_name(store.record.store_id, name),
        epoch=epoch,
        claimed=seen.epoch,
        grows=watch.wrote_at >= begun,
        served_at=tree.served_at,
        sign_ms=tree.sign_ms,
        newest_ms=tree.newest_ms,
        files=below.files,
        directories=below.directories - 1,
        live_bytes=tree.space.live_bytes,
        chain_bytes=tree.space.bytes_up_to(state.size),
        max_bytes=tree.max_bytes,
        segments=len(tree.space.notes),
        unproved=state.unproved_text,
    )


async def tree_rows(store: Store) -> list[dict[str, Any]]:
    """Return each tree of a store as `dos gateway status --json` prints it; of one that cannot be read, its
    name and why. Raises QuorumUnavailableError.
    """
    suffix = directory_of("")
    names = [one.removesuffix(suffix) for one in await store.list_directories() if one.endswith(suffix)]
    rows: dict[str, dict[str, Any]] = {}
    limit = trio.CapacityLimiter(trees_read_max)

    async def read(name: str) -> None:
        async with limit:
            try:
                found = await read_status(store, name)
            except DosError as error:
                rows[name] = {"tree": name, "problems": [{"problem": str(error), "remedy": ""}]}
                return
        if found.epoch or found.unproved:  # otherwise it is a directory of another kind
            rows[name] = found.as_json(now_ms())

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(read, name)
    return [rows[name] for name in sorted(rows)]
