"""Planted bugs in shells, which the runs must find. The cores are unchanged.

As in `tests.sim.bugs`: each replaces a few lines for the duration of a run.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
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
from dos_client.core.witnessing import ProveStamp, Witnessing
from dos_client.sessions import connection as client_connection
from dos_client.sessions.connection import Connection as ClientConnection
from dos_client.sessions.members import Watch, Witnesses
from dos_client.writing.claim import MemberLink
from dos_server.connection import ServerConnection
from dos_server.core import vocabulary as v
from dos_server.core.requests.stamps import History, Stamps
from dos_server.disk import read_file, replace_file
from dos_server.server import DiskEffects, ObjectServer, PacedReads
from dos_server.storage import Storage
from journal import take_over
from tests.shells.region.region import has_region
from tests.shells.run import plan_of
from tests.sim.bugs import catalogue
from tests.sim.bugs.catalogue import Patch
from tests.sim.engine.random_streams import RandomStreams

bug = partial(catalogue.bug, tier="shells")
planted = catalogue.planted


def with_fault(kind: str) -> Callable[[RandomStreams], bool]:
    """Whether the plan of a seed has a fault of that kind, without which a bug does nothing."""
    return lambda rng: kind in {fault.kind for fault in plan_of(rng.seed)}


restored, forged = with_fault("restored_disk"), with_fault("forged_stamps")


def of_regions(breaks: str, needs: str = "") -> Callable[..., Any]:
    """`needs`: the fault without which the bug does nothing ('' for none)."""
    return bug(breaks, lambda rng: has_region(rng.seed) and (not needs or with_fault(needs)(rng)))


# The server


@bug("row 16")
def syncs_go_with_the_connection() -> list[Patch]:
    """A client that disconnects between write and sync cancels the syncs in progress, so the size lags."""
    original = ObjectServer._run_connection

    async def run(self: Any, connection: Any) -> None:
        try:
            await original(self, connection)
        finally:
            self._sync_threads._begun.clear()

    return [(ObjectServer, "_run_connection", run)]


@bug("row 2")
def sync_begins_when_it_ends() -> list[Patch]:
    """The core receives the begin of a sync at its end: what was written meanwhile counts as covered."""

    def begin(self: Any) -> None:
        while (effect := self._sync_threads.next_due()) is not None:
            self._writes.sync_began(effect.directory, effect.name)
            self._sync_threads.begin(effect)

    def ended(self: Any, event: Any) -> None:
        self._writes.sync_ended(event.directory, event.name)
        self._feed_one(v.SyncBegins(event.directory, event.name))
        self._done(event)

    return [(ObjectServer, "_begin_syncs", begin), (ObjectServer, "_sync_ended", ended)]


@bug("R2, row 18")
def claims_are_answered_before_they_are_stored() -> list[Patch]:
    original = DiskEffects.start

    def start(self: Any, effect: Any) -> Any:
        if not isinstance(effect, v.WriteClaim):
            return original(self, effect)
        original(self, v.FileClaim(*effect))
        return v.EffectDone(effect, v.DiskFailure.NONE)

    return [(DiskEffects, "start", start)]


@bug("O10")
def reset_connections_are_never_over() -> list[Patch]:
    """The task of a connection waits for a BYE that does not arrive."""

    def abort(self: Any) -> None:
        self.closing = True
        self._end_reading()
        self._stop_watching()

    return [(ServerConnection, "abort", abort)]


@bug("row 28")
def nothing_holds_answers_back() -> list[Patch]:
    def begin(self: Any, effect: Any) -> bool:
        connection = self._connections.get(effect.session)
        if connection is None:
            self._readiness.soon(lambda: self._on_result(v.GotData(effect)))
        else:
            connection.reserved_bytes += effect.end - effect.start
            self._reserved_bytes += effect.end - effect.start
            self._threads.start(effect)
        return True

    def wanted(self: Any) -> bool:
        return bool(self._owner.may_read(self.session))

    return [(PacedReads, "_begin", begin), (ServerConnection, "wanted", wanted)]


@bug("row 28")
def who_is_held_back_stays_so() -> list[Patch]:
    """A connection that is not read from, because its peer reads nothing, is never inspected again."""
    return [
        (ObjectServer, "stalled", lambda self, connection: None),
        (ServerConnection, "resume", lambda self: None),
    ]


@bug("row 13")
def bytes_that_did_not_fit_are_dropped() -> list[Patch]:
    """The socket accepted a part of the answers; the rest is dropped."""
    original = ServerConnection._send_some

    def send_some(self: Any) -> bool:
        whole = original(self)
        if not whole:
            self._outflow.clear()
        return whole

    return [(ServerConnection, "_send_some", send_some)]


# The client


@bug("row 27")
def silence_is_not_noticed() -> list[Patch]:
    async def watch(self: Any) -> None:
        await trio.sleep_forever()

    return [(ClientConnection, "_watch", watch)]


@bug("O10")
def connections_are_not_closed() -> list[Patch]:
    original = client_connection.dial

    async def dial(address: str) -> Any:
        sock, rounds = await original(address)
        sock.close = lambda: None
        return sock, rounds

    return [(client_connection, "dial", dial)]


@bug("O11")
def a_link_that_broke_stays_so() -> list[Patch]:
    """A session that ended is not opened again."""
    original = MemberLink._session

    async def session(self: Any) -> None:
        try:
            await original(self)
        except client_connection.BrokenConnectionError:
            await trio.sleep_forever()

    return [(MemberLink, "_session", session)]


@bug("O11")
def waiters_are_not_woken_by_the_end() -> list[Patch]:
    """A session that fails does not notify the tasks that wait for its end."""
    original = ClientConnection.fail

    def fail(self: Any, error: Any) -> None:
        event, self._broken = self._broken, trio.Event()
        original(self, error)
        self._broken = event

    return [(ClientConnection, "fail", fail)]


@bug("O11")
def a_member_that_was_away_is_not_watched() -> list[Patch]:
    original = Watch._session

    async def session(self: Any) -> None:
        try:
            await original(self)
        finally:
            self.scope.cancel()

    return [(Watch, "_session", session)]


# Disks that were restored from an older copy


@bug("O1", restored)
def a_disk_has_every_stamp() -> list[Patch]:
    return [(History, "lacks", lambda self, stamp: False)]


@bug("O1", restored)
def stamps_are_counted_and_not_random() -> list[Patch]:
    """A restored disk has the same number after another start."""
    return [(History, "lacks", lambda self, stamp: stamp.number > self.newest.number)]


@bug("O1", restored)
def a_newer_stamp_is_sent_before_the_older_one_is_proved() -> list[Patch]:
    """The restored disk overwrites the evidence."""
    original = Witnessing._steps

    def steps(self: Any, only: bytes | None) -> Any:
        for step in original(self, only):
            if isinstance(step, ProveStamp):
                self._proved.add((step.member, step.stamp))
                self._remember(step.member)
        yield from original(self, only)

    return [(Witnessing, "_steps", steps)]


@bug("O11", restored)
def a_stamp_is_sent_before_it_is_stored() -> list[Patch]:
    """After a crash a correct disk lacks a stamp that others know."""
    original = Storage.add_stamp

    def give(self: Any, fresh: bytes) -> Any:
        before = read_file(self._disk, "stamps")
        given = original(self, fresh)
        if before is not None:
            replace_file(self._disk, "", "stamps", before)
        return given

    return [(Storage, "add_stamp", give)]


@bug("O1", restored)
def a_disk_knows_no_stamp_of_its_own_key() -> list[Patch]:
    """Every stamp that the disk lacks is taken for a forgery."""
    return [(History, "has_made", lambda self, server_id, stamp: False)]


@bug("O1", restored)
def claims_make_no_stamps() -> list[Patch]:
    """A snapshot of the running disk, taken before a claim, has every stamp that the disk has later."""
    return [(Stamps, "_has_granted", lambda self, announced: False)]


@bug("O1", restored)
def writers_ask_for_no_stamp_of_their_claim() -> list[Patch]:
    async def renew(self: Any, member: bytes) -> None:
        await trio.lowlevel.checkpoint()

    return [(Witnesses, "renew", renew)]


@bug("O11", forged)
def macs_are_not_checked() -> list[Patch]:
    return [(History, "has_made", lambda self, server_id, stamp: True)]


@bug("O11", forged)
def a_mac_does_not_cover_the_number() -> list[Patch]:
    """The id of a known stamp is valid under every number."""
    original = History._mac
    return [(History, "_mac", lambda self, server_id, number, half: original(self, server_id, 0, half))]


# Regions


@of_regions("O11", needs="power_cut_worker")
def silence_of_workers_is_not_noticed() -> list[Patch]:
    """The coordinator waits for heartbeats without a limit."""

    def core(spec: Any, run: Any) -> Coordinator:
        run.spec = replace(spec, suspect_after_s=1e9)
        return Coordinator(run.spec, run)

    return [(shell, "Coordinator", core)]


@of_regions("O10", needs="power_cut_driver")
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


@of_regions("R11")
def links_outlive_their_incarnation() -> list[Patch]:
    """The tasks that send to peers outlive their incarnation."""
    original = Exchange.dial_all

    async def dial_all(self: Any, nursery: Any) -> None:
        beside = trio.lowlevel.current_task().parent_nursery
        await original(self, beside)

    return [(Exchange, "dial_all", dial_all)]


@of_regions("R11")
def a_life_begins_before_the_last_has_ended() -> list[Patch]:
    """RESET is sent while frames of the previous incarnation are still being sent."""

    async def end(self: Any) -> None:
        self._ending = True
        await trio.lowlevel.checkpoint()

    return [(LinkIncarnation, "end", end)]


@of_regions("R12", needs="slow_disk")
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


@of_regions("R12", needs="slow_disk")
def votes_do_not_wait_for_files() -> list[Patch]:
    """The vote is sent before the last changes of files are synced."""

    async def synced(self: Any, at: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return at

    return [(DirectoryStore, "synced", synced)]


@of_regions("R13")
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


@of_regions("R12")
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


@of_regions("O10")
def listeners_are_not_closed() -> list[Patch]:
    async def listen(host: str, ports: Any) -> Any:
        found = [one for port in ports for one in await runtime().listen(host, port, 9)]
        for one in found:
            one.aclose = trio.lowlevel.checkpoint
        return found

    return [(link, "_listen", listen)]
