"""Build the view of a directory from its members' answers, or the error if there are too few.

The store sends the requests and limits the time.
"""

from dataclasses import dataclass, field

from dos_client.core.quorum import Quorums, refusal_of_token
from dos_client.errors import DamagedMembersError, QuorumUnavailableError
from dos_protocol.errors import CorruptError, DosError
from dos_protocol.messages import DirectoryOpened, ObjectInfo
from dos_protocol.store_record import Member, StoreRecord


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """A directory as it was read without a claim.

    - `answers`: per trusted member that is "in", its objects.
    - `filled`: the same of the joining or adding member. It proves nothing about what exists, but helps to
      complete quorums for what the others hold.
    - `epochs`: per member that answered, the claim that it holds, as (epoch, writer id).
    - `epoch_seen`: the highest of these epochs, 0 if the directory was never claimed.
    - `reachable`: how many members answered.
    - `damaged`: with `sound`, per member in `answers`, the names of its damaged objects.
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
    """Return whether the member rejected the directory as damaged. If the session failed, the damage is its
    cause.
    """
    return isinstance(error, CorruptError) or (
        error is not None and isinstance(error.__cause__, CorruptError)
    )


def _why_not(member: Member, opened: dict[bytes, DirectoryOpened], errors: dict[str, DosError]) -> str:
    """Return why that member is not counted."""
    if member.server_id not in opened:
        error = errors.get(member.address)
        return f"{member.address}: {'no answer in time' if error is None else error.args[0]}"
    damaged = [info.name for info in opened[member.server_id].entries if info.corrupt or info.poisoned]
    more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
    return f"{member.address} has damaged objects: {damaged[0]}{more}"


def unclaimed(record: StoreRecord, opened: dict[bytes, DirectoryOpened]) -> bool:
    """Return whether the directory was never claimed. A granted claim is held by at least one of any F
    members.
    """
    return Quorums(record).can_take_over(opened) and not any(one.epoch for one in opened.values())


def _without_damage(answer: DirectoryOpened) -> DirectoryOpened:
    sound = tuple(info for info in answer.entries if not (info.corrupt or info.poisoned))
    return DirectoryOpened(answer.epoch, answer.writer_id, sound)


def _failed_to_write(answer: DirectoryOpened) -> bool:
    return any(info.poisoned for info in answer.entries)


def _damaged_names(answer: DirectoryOpened) -> frozenset[str]:
    return frozenset(info.name for info in answer.entries if info.corrupt)


def view_of(
    directory: str,
    record: StoreRecord,
    opened: dict[bytes, DirectoryOpened],
    errors: dict[str, DosError],
    *,
    as_files: bool = False,
    sound: bool = False,
) -> DirectoryView:
    """Build the view from the answers; `errors` by address.

    Raises ForbiddenError or UnauthorisedError if the token does not grant it; QuorumUnavailableError, or
    DamagedMembersError if the members that answered would be enough without
    their damage.

    `as_files`: in a directory that was never claimed, each file belongs to its own server, and no quorum has
    acknowledged it (docs/decisions/0050). So a damaged file is left out, and its member stays trusted.
    `sound`: the same in every directory. Such a view says what can be read, and never what does not exist: it
    is for positions that a committed record names. A member on which a write failed counts as one that did
    not answer: its server may have the bytes after a restart.
    """
    if sound:
        opened = {one: answer for one, answer in opened.items() if not _failed_to_write(answer)}
    damage = {one: _damaged_names(answer) for one, answer in opened.items()} if sound else {}
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
