"""What members report of an object, and what a quorum agrees on. Pure: no I/O.

Bytes that only one member holds may vanish in a take-over, and a disk may return bytes that were never
written to it. So a reader that must be correct determines how far a *quorum* has the object, and with which
prefix digest.

**Committed**, for a reader of one object: the first `size` bytes are synced on Qa members (in each set, while
a member joins), all of them with one prefix digest. Reasons why that is enough:

- Sizes are reported only after a sync, and a copy never shrinks.
- A later take-over of the directory queries F members after it has fenced them, so at least one of them
  reports these bytes. It continues after them. If copies contradict each other, it refuses
  (docs/decisions/0014).

Members that have not answered count neither for nor against.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from msgspec import structs

from dos_client.core.quorum import Quorums
from dos_protocol.store_record import StoreRecord


def reading_quorums(record: StoreRecord) -> Quorums:
    """Return the quorums that commit, for a reader.

    They are those of writers, with one exception. While a member is *added*, writers need every member, and
    readers would have to wait until the new member is filled. They need not wait if Qa is a majority: what Qa
    of the old members hold is reported by any F of them, and by any F of the larger store, whose Qa is the
    same or one more.
    """
    if 2 * record.ack_quorum > len(record.voters) and any(one.state == "adding" for one in record.members):
        return Quorums(structs.replace(record, members=record.voters))
    return Quorums(record)


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result of comparing the digests at one size.

    `digest`: the digest of a quorum, or None. `against`: members with a different digest. `lacking`: how many
    more members must report the leading digest; 0 if there is a quorum, or if there can never be one.
    `disputed`: members reported more than one digest, and none of them has a quorum alone.
    """

    digest: int | None
    against: frozenset[bytes]
    lacking: int
    disputed: bool = False


def agree(quorums: Quorums, digests: Mapping[bytes, int]) -> Agreement:
    """Compare the digests that members reported for one size."""
    holders: dict[int, set[bytes]] = {}
    for server_id, digest in digests.items():
        if server_id in quorums.members:
            holders.setdefault(digest, set()).add(server_id)
    agreed = [digest for digest, members in holders.items() if quorums.can_acknowledge(members)]
    if len(agreed) == 1:
        others = frozenset(
            one for digest, members in holders.items() if digest != agreed[0] for one in members
        )
        return Agreement(agreed[0], others, 0)
    if agreed:  # possible if Qa is not a majority: the true one cannot be determined
        return Agreement(None, frozenset(), 0, disputed=True)
    lacking = min(map(quorums.lacking, holders.values()), default=quorums.lacking(()))
    return Agreement(None, frozenset(), lacking, disputed=len(holders) > 1)


@dataclass(frozen=True, slots=True)
class Reach:
    """How far an object reaches, as members reported.

    `held`: the size on Qa members, contents not compared. `seen`: the largest size on any member. `sure`:
    nothing acknowledged can lie beyond `held`.
    """

    held: int
    seen: int
    sure: bool


def reach(quorums: Quorums, sizes: Mapping[bytes, int], sound: Collection[bytes]) -> Reach:
    """Return how far the object reaches.

    - `sizes`: the size on each member.
    - `sound`: members that also prove what they do *not* have. A damaged member does not (R4).

    The result is sure for this reason. Acknowledged bytes are on Qa of the members that are in, so any F of
    them include one that reports them. Assume that the members that have not answered hold everything that
    was seen. Bytes that are on too few members even then were never acknowledged.
    """
    held, seen = quorums.watermark(sizes), max(sizes.values(), default=0)
    if not quorums.can_take_over(sound):
        return Reach(held, seen, sure=False)
    return Reach(held, seen, quorums.acknowledged_at_most(sizes, sound) <= held)
