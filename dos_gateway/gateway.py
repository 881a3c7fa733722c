"""A gateway: a standby that watches the chain, and while it has the claim, the server of the tree."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from dos_client import Claim, QuorumUnavailableError, Store, randomness
from dos_gateway.core.hadoop import HadoopError, standby
from dos_gateway.core.roles import NO_REACH, CopyReach, TreeWatch, acknowledged_at_most
from dos_gateway.limits import claim_wait_s, standby_wait_s, watch_s
from dos_gateway.serving import CHAIN, ServedTree, clock, directory_of
from dos_protocol.errors import DosError
from journal import parse_segment_name

logger: Final = logging.getLogger("dos.gateway")


class Gateway:
    """One gateway of a tree. `run` it; `served` gives the tree to requests."""

    def __init__(self, store: Store, name: str, *, served_at: str, max_bytes: int | None = None) -> None:
        self.name = name
        self._store, self._served_at, self._max_bytes = store, served_at, max_bytes
        self._directory = directory_of(name)
        self._served: ServedTree | None = None
        self._watch = TreeWatch()
        self._changed = trio.Event()
        self._order = trio.Lock()

    @property
    def serves(self) -> ServedTree | None:
        """The tree, while this gateway serves it."""
        return self._served

    async def served(self) -> ServedTree:
        """Return the tree, in the order of arrival. Raises HadoopError if another gateway serves it.

        "I am a standby" rests on what was seen after the request came: a client whose gateway has died tries
        the others dozens of times without a pause, and then gives up.
        """
        arrived, deadline = clock(), trio.current_time() + standby_wait_s
        with trio.move_on_at(deadline):
            # One after the other: a request that waits is executed before those that came after it.
            async with self._order:
                while self._served is None:
                    if self._watch.grew_at > arrived:
                        raise standby("another gateway serves the tree")
                    await self._changed.wait()
                return self._served
        raise standby()

    async def run(self) -> None:
        """Watch, take over, serve, again and again. Raises what is not an error of the store."""
        while True:
            try:
                await self._wait_silent()
                await self._take_over()
            except* (DosError, HadoopError) as group:
                for error in _each(group):
                    logger.warning("%s: not served here: %s", self.name, error)
            await trio.sleep(watch_s)

    async def _take_over(self) -> None:
        claim: Claim | None = None
        with trio.move_on_after(claim_wait_s):
            claim = await self._store.claim(self._directory, self._watch.epoch + 1, randomness.fresh_id())
        if claim is None:
            return
        self._watch.begin(claim.epoch)
        async with claim:
            begun = clock()
            served = await ServedTree.open(
                claim,
                self._store.record.generation,
                served_at=self._served_at,
                name=self.name,
                max_bytes=self._max_bytes,
            )
            files, took = len(served.tree.by_id), clock() - begun
            logger.info(
                "%s: served here from epoch %d on: %d files, %.2f s", self.name, claim.epoch, files, took
            )
            with self._serving(served):
                await served.run()

    @contextmanager
    def _serving(self, served: ServedTree) -> Iterator[None]:
        self._served = served
        self._tell()
        try:
            yield
        finally:
            self._served = None

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _wait_silent(self) -> None:
        """Return when the chain has not grown for long enough: its writer is dead, stuck, or cut off."""
        jitter = 1 + 0.2 * randomness.jitter()
        self._watch.begin()
        while True:
            try:
                await self._look()
            except QuorumUnavailableError:
                self._watch.observe(None, self._watch.epoch, clock())
            if self._watch.is_silent(clock(), jitter):
                return
            await trio.sleep(watch_s)

    async def _look(self) -> None:
        view = await self._store.inspect(self._directory)
        copies = []
        for objects in view.answers.values():
            reach = NO_REACH
            for name, info in objects.items():
                segment = parse_segment_name(name)
                if segment is not None and segment.chain == CHAIN:
                    reach = max(reach, CopyReach(segment.epoch, segment.base, info.synced))
            copies.append(reach)
        record = self._store.record
        reached = acknowledged_at_most(copies, len(record.voters), record.ack_quorum)
        before = self._watch.grew_at
        self._watch.observe(reached, view.epoch_seen, clock())
        if self._watch.grew_at > before:
            self._tell()


def _each(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _each(error)
        else:
            yield error
