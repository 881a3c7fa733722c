"""Planted bugs in a region's shells, which the runs must find. The cores are unchanged.

They are in the table of `tests.shells.bugs`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import trio

from checkpoint import link
from checkpoint.chains import chain_store
from checkpoint.chains.directory_store import DirectoryStore
from checkpoint.chains.state_store import StateStore
from checkpoint.coordinator import shell
from checkpoint.core.coordination.coordinator import Coordinator
from checkpoint.core.links.participation import ParticipantEnded, ParticipantTick, SendReport
from checkpoint.core.records.manifest import DIRECTORY_CHAIN_PREFIX
from checkpoint.participant import Participant
from checkpoint.runtime import runtime
from dataflow.worker.exchange import Exchange
from dataflow.worker.journals import Outputs
from dataflow.worker.link_thread import LinkIncarnation
from journal import take_over
from tests.sim.bugs.catalogue import Patch

REGION_BUGS: list[tuple[str, str, Callable[[], list[Patch]]]] = []
"""What each breaks, the fault without which it does nothing ('' for none), and its patches."""


def bug(breaks: str, needs: str = "") -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    def keep(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        REGION_BUGS.append((breaks, needs, patches))
        return patches

    return keep


@bug("O11", needs="power_cut_worker")
def silence_of_workers_is_not_noticed() -> list[Patch]:
    """The coordinator waits for heartbeats without a limit."""

    def core(spec: Any) -> Coordinator:
        return Coordinator(replace(spec, suspect_after_s=1e9))

    return [(shell, "Coordinator", core)]


@bug("O10", needs="power_cut_driver")
def orphans_are_not_noticed() -> list[Patch]:
    """A worker sends its heartbeats, and does not check whether any arrive."""

    async def beat(self: Any) -> None:
        while (due := self._core.deadline()) is not None:
            await trio.sleep_until(due)
            for effect in self._core.handle(ParticipantTick(due, self.counters()), trio.current_time()):
                if isinstance(effect, SendReport):
                    self._to_send.send_nowait(effect.message)
                assert isinstance(effect, SendReport | ParticipantEnded)

    return [(Participant, "_beat", beat)]


@bug("R11")
def links_outlive_their_incarnation() -> list[Patch]:
    """The tasks that send to peers outlive their incarnation."""
    original = Exchange.dial_all

    async def dial_all(self: Any, nursery: Any) -> None:
        beside = trio.lowlevel.current_task().parent_nursery
        await original(self, beside)

    return [(Exchange, "dial_all", dial_all)]


@bug("R11")
def a_life_begins_before_the_last_has_ended() -> list[Patch]:
    """RESET is sent while frames of the previous incarnation are still being sent."""

    async def end(self: Any) -> None:
        self._ending = True
        await trio.lowlevel.checkpoint()

    return [(LinkIncarnation, "end", end)]


@bug("R12", needs="slow_disk")
def votes_do_not_wait_for_the_state() -> list[Patch]:
    """The vote is sent before the state is synced."""
    original = StateStore.commit

    async def commit(self: Any, checkpoint: int, blocks: Any) -> Any:
        async def at_once(position: Any) -> None:
            await trio.lowlevel.checkpoint()

        writer, self._writer = self._writer, _Instead(self._writer, wait_synced=at_once)
        try:
            return await original(self, checkpoint, blocks)
        finally:
            self._writer = writer

    return [(StateStore, "commit", commit)]


@bug("R12", needs="slow_disk")
def votes_do_not_wait_for_files() -> list[Patch]:
    """The vote is sent before the last changes of files are synced."""

    async def synced(self: Any, at: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return at

    return [(DirectoryStore, "synced", synced)]


@bug("R13")
def files_have_what_came_behind_the_checkpoint() -> list[Patch]:
    """The chain of the files is taken over at its head."""
    return [(chain_store, "take_over", _at_its_head)]


async def _at_its_head(claim: Any, chain: str, *, at: Any, **more: Any) -> Any:
    of_files = chain.startswith(DIRECTORY_CHAIN_PREFIX)
    return await take_over(claim, chain, at=None if of_files else at, **more)


class _Instead:
    """An object with some methods replaced."""

    def __init__(self, of: Any, **methods: Any) -> None:
        self._of = of
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


@bug("R12")
def votes_do_not_wait_for_output_logs() -> list[Patch]:
    """The end of an output log is reported before it is synced."""

    async def synced(self: Any, step: int) -> dict[str, Any]:
        found = {}
        for name, log in self._logs.items():
            while self._handled[name] < step:
                await self._changed.wait()
            end = log._line.end_of(step)
            log._line.forget(step)
            found[name] = {"epoch": end.epoch, "size": end.size, "digest": end.digest}
        return found

    return [(Outputs, "synced", synced)]


@bug("O10")
def listeners_are_not_closed() -> list[Patch]:
    async def listen(host: str, ports: Any) -> Any:
        found = [one for port in ports for one in await runtime().listen(host, port, 9)]
        for one in found:
            one.aclose = trio.lowlevel.checkpoint
        return found

    return [(link, "_listen", listen)]
