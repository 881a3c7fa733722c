"""What members report of an object or a directory, and what a quorum agrees on. Pure: no I/O.

**Committed**, for a reader of one object: the first `size` bytes are synced on Qa members (in each set, while
a member joins), all of them with one prefix digest. Reasons why that is enough:

- Sizes are reported only after a sync, and a copy never shrinks.
- A later take-over queries F members after it has fenced them, so at least one reports these bytes, and it
  continues after them. If copies contradict each other, it refuses (docs/decisions/0014).

Members that have not answered count neither for nor against.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from msgspec import structs

from dos_client.core.quorum import Quorums, refusal_of_token
from dos_client.errors import DamagedMembersError, QuorumUnavailableError
from dos_protocol.errors import CorruptError, DosError
from dos_protocol.messages import DirectoryOpened, ObjectInfo
from dos_protocol.store_record import Member, StoreRecord


def reading_quorums(record: StoreRecord) -> Quorums:
    """Return the quorums that commit, for a reader: those of writers, with one exception."""
    # While a member is *added*, writers need every member, and readers would wait until it is filled. They
    # need not if Qa is a majority: what Qa of the old members hold is reported by any F of them, and by any F
    # of the larger store, whose Qa is the same or one more.
    if 2 * record.ack_quorum > len(record.voters) and any(one.state == "adding" for one in record.members):
        return Quorums(structs.replace(record, members=record.voters))
    return Quorums(record)


@dataclass(frozen=True, slots=True)
class Agreement:
    """The digests at one size, compared. `digest`: of a quorum, or None. `against`: members with another one.
    `lacking`: how many more must report the leading digest; 0 if that cannot help. `disputed`: no digest has
    a quorum alone.
    """

    digest: int | None
    against: frozenset[bytes]
    lacking: int
    disputed: bool = False


def agree(quorums: Quorums, digests: Mapping[bytes, int]) -> Agreement:
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
    """How far an object reaches. `held`: on Qa members. `seen`: on any. `sure`: nothing acknowledged is
    beyond `held`.
    """

    held: int
    seen: int
    sure: bool


def reach(quorums: Quorums, sizes: Mapping[bytes, int], sound: Collection[bytes]) -> Reach:
    """Return how far the object reaches. `sound`: members that also prove what they do *not* have (R4)."""
    held, seen = quorums.watermark(sizes), max(sizes.values(), default=0)
    if not quorums.can_take_over(sound):
        return Reach(held, seen, sure=False)
    # Acknowledged bytes are on Qa of the members that are in, so any F of them include one that reports them.
    # Assume that members that have not answered hold everything that was seen: bytes that are on too few
    # members even then were never acknowledged.
    return Reach(held, seen, quorums.acknowledged_at_most(sizes, sound) <= held)


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """A directory as it was read without a claim.

    `answers`: per trusted member that is "in", its objects. `filled`: of the joining or adding member, which
    proves nothing about what exists. `epochs`: per member, the claim that it holds. `epoch_seen`: the highest
    epoch. `reachable`: how many answered. `damaged`: with `sound`, the names of damaged objects.
    """

    answers: dict[bytes, dict[str, ObjectInfo]]
    epochs: dict[bytes, tuple[int, bytes]]
    epoch_seen: int
    reachable: int
    filled: dict[bytes, dict[str, ObjectInfo]] = field(default_factory=dict)
    damaged: dict[bytes, frozenset[str]] = field(default_factory=dict)


def trusted_members(opened: dict[bytes, DirectoryOpened]) -> list[bytes]:
    """Return the members whose answers contain nothing damaged (R4)."""
    return [
        server_id
        for server_id, answer in opened.items()
        if not any(info.corrupt or info.poisoned for info in answer.entries)
    ]


def _reports_damage(error: DosError | None) -> bool:
    return isinstance(error, CorruptError) or (
        error is not None and isinstance(error.__cause__, CorruptError)
    )


def _why_not(member: Member, opened: dict[bytes, DirectoryOpened], errors: dict[str, DosError]) -> str:
    if member.server_id not in opened:
        error = errors.get(member.address)
        return f"{member.address}: {'no answer in time' if error is None else error.args[0]}"
    damaged = [info.name for info in opened[member.server_id].entries if info.corrupt or info.poisoned]
    more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
    return f"{member.address} has damaged objects: {damaged[0]}{more}"


def unclaimed(record: StoreRecord, opened: dict[bytes, DirectoryOpened]) -> bool:
    """Return whether the directory was never claimed. Any F members know a granted claim."""
    return Quorums(record).can_take_over(opened) and not any(one.epoch for one in opened.values())


def _without_damage(answer: DirectoryOpened) -> DirectoryOpened:
    sound = tuple(info for info in answer.entries if not (info.corrupt or info.poisoned))
    return DirectoryOpened(answer.epoch, answer.writer_id, sound)


def view_of(
    directory: str,
    record: StoreRecord,
    opened: dict[bytes, DirectoryOpened],
    errors: dict[str, DosError],
    *,
    as_files: bool = False,
    sound: bool = False,
) -> DirectoryView:
    """Build the view from the answers; `errors` by address. Raises ForbiddenError, UnauthorisedError,
    QuorumUnavailableError, or DamagedMembersError if the members would be enough without their damage.

    `as_files`: in a directory that was never claimed, leave damaged files out (docs/decisions/0050). `sound`:
    the same in every directory: such a view never says what does not exist.
    """
    damage: dict[bytes, frozenset[str]] = {}
    if sound:
        # The server of a failed write may have the bytes after a restart, so it counts as one that did not
        # answer.
        opened = {one: it for one, it in opened.items() if not any(info.poisoned for info in it.entries)}
        damage = {one: frozenset(i.name for i in it.entries if i.corrupt) for one, it in opened.items()}
    if sound or (as_files and unclaimed(record, opened)):
        opened = {one: _without_damage(answer) for one, answer in opened.items()}
    quorums, trusted = Quorums(record), trusted_members(opened)
    if not quorums.can_take_over(trusted):
        found = {one.server_id: errors.get(one.address) for one in record.members}
        if (refusal := refusal_of_token(quorums, found)) is not None:
            raise refusal
        damaged = {one.server_id for one in record.members if _reports_damage(errors.get(one.address))}
        enough = quorums.can_take_over({*opened, *damaged})
        raise (DamagedMembersError if enough else QuorumUnavailableError)(
            f"{quorums.claims_needed} undamaged members are needed to read {directory},"
            f" {len(trusted)} answered",
            [_why_not(one, opened, errors) for one in record.members if one.server_id not in trusted],
        )
    epochs = {one: (answer.epoch, answer.writer_id) for one, answer in opened.items()}
    entries = {one: {info.name: info for info in opened[one].entries} for one in trusted}
    return DirectoryView(
        {one: objects for one, objects in entries.items() if one in quorums.sets[0]},
        epochs,
        max((epoch for epoch, _ in epochs.values()), default=0),
        len(opened),
        {one: objects for one, objects in entries.items() if one not in quorums.sets[0]},
        damage,
    )
