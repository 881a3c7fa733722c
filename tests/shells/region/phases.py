"""The phases of a run with a region: faults, heal, the end, a second end from what is stored, the verdict.

`tests.shells.run` starts and ends the environment.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest import mock

import trio

from checkpoint.chains import manifest_log
from checkpoint.core.links.messages import CopiedAhead, Restored, ToCoordinator, Vote
from checkpoint.core.region import answers_directory, requests_directory
from checkpoint.link import Link
from checkpoint.maintenance import forking
from checkpoint.participant import Participant
from dataflow.worker import link_thread
from dataflow.worker.exchange import Exchange
from dos_client import ObjectWriter
from dos_protocol.digests import Buffer
from tests.shells.oracles import check_ends, check_nothing_left
from tests.shells.region import process
from tests.shells.region.nemesis import strike
from tests.shells.region.region import Auditor, Requester, Viewer, check_files
from tests.sim.history import ViolationError
from tests.sim.nemesis.fault import Fault
from tests.sim.oracles.checkpoints import check_checkpoints, check_output
from tests.sim.regions.base import FORK

if TYPE_CHECKING:
    from tests.shells.region.region import ShellRegion
    from tests.shells.run import Cluster

SAFETY_S = 5.0
LIVES_S = 11.0
LIVENESS_S = 120.0
SETTLED_S = 6.0
ORPHANS_S = 20.0
"""Virtual seconds. In ORPHANS_S, workers detect that their drivers have ended, and end."""


@contextmanager
def _recorded(region: "ShellRegion") -> Iterator[None]:
    """Check each vote that a worker passes to its participant, and record what is appended to journals. Their
    segments are as short as the region wants."""
    report, append, dial_again = Participant.report, ObjectWriter.append, Exchange._dial_again

    async def reported(self: Participant, message: ToCoordinator) -> None:
        if isinstance(message, Vote):
            of = region if self._spec.job == name or region.fork is None else region.fork
            region.guarded(of.record.voted, self._spec.worker, self._taken, message)
            region.saw("voted")
        elif isinstance(message, CopiedAhead) and message.done:
            region.saw("state was copied ahead")
        elif isinstance(message, Restored):
            region.saw("participant: RESTORING to RESTORED")
        await report(self, message)

    def appended(self: ObjectWriter, data: Buffer) -> int:
        directory, offset = self._claim.directory, self.size
        size = append(self, data)
        if directory not in letters:  # request queues have many writers, one after the other
            region.guarded(region.history.wrote, directory, self.name, offset, bytes(data))
        return size

    async def dialled(self: Exchange, peer: int, term: int, reason: str) -> Link:
        link = await dial_again(self, peer, term, reason)
        region.saw("an exchange link is opened again")
        return link

    name = region.spec.name
    letters = {of(one) for one in (name, FORK) for of in (requests_directory, answers_directory)}
    rng = region.stream("tokens")
    tokens = SimpleNamespace(token_hex=lambda size: rng.randbytes(size).hex())
    with (
        mock.patch.object(Participant, "report", reported),
        mock.patch.object(ObjectWriter, "append", appended),
        mock.patch.object(Exchange, "_dial_again", dialled),
        mock.patch.object(manifest_log, "Rolling", return_value=region.rolling),
        mock.patch.object(link_thread, "Rolling", return_value=region.rolling),
        mock.patch.object(forking, "secrets", tokens),
    ):
        yield


async def run_phases(cluster: "Cluster", region: "ShellRegion", faults: list[Fault]) -> None:
    with _recorded(region), region.spoiling.seen() if region.is_spoiled else nullcontext():
        await _run_with_faults(cluster, region, faults)
    cluster.network.expire_keep_alive()
    await trio.sleep(SETTLED_S)
    cluster.guarded(check_nothing_left, cluster)
    cluster.guarded(_files_closed, region)
    cluster.guarded(cluster.history.bench.ended, cluster)


async def _run_with_faults(cluster: "Cluster", region: "ShellRegion", faults: list[Fault]) -> None:
    async with trio.open_nursery() as processes:
        cluster.processes = processes
        region.begin()
        processes.start_soon(_watch, region)
        _start_optional_clients(cluster, region)
        for fault in faults:
            cluster.later(fault.at_s, strike, cluster, fault)
        await trio.sleep(LIVES_S if region.lives else SAFETY_S)
        await cluster.heal()
        region.heal()
        await _finish(region, "the region has not finished")
        await _no_orphans(region)
        for one in (region, region.fork):
            if one is not None:
                await _run_again(one)
        processes.cancel_scope.cancel()


async def _run_again(region: "ShellRegion") -> None:
    """Restore the finished region by fresh processes, make a last backup, and check everything."""
    region.run_again()
    await _finish(region, "a fresh driver does not finish what is finished")
    if region.backups is not None:
        last = region.backups.make_last()
        with trio.move_on_after(LIVENESS_S):
            await last.ended.wait()
        if not last.done:
            region.cluster.fail(ViolationError("O11", "the region cannot be backed up"))
    region.kill_all()
    await _verdict(region)


def _start_optional_clients(cluster: "Cluster", region: "ShellRegion") -> None:
    """Start the users that not every run has."""
    topology = cluster.rng.topology
    if topology.random() < 0.25:
        cluster.begin(lambda name: Viewer(region, name), "v")
    if topology.random() < 0.25:
        cluster.begin(lambda name: Requester(region, name), "a")


async def _watch(region: "ShellRegion") -> None:
    """Check the limits repeatedly."""
    while True:
        await trio.sleep(0.25)
        region.guarded(process.check_links, region)
        region.guarded(process.check_tasks, region)
        region.guarded(process.check_silence, region)
        region.guarded(check_ends, region.cluster)


async def _finish(region: "ShellRegion", otherwise: str) -> None:
    """O11: wait until the region has finished."""
    with trio.move_on_after(LIVENESS_S):
        while not region.settled:  # noqa: ASYNC110 - the condition sets no event
            await trio.sleep(0.1)
    if not region.settled:
        region.cluster.fail(ViolationError("O11", f"{otherwise} {LIVENESS_S:.0f} s after the heal"))


async def _no_orphans(region: "ShellRegion") -> None:
    with trio.move_on_after(ORPHANS_S):
        while any(not one.driver.alive for one in region.living_workers()):  # noqa: ASYNC110 - as above
            await trio.sleep(0.5)
    region.guarded(process.check_orphans, region)


async def _verdict(region: "ShellRegion") -> None:
    """Check O7 and O8."""
    auditor = region.cluster.begin(lambda name: Auditor(region, name), "z")
    assert isinstance(auditor, Auditor)
    with trio.move_on_after(LIVENESS_S):
        await auditor.ended.wait()
    if not auditor.done:
        region.cluster.fail(ViolationError("O11", f"the journals cannot be read: {auditor.failure}"))
        return
    region.guarded(check_output, region)
    region.guarded(check_checkpoints, region, auditor)
    region.guarded(check_files, region, auditor)


def _files_closed(region: "ShellRegion") -> None:
    if left := region.output.open_files():
        raise ViolationError("O10", f"files of outputs are left open: {left}")
