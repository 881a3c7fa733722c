"""A process of a region: a host in the network, a scope that can be canceled anywhere, threads.

This file determines how such processes end and what must be true then; `driver` and `worker` implement their
work.
"""

import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING

from checkpoint.errors import OrphanedError
from dataflow.errors import CircuitStoppedError
from dataflow.worker.failures import first_error
from dos_protocol.errors import DosError
from tests.shells.clients import Client
from tests.shells.region.oracles import check_closed
from tests.shells.region.surroundings import Threads
from tests.sim.history import ViolationError

if TYPE_CHECKING:
    from tests.shells.region.region import ShellRegion

_MAY_END = (DosError, OrphanedError, CircuitStoppedError)
"""Errors that may end a process of a region: an unavailable store, an invalid peer, a lost coordinator. Any
other error is a bug of a shell."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in nested groups, including cancellations."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from leaves(one)
    else:
        yield error


class RegionProcess(Client):
    """One process. `failure`: the error that ended it, '' if there was none."""

    def __init__(self, region: "ShellRegion", name: str) -> None:
        super().__init__(region.cluster, name)
        self.region = region
        self.failure = ""
        self.threads = region.surroundings.threads[name] = Threads()

    async def work(self) -> None:
        """Do the work of this process."""
        raise NotImplementedError

    async def perform(self) -> None:
        try:
            await self.work()
        except Exception as group:
            error = next((one for one in leaves(group) if not isinstance(one, _MAY_END)), first_error(group))
            self.failure = f"{type(error).__name__}: {error}"
            self.note(f"ends: {self.failure}")
            self.region.saw(f"{self.kind} ended: {type(error).__name__}")
            if not self.alive:
                return  # it was killed: its last errors have no effect
            if isinstance(error, ViolationError):
                self.cluster.fail(error)
            elif not isinstance(error, _MAY_END):
                where = traceback.extract_tb(error.__traceback__)[-1]
                self.cluster.fail(
                    ViolationError(
                        "shell", f"{self.name} ended with {self.failure} at {where.name}, {where.line}"
                    )
                )

    async def run(self) -> None:
        """Run the process. After its end, nothing of it is open."""
        try:
            await super().run()
        finally:
            self.region.guarded(check_closed, self)
            self.gone()

    def gone(self) -> None:
        """Called at the end of the process, for any reason."""

    def kill(self) -> None:
        if self.alive:
            self.threads.end()
            super().kill()

    def power_cut(self) -> None:
        """Its machine loses power, without notice to others."""
        if self.alive:
            self.alive = False
            self.threads.end()
            self.scope.cancel()
            self.cluster.network.power_lost(self.name)
            self.note("lost its power")
