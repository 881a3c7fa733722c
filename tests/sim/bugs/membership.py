"""Stores that change: which members and copies count, and from when on. Found in runs with an operator."""

from collections.abc import Callable
from typing import Any

from dos_client.core import comparing, membership
from dos_client.core.quorum import Quorums
from dos_client.core.replica import Replica
from dos_client.membership.filling import DirectoryGoal, Filling
from dos_client.membership.record_log import RecordLog
from dos_client.repair.repairing import _Repairer
from dos_client.writing.object_writer import WriteTarget
from dos_protocol.names import NO_ID
from dos_protocol.store_record import StoreRecord
from dos_server import storage
from dos_server.core.requests.greetings import Greetings
from dos_server.storage import _copy_path
from tests.sim.bugs.catalogue import Patch, bug
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.membership.kind import has_operator
from tests.sim.nemesis import plan


def _has(*kinds: str) -> Callable[[RandomStreams], bool]:
    """Return whether a run has an operator and one of these faults."""

    def has(rng: RandomStreams) -> bool:
        return has_operator(rng) and any(fault.kind in kinds for fault in plan(RandomStreams(rng.seed)))

    return has


@bug("R15, decision 0010: fill_first", where=has_operator)
def new_member_counts_before_it_is_filled() -> list[Patch]:
    async def run(self: Filling) -> None:
        self._check()

    return [(Filling, "run", run)]


@bug("R15, decision 0010: both_sets", where=has_operator)
def old_set_alone_acknowledges() -> list[Patch]:
    original = Quorums.__init__

    def init(self: Quorums, record: StoreRecord) -> None:
        original(self, record)
        self.sets, self._acks, self._claims = self.sets[:1], self._acks[:1], self._claims[:1]

    return [(Quorums, "__init__", init)]


@bug("decision 0010: carry_claims", where=has_operator)
def claims_are_not_carried_over() -> list[Patch]:
    original = Filling._list_once

    async def without_claim(self: Filling, name: str) -> DirectoryGoal:
        wanted = await original(self, name)
        wanted.epoch, wanted.writer_id = 0, NO_ID
        return wanted

    return [(Filling, "_list_once", without_claim)]


@bug("decision 0010: tell_again", where=has_operator)
def watermarks_outlive_their_generation() -> list[Patch]:
    def requorum(self: WriteTarget, quorums: Quorums) -> None:
        self._quorums = quorums

    return [(WriteTarget, "requorum", requorum)]


@bug("decision 0010: refuse_stale", where=has_operator)
def servers_continue_with_older_generations() -> list[Patch]:
    return [(Greetings, "_end_older_generations", lambda self, record: None)]


@bug("row 23, decision 0010: a record is written to one member only", where=has_operator)
def one_member_confirms_a_record() -> list[Patch]:
    return [(membership, "confirmations_needed", lambda n, qa: 1)]


@bug("decision 0010: two replacements at once", where=_has("two_replacements"))
def records_are_not_decided() -> list[Patch]:
    async def decide(self: RecordLog, record: StoreRecord) -> None:
        self.last = record

    async def write(self: RecordLog, log: Any, entry: Any) -> None:
        """Nor does the history, which is written under the same claim, end the earlier run."""

    return [
        (RecordLog, "decide", decide),
        (RecordLog, "check", lambda self: None),
        (RecordLog, "write", write),
    ]


@bug("R4, row 11: a damaged copy counts as lacking what it had", where=has_operator)
def damaged_copies_say_what_they_held() -> list[Patch]:
    original = Replica.handle

    def handle(self: Replica, event: Any, now: float) -> Any:
        effects = original(self, event, now)
        self.spoiled = False
        return effects

    return [(Replica, "handle", handle)]


@bug("row 5: a new copy is not synced", where=has_operator)
def new_copies_are_not_synced() -> list[Patch]:
    def sync(files: Any, effect: Any) -> None:
        files.forget(_copy_path(effect))

    return [(storage, "sync_copy", sync)]


@bug(
    "O12: repair trusts what servers report about themselves",
    where=_has("flip", "zero_sector", "swap_sectors", "older_sector"),
)
def repair_reads_nothing() -> list[Patch]:
    async def read_all(self: _Repairer, directory: str) -> None:
        await self._walk.enter(directory)

    return [(_Repairer, "_read_all", read_all)]


@bug("P-5: REPAIR takes any bytes", where=has_operator)
def a_new_copy_is_the_shortest() -> list[Patch]:
    def shortest(copies: dict[bytes, Any]) -> Any:
        return min(copies.values(), key=lambda copy: (copy.size, copy.exists), default=None)

    return [(comparing, "_longest", shortest)]
