"""A gateway: a standby that watches the chain, and while it has the claim, the server of the tree."""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from dos_client import Claim, QuorumUnavailableError, Store, randomness
from dos_gateway.core.hadoop import HadoopError, refused, standby
from dos_gateway.core.roles import TreeWatch
from dos_gateway.core.space import room_for_files
from dos_gateway.figures import GatewayFigures, TreeFigures
from dos_gateway.limits import (
    alone_wait_s,
    claim_patience_s,
    claim_wait_s,
    role_wait_s,
    silent_s,
    standby_wait_s,
    watch_s,
)
from dos_gateway.serving import ServedTree, clock, directory_of
from dos_gateway.status import look, server_of
from dos_protocol.errors import DosError, FencedError

logger: Final = logging.getLogger("dos.gateway")


class Gateway:
    """One gateway of a tree. `run` it; `served` gives the tree to requests.

    served_at: where others find it, for messages. alone: its clients know no other gateway.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        served_at: str = "",
        max_bytes: int | None = None,
        alone: bool = False,
    ) -> None:
        self.name, self.served_at, self.alone = name, served_at, alone
        self.max_bytes = max_bytes
        self.figures = GatewayFigures(name)
        self._store = store
        self._directory = directory_of(name)
        self._served: ServedTree | None = None
        self._watch = TreeWatch()
        self._changed = trio.Event()
        self._order = trio.Lock()
        self._problem = ""
        self._named = 0, ""
        """An epoch, and the gateway that serves under it."""

    @property
    def serves(self) -> ServedTree | None:
        """The tree, while this gateway serves it."""
        return self._served

    async def served(self) -> ServedTree:
        """Return the tree, in the order of arrival. Raises HadoopError if another gateway serves it.

        "I am a standby" rests on what was seen after the request came: a client whose gateway has died tries
        the others dozens of times without a pause, and then gives up.
        """
        if self._served is not None and not self._order.locked():
            return self._served  # no request waits that came before
        arrived = clock()
        self.figures.held_requests += 1
        try:
            with trio.move_on_after(alone_wait_s if self.alone else standby_wait_s):
                # One after the other: a request that waits is executed before those that came after it.
                async with self._order:
                    while self._served is None:
                        # A client that knows no other gateway cannot have repeated it elsewhere.
                        if self._watch.grew_at > arrived and not self.alone:
                            raise standby("another gateway serves the tree")
                        await self._changed.wait()
                    return self._served
        finally:
            self.figures.held_requests -= 1
        if self.alone and clock() - self._watch.wrote_at < silent_s:
            # Sent on, the client would ask here again, 10,000 times, and its user would see nothing.
            text = await self.elsewhere()
            raise refused(f"{text}: stop it, use it (`dos gateway confs`), or choose another tree")
        raise standby(f"this gateway does not serve the tree now: {self._problem}".removesuffix(": "))

    async def elsewhere(self) -> str:
        """Return which other gateway serves the tree, for messages."""
        try:
            if self._named[0] != self._watch.epoch:
                self._named = await server_of(self._store, self.name)
        except DosError as error:
            return f"{self.name} is served by another gateway, whose address cannot be read ({error})"
        return f"{self.name} is served by {self._named[1]}"

    async def standby_of(self) -> str:
        """Wait for `role_wait_s` at most until this gateway serves, or sees another one serve. Return which
        one that is; "" if none was seen.
        """
        with trio.move_on_after(role_wait_s):
            while self._served is None and self._watch.wrote_at == float("-inf"):
                await self._changed.wait()
        if self._served is not None or self._watch.wrote_at == float("-inf"):
            return ""
        return f"{await self.elsewhere()}; this one is its standby, and takes over when it ends"

    def tree_figures(self) -> TreeFigures | None:
        """Return the tree as it is now, None while another gateway serves it."""
        if (served := self._served) is None:
            return None
        live, limit = served.tree.space.live_bytes, self.max_bytes
        return TreeFigures(
            served.epoch,
            len(served.tree.by_id),
            live,
            served.chain_bytes,
            served.unsynced_bytes,
            served.copied_bytes,
            limit or 0,
            room_for_files(limit, live) if limit else None,
        )

    def not_ready(self) -> str:
        """Return why clients find no gateway here; "" if this one serves the tree, or another one does."""
        if self._served is not None or clock() - self._watch.wrote_at < claim_patience_s:
            return ""
        return "it does not serve the tree, and sees no other gateway that does: `dos gateway status`"

    async def run(self) -> None:
        """Watch, take over, serve, again and again. Raises what is not an error of the store."""
        while True:
            try:
                await self._wait_silent()
                await self._take_over()
            except* FencedError as group:
                epoch = max(error.epoch_held for error in _each(group) if isinstance(error, FencedError))
                text = "another gateway has taken over (epoch %d), and this one is its standby from now on"
                logger.warning(f"%s: {text}", self.name, epoch)
            except* (DosError, HadoopError) as group:
                for error in _each(group):
                    self._problem = str(error)
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
                served_at=self.served_at,
                name=self.name,
                max_bytes=self.max_bytes,
            )
            # A tree has no cycles. A collection of garbage that looks at 200,000 files stops the loop for
            # 0.1 s, and a listing of them for 0.4 s.
            gc.freeze()
            files, took = len(served.tree.by_id), clock() - begun
            logger.info(
                "%s: served here from epoch %d on: %d files, %.2f s", self.name, claim.epoch, files, took
            )
            self.figures.counts["take_overs"] += 1
            try:
                with self._serving(served):
                    await served.run()
            finally:
                self.figures.counts["lost_claims"] += claim.ended is not None
                self.figures.counts["copied_bytes"] += served.copied_bytes

    @contextmanager
    def _serving(self, served: ServedTree) -> Iterator[None]:
        self._served, self._problem = served, ""
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
        seen = await look(self._store, self._directory)
        before = self._watch.grew_at
        self._watch.observe(*seen, clock())
        if self._watch.grew_at > before:
            self._tell()


def _each(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _each(error)
        else:
            yield error
