"""The client's quorums, the journal's take-over and its readers."""

from typing import Any

from dos_client.core.claim import ClaimMachine, ClaimState
from dos_client.core.quorum import Quorums
from dos_protocol.messages import DirectoryOpened, ObjectInfo
from journal import ChainWriter
from journal.core import chain as chain_core
from journal.core import read_walk, walk
from journal.core.chain import SegmentStart, parse_segment_name
from tests.sim.bugs.catalogue import Patch, bug
from tests.sim.store import sim_store
from tests.sim.store.claim import SimClaim, SimWriter
from tests.sim.store.member import Link


@bug("Qa")
def one_member_acknowledges() -> list[Patch]:
    return [(Quorums, "watermark", lambda self, sizes: max([sizes.get(one, 0) for one in self.members]))]


@bug("R1, row 19")
def one_claim_is_enough() -> list[Patch]:
    return [
        (Quorums, "can_take_over", lambda self, members: bool(self.members & frozenset(members))),
        (walk, "claims_needed", lambda members, quorum: 1),
    ]


def _believed(opened: DirectoryOpened) -> DirectoryOpened:
    """Return the same answer without reports of damage."""
    clean = tuple(ObjectInfo(info.name, info.received, info.synced, info.digest) for info in opened.entries)
    return DirectoryOpened(opened.epoch, opened.writer_id, clean)


@bug("R4, row 11")
def damaged_copies_have_answered() -> list[Patch]:
    member_claimed, view_of = SimClaim.member_claimed, sim_store.view_of
    return [
        (
            SimClaim,
            "member_claimed",
            lambda self, link, opened: member_claimed(self, link, _believed(opened)),
        ),
        (
            sim_store,
            "view_of",
            lambda directory, record, opened, errors, **how: view_of(
                directory, record, {one: _believed(answer) for one, answer in opened.items()}, errors, **how
            ),
        ),
    ]


@bug("R4, row 20")
def sizes_are_read_before_the_claim() -> list[Patch]:
    """A take-over uses the sizes that the members reported to the read view before the claim."""
    inspect, member_claimed = sim_store.SimStore.inspect, SimClaim.member_claimed

    async def inspected(self: sim_store.SimStore, directory: str, **how: Any) -> Any:
        self.seen = await inspect(self, directory, **how)  # type: ignore[attr-defined]
        return self.seen  # type: ignore[attr-defined]

    def claimed(self: SimClaim, link: Any, opened: DirectoryOpened) -> None:
        member_claimed(self, link, opened)
        seen = getattr(self.store, "seen", None)  # a region's claims have read views of their own
        before = seen.answers.get(link.server_id) if seen is not None else None
        if before is not None and link.server_id in self.answers:
            self.answers[link.server_id] = dict(before)

    return [(sim_store.SimStore, "inspect", inspected), (SimClaim, "member_claimed", claimed)]


@bug("R6")
def offsets_decide_and_not_pointers() -> list[Patch]:
    """All bytes of the previous segment belong to the chain, not only those that its successor refers to."""

    def below(self: walk.ChainWalk, start: SegmentStart) -> Any:
        if start.predecessor is None:
            return self._bottom()
        name = start.predecessor.name
        infos = [objects[name] for objects in self.answers.values() if name in objects]
        longest = max(infos, key=lambda info: info.synced, default=None)
        parsed = parse_segment_name(name)
        assert parsed is not None
        if longest is None or longest.synced < start.predecessor.length:
            return original(self, start)
        return self._follow(chain_core.SegmentSpan(name, parsed.base, longest.synced, longest.digest))

    original = walk.ChainWalk._below
    return [(walk.ChainWalk, "_below", below)]


@bug("R9")
def records_do_not_wait_for_the_one_before() -> list[Patch]:
    """In a chain that is not pipelined, in which a record proves the previous one."""
    wait_synced = ChainWriter.wait_synced

    async def wait(self: ChainWriter, position: Any = None) -> None:
        if position is not None or self._pipelined:
            await wait_synced(self, position)

    return [
        (ChainWriter, "wait_synced", wait),
        (ChainWriter, "append", lambda self, record: self._put(record)),
    ]


@bug("R18")
def a_lost_member_is_done_without() -> list[Patch]:
    """A writer that one member has fenced continues with the others."""
    fenced = ClaimMachine.fenced

    def only_left(self: ClaimMachine, server_id: bytes) -> bool:
        if self.state is ClaimState.CLAIMING:
            return fenced(self, server_id)
        self.left(server_id)
        return False

    finish = SimClaim._finish

    def finished(self: SimClaim) -> None:
        if self.over:
            finish(self)
        else:
            self.changed()

    return [(ClaimMachine, "fenced", only_left), (SimClaim, "_finish", finished)]


@bug("row 17")
def a_lost_answer_is_taken_for_success() -> list[Patch]:
    """What was in flight when a session ended counts as synced there."""
    original = Link._left

    def left(self: Link, why: str) -> None:
        if self.session is not None:
            for copy in self._active.values():
                copy.target.note(self.server_id, copy.replica.sent)
        original(self, why)

    return [(Link, "_left", left)]


@bug("R5, row 22")
def longest_copy_is_the_head() -> list[Patch]:
    original = chain_core.segments_seen
    return [
        (
            walk,
            "segments_seen",
            lambda chain, answers: sorted(
                original(chain, answers), key=lambda seen: seen.name.base + seen.longest, reverse=True
            ),
        )
    ]


@bug("R7")
def nothing_is_settled() -> list[Patch]:
    async def settle(self: SimClaim, name: str, size: int, digest: int, local: object = None) -> None:
        self.check()

    return [(SimClaim, "settle", settle)]


@bug("R8")
def own_start_is_not_waited_for() -> list[Patch]:
    original = SimWriter.wait_synced

    async def wait_synced(self: SimWriter, size: int) -> None:
        if not getattr(self, "_began", False):
            self._began = True  # type: ignore[attr-defined]
            return
        await original(self, size)

    return [(SimWriter, "wait_synced", wait_synced)]


@bug("R10, row 24")
def readers_receive_everything() -> list[Patch]:
    def held(quorums: Any, seen: Any, claims: Any, filled: Any) -> int:
        del quorums, claims, filled
        return int(seen.longest)

    return [(read_walk, "held_by_quorum", held)]


@bug("R10")
def readers_end_where_a_quorum_ends() -> list[Patch]:
    """What only unavailable members can prove is left out, and the reader is not told."""
    return [(Quorums, "acknowledged_at_most", lambda self, sizes, known: 0)]


@bug("R16")
def created_without_all_members() -> list[Patch]:
    def require(self: Any, counted: int, needed: int, purpose: str, why: Any) -> None:
        if purpose != "creating it":
            original(self, counted, needed, purpose, why)

    original = walk.ChainWalk._require
    return [(walk.ChainWalk, "_require", require)]


@bug("R2: writer ids are random")
def same_epoch_twice() -> list[Patch]:
    original = SimClaim.__init__

    def init(self: SimClaim, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.writer_id = b"\x07" * 16

    return [(SimClaim, "__init__", init)]
