"""The client's quorums, the journal's take-over and its readers."""

from typing import Any

from dos_client.core.quorum import Quorums
from journal.core import chain as chain_core
from journal.core import walk
from tests.sim.bugs.catalogue import Patch, bug
from tests.sim.store.claim import SimClaim, SimWriter


@bug("Qa")
def one_member_acknowledges() -> list[Patch]:
    return [(Quorums, "watermark", lambda self, sizes: max([sizes.get(one, 0) for one in self.members]))]


@bug("R1, row 19")
def one_claim_is_enough() -> list[Patch]:
    return [
        (Quorums, "can_take_over", lambda self, members: bool(self.members & frozenset(members))),
        (walk, "claims_needed", lambda members, quorum: 1),
    ]


@bug("R4, row 11")
def damaged_copies_have_answered() -> list[Patch]:
    def member_claimed(self: SimClaim, link: Any, opened: Any) -> None:
        clean = tuple(
            type(info)(info.name, info.received, info.synced, info.digest) for info in opened.entries
        )
        original(self, link, type(opened)(opened.epoch, opened.writer_id, clean))

    original = SimClaim.member_claimed
    return [(SimClaim, "member_claimed", member_claimed)]


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
def readers_are_shown_everything() -> list[Patch]:
    original = walk.Look._held_by_quorum

    def held(self: walk.Look, seen: Any) -> int:
        original(self, seen)
        return int(seen.longest)

    return [(walk.Look, "_held_by_quorum", held)]


@bug("R16")
def created_without_all_members() -> list[Patch]:
    def require(self: Any, counted: int, needed: int, purpose: str, why: Any) -> None:
        if purpose != "creating it":
            original(self, counted, needed, purpose, why)

    original = walk._Walk._require
    return [(walk._Walk, "_require", require)]


@bug("R2: writer ids are random")
def same_epoch_twice() -> list[Patch]:
    original = SimClaim.__init__

    def init(self: SimClaim, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.writer_id = b"\x07" * 16

    return [(SimClaim, "__init__", init)]
