"""What members say of an object, and what a quorum agrees on. Pure.

Bytes that one member alone holds may vanish in a take-over, and a disk may give back what it was never
given. So a reader who must not be wrong asks how far a *quorum* has the object, and with which prefix digest:

**Committed**, for a reader of one object: the first `size` bytes are synced on Qa members (in each set, while
a member joins), all of them with one prefix digest. Why that is enough: sizes are only told after a sync, and
a copy never shrinks. Whoever takes the directory over later asks F members after fencing them, so at least
one of them shows it these bytes; and it goes on from them, or, where copies contradict each other, refuses
(docs/decisions/0014).

Rules of this file: answers in, a verdict out. Members that have not answered are neither for nor against.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from msgspec import structs

from dos_client.core.quorum import Quorums
from dos_protocol.store_record import StoreRecord


def reading_quorums(record: StoreRecord) -> Quorums:
    """The quorums that commit, for a reader.

    As for writers; but while a member is *added*, writers need every member, the new one too, and readers
    would have to wait until that is filled. They need not where Qa is a majority: what Qa of the members that
    are in hold is seen by any F of them, and by any F of the larger store, whose Qa is the same or one
    more."""
    if 2 * record.ack_quorum > len(record.voters) and any(one.state == "adding" for one in record.members):
        return Quorums(structs.replace(record, members=record.voters))
    return Quorums(record)


@dataclass(frozen=True, slots=True)
class Agreement:
    """What was made of the digests at one size.

    `digest`: the one that a quorum gives, None without. `against`: members that give another one than that.
    `lacking`: how many more members must give the leading digest; 0 when there is a quorum, or never will
    be. `disputed`: members gave more than one digest, and none has a quorum alone."""

    digest: int | None
    against: frozenset[bytes]
    lacking: int
    disputed: bool = False


def agree(quorums: Quorums, digests: Mapping[bytes, int]) -> Agreement:
    """Which digest counts, of those that members gave for one size."""
    camps: dict[int, set[bytes]] = {}
    for server_id, digest in digests.items():
        if server_id in quorums.members:
            camps.setdefault(digest, set()).add(server_id)
    winners = [digest for digest, camp in camps.items() if quorums.can_acknowledge(camp)]
    if len(winners) == 1:
        others = frozenset(one for digest, camp in camps.items() if digest != winners[0] for one in camp)
        return Agreement(winners[0], others, 0)
    if winners:  # as can be when Qa is no majority: nobody can tell any more
        return Agreement(None, frozenset(), 0, disputed=True)
    lacking = min(map(quorums.lacking, camps.values()), default=quorums.lacking(()))
    return Agreement(None, frozenset(), lacking, disputed=len(camps) > 1)


@dataclass(frozen=True, slots=True)
class Reach:
    """How far an object goes, as members told.

    `held`: what Qa members have, contents not compared. `seen`: the most that any has. `sure`: whether
    nothing acknowledged can lie beyond `held`."""

    held: int
    seen: int
    sure: bool


def reach(quorums: Quorums, ack_quorum: int, sizes: Mapping[bytes, int], sound: Collection[bytes]) -> Reach:
    """How far the object goes. `ack_quorum`: Qa of the record, by which earlier bytes were acknowledged, also
    while more is needed because a member is being added. `sizes`: per member what it has; `sound`: members
    whose word also counts for what they have *not*, which that of a damaged one does not (R4).

    Sure: what was acknowledged is on Qa of the members that are in, so at least one of any F of them shows
    it. Let those that have not answered have everything: what is then still on too few was never
    acknowledged."""
    held, seen = quorums.watermark(sizes), max(sizes.values(), default=0)
    if not quorums.can_take_over(sound):
        return Reach(held, seen, sure=False)
    most = [sizes.get(one, 0) if one in sound else seen for one in quorums.sets[0]]
    return Reach(held, seen, sorted(most, reverse=True)[ack_quorum - 1] <= held)
