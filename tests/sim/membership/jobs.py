"""The changes that a person makes, and the operators that perform them. Each operator is one run of one `dos
store` command, in a process of its own, which may die at any moment; the next one runs the same command
again.

This file determines which function of `dos_client` a command calls, with which arguments. `oracles/store`
checks what must be true when it reports success.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from dos_client import RepairReport, add_member, open_store, recover_store, repair_store, replace_member
from dos_client.core.comparing import CopyState
from dos_protocol.errors import DosError
from dos_protocol.store_record import StoreRecord
from tests.sim.engine.network import Network
from tests.sim.engine.sockets import Client
from tests.sim.store.machine import Machine
from tests.sim.visitors import LOOSE


@dataclass(eq=False)
class Job:
    """One command, repeated until it is done. `alone`: it must finish; otherwise it may be refused, and is
    then given up (a second, contradictory command). `record`: the store record that it returned."""

    what: str
    old: str = ""
    new: Machine | None = None
    confirmed: bool = False
    """With `--other-is-gone` or `--accept-loss`."""
    alone: bool = True
    done: bool = False
    given_up: bool = False
    tries: int = 0
    unrepairable: int = 0
    """How often it reported a copy that is damaged and cannot be repaired."""
    last_error: str = ""
    record: StoreRecord | None = None
    operators: "list[Operator]" = field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.done or self.given_up

    def __str__(self) -> str:
        words = [self.what, self.old, self.new.address if self.new is not None else ""]
        return " ".join(word for word in words if word) + (" with confirmation" if self.confirmed else "")


async def _replace(job: Job, url: str) -> StoreRecord:
    assert job.new is not None
    return await replace_member(url, old=job.old, new=job.new.address, other_is_gone=job.confirmed)


async def _add(job: Job, url: str) -> StoreRecord:
    assert job.new is not None
    return await add_member(url, new=job.new.address)


async def _recover(job: Job, url: str) -> StoreRecord:
    new = [job.new.address] if job.new is not None else []
    return (await recover_store(url, accept_loss=job.confirmed, new=new)).record


class UnrepairableError(DosError):
    """Copies are damaged, and the members, all available, have nothing to repair them from."""


async def _repair(job: Job, url: str) -> StoreRecord:
    """Run a repair. Raises DosError if a copy could not be read, or is still damaged."""
    async with open_store(url) as store:
        report = await repair_store(store, read=True)
        given_up = [one for one in report.repairs if one.verdict is CopyState.DAMAGED and not one.repairable]
        if given_up and not report.unavailable:
            raise UnrepairableError(
                "; ".join(f"{one.name} on {one.address}: {one.reason}" for one in given_up)
            )
        if not _all_well(report):
            raise DosError(
                f"{len(report.repairs)} copies to repair, unavailable: {sorted(report.unavailable)}"
            )
        return store.record


def _all_well(report: RepairReport) -> bool:
    """Return whether nothing is damaged, missing or different. (Copies may lag while writers work; files that
    visitors wrote to one server have no copies to be repaired from.)"""
    left = [one for one in report.repairs if not one.done and one.directory != LOOSE]
    return not (report.unavailable or report.damaged_directories or left)


COMMANDS: dict[str, Callable[[Job, str], Awaitable[StoreRecord]]] = {
    "replace": _replace,
    "add": _add,
    "recover": _recover,
    "repair": _repair,
}


class Operator(Client):
    """One run of the command. `on_end`: called with the outcome, an error or None."""

    def __init__(
        self,
        network: Network,
        name: str,
        url: str,
        job: Job,
        rng: Random,
        on_end: "Callable[[Operator, DosError | None], None]",
    ) -> None:
        super().__init__(network, name, rng)
        self.job = job
        self._url = url
        self._on_end = on_end
        job.tries += 1
        job.operators.append(self)
        self.begin(self._work)

    async def _work(self) -> None:
        error: DosError | None = None
        try:
            self.job.record = await COMMANDS[self.job.what](self.job, self._url)
        except DosError as refused:
            error = refused
        self._on_end(self, error)
