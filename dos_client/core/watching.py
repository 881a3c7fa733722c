"""Decide what `dos store watch` does next, from what it sees of a store. Pure: no I/O, no clock.

Rules:

1. Without a quorum nothing is done: the watcher itself may be the one that is cut off.
2. While another run changes the store, nothing is done. If a change stands still, it is completed.
3. A member that answers with its identity at another address is followed to it. Members that answer at their
   address are never moved: two servers with one identity are reported.
4. A member is replaced after it was silent for `replace_after_s`. Silence is counted over the looks of this
   watcher, so a watcher that stood still does not take its members for silent. A member that other clients
   reach is not silent. If only this watcher cannot reach a member and nothing shows that, the member is
   replaced although it is alive. That is safe, and costs one copy.
5. The replacement is a spare that answers, and is empty. Without one, this is reported.
6. One action at a time; the first that is possible of: complete, follow, replace, repair. Full disks are
   reported also while there is an action: no action makes room.

Every action is performed under the claim of the record log, which fences other watchers and commands.
docs/decisions/0223 has the reasons.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from dos_client.core.quorum import Quorums, deciding_record, filled_member, replaced_member, tie_breaker
from dos_protocol.store_record import DiskStamp, Member, StoreRecord


@dataclass(frozen=True, slots=True)
class MemberSight:
    """One member, as the watcher sees it. `present`: it answers as itself, at its address, and its disk did
    not go back. `silent_s`: how long nobody has reached it. `elsewhere`: other addresses at which it answers
    as itself.
    """

    member: Member
    present: bool
    silent_s: float = 0.0
    elsewhere: tuple[str, ...] = ()
    why: str = ""
    reached_by_others: bool = False
    refuses_appends: bool = False


@dataclass(frozen=True, slots=True)
class SpareSight:
    member: Member
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StoreSight:
    """A store, as the watcher sees it. `still_s`: for how long no other run has changed it. `returned`:
    addresses of members that were silent, and whose copies were not compared since. `behind`: directories in
    which copies differ, or are behind although nobody appends there.
    """

    record: StoreRecord | None
    members: tuple[MemberSight, ...] = ()
    spares: tuple[SpareSight, ...] = ()
    still_s: float = 0.0
    damaged: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """The silence after which a member is replaced, and how long another run must stand still before its
    change is completed.
    """

    replace_after_s: float
    stand_by_s: float


@dataclass(frozen=True, slots=True)
class WaitAction:
    """Do nothing. `why`: empty if all is well."""

    why: str = ""


class Problem(Enum):
    UNREADABLE = "the store cannot be read"
    NO_QUORUM = "no quorum"
    SEVERAL_ADDRESSES = "a member at several addresses"
    NO_SPARE = "no usable spare"
    ADDED_IS_SILENT = "the added member is silent"
    DISKS_FULL = "disks are full"


@dataclass(frozen=True, slots=True)
class ReportAction:
    """A person has to act: `why`, what to do, and the kind of the problem."""

    why: str
    remedy: str
    problem: Problem


@dataclass(frozen=True, slots=True)
class CompleteAction:
    old: Member | None
    new: Member
    why: str


@dataclass(frozen=True, slots=True)
class ReplaceAction:
    old: Member
    new: Member
    why: str


@dataclass(frozen=True, slots=True)
class FollowAction:
    addresses: Mapping[bytes, str]
    why: str


@dataclass(frozen=True, slots=True)
class RepairAction:
    directories: tuple[str, ...]
    why: str


Action = WaitAction | ReportAction | CompleteAction | ReplaceAction | FollowAction | RepairAction


def decide(sight: StoreSight, policy: WatchPolicy) -> Action:
    """Return the next action."""
    if (stuck := why_stuck(sight)) is not None:
        return stuck
    record = sight.record
    assert record is not None, "it is not stuck"
    if sight.still_s < policy.stand_by_s:
        return WaitAction("another run changes the store")
    twice = [one for one in sight.members if len(one.elsewhere) + one.present > 1]
    if twice:
        places = ", ".join([*([twice[0].member.address] if twice[0].present else []), *twice[0].elsewhere])
        return ReportAction(
            f"the member {twice[0].member.address} answers at several addresses: {places}",
            "if its disk was copied, stop the copy; otherwise name one address only",
            Problem.SEVERAL_ADDRESSES,
        )
    fenced = Quorums(deciding_record(record)).can_take_over(_present(sight))
    follow = _follow(sight, policy, fenced=fenced)
    if follow is not None:
        return follow
    if not fenced:
        moved = [one for one in sight.members if not one.present and one.elsewhere]
        return WaitAction(
            "; ".join(f"{_absence(one, policy)}; it answers at {one.elsewhere[0]}" for one in moved)
        )
    if filled_member(record) is not None:
        return _complete(sight, record, policy)
    silent = sorted(
        (one for one in sight.members if not one.present and one.silent_s >= policy.replace_after_s),
        key=lambda one: -one.silent_s,
    )
    if silent:
        return _replace(sight, record, silent[0])
    if sight.damaged:
        return RepairAction(sight.damaged, f"{len(sight.damaged)} directories have damaged copies")
    if sight.returned:
        return RepairAction((), f"{', '.join(sight.returned)} was unavailable, and is back")
    if sight.behind:
        return RepairAction(
            sight.behind, f"{len(sight.behind)} directories have copies that are behind, and nobody appends"
        )
    if (full := full_disks(sight)) is not None:
        return full
    absent = [_absence(one, policy) for one in sight.members if not one.present]
    places = ", ".join(one.member.address for one in sight.members if one.refuses_appends)
    return WaitAction("; ".join([*absent, *([f"the disk of {places} is full"] if places else [])]))


def report_of(sight: StoreSight, action: Action) -> ReportAction | None:
    return action if isinstance(action, ReportAction) else full_disks(sight)


def full_disks(sight: StoreSight) -> ReportAction | None:
    full = [one.member for one in sight.members if one.refuses_appends]
    if sight.record is None or not full:
        return None
    if Quorums(sight.record).can_acknowledge(_present(sight) - {one.server_id for one in full}):
        return None
    places = ", ".join(one.address for one in full)
    return ReportAction(
        f"writers wait: too few members accept appends; the disk of {places} is full",
        "free some space on them, or add larger ones with `dos store replace`",
        Problem.DISKS_FULL,
    )


def why_stuck(sight: StoreSight) -> ReportAction | None:
    if sight.record is None:
        return ReportAction(
            f"the store cannot be read: {'; '.join(sight.problems)}",
            "start the missing servers; if they are lost, see `dos store recover`",
            Problem.UNREADABLE,
        )
    return None if sees_quorum(sight) else _no_quorum(sight, sight.record)


def sees_quorum(sight: StoreSight) -> bool:
    assert sight.record is not None
    moved = {one.member.server_id for one in sight.members if not one.present and one.elsewhere}
    return Quorums(deciding_record(sight.record)).can_take_over(_present(sight) | moved)


def name_of(action: Action) -> str:
    return type(action).__name__.removesuffix("Action").lower()


def subject(action: Action) -> tuple[str, ...]:
    """Return what an action is about. A repetition of a failed action has the same subject."""
    match action:
        case CompleteAction(_, new) | ReplaceAction(_, new):
            return name_of(action), new.address
        case FollowAction(addresses):
            return name_of(action), *sorted(addresses.values())
        case RepairAction(directories):
            return name_of(action), *directories
    return (name_of(action),)


def _url(record: StoreRecord) -> str:
    return f"dos://{','.join(one.address for one in record.voters)}"


def _present(sight: StoreSight) -> set[bytes]:
    """Return the servers that count: members that are present, and a tie-breaker that can be used."""
    assert sight.record is not None
    third = tie_breaker(sight.record)
    present = {one.member.server_id for one in sight.members if one.present}
    return present | {one.member.server_id for one in sight.spares if one.member == third and not one.problem}


def _absence(one: MemberSight, policy: WatchPolicy) -> str:
    if one.reached_by_others:
        return f"{one.member.address} does not answer here, but other clients reach it"
    silent = f"silent for {one.silent_s:.0f} s of {policy.replace_after_s:.0f} s"
    return f"{one.member.address} is {silent}: {one.why}"


def _no_quorum(sight: StoreSight, record: StoreRecord) -> ReportAction:
    absent = [one for one in sight.members if not one.present]
    missing = "; ".join(f"{one.member.address}: {one.why}" for one in absent)
    why = f"{len(sight.members) - len(absent)} of {len(record.voters)} members are seen, too few to act"
    if len(record.voters) == 2 and record.spares:
        why += "; the first spare would decide, and cannot"
    return ReportAction(
        f"{why}: {missing}",
        "start them, or check the network of this host; if they are lost,"
        f" `dos store replace {_url(record)} OLD NEW --other-is-gone` (one of two) or `dos store recover`",
        Problem.NO_QUORUM,
    )


def _follow(sight: StoreSight, policy: WatchPolicy, *, fenced: bool) -> FollowAction | None:
    moved = [
        one
        for one in sight.members
        # Fenced: a server that still works at the old address cannot acknowledge anything. Otherwise the old
        # address must have been silent for as long as before a replacement.
        if not one.present and one.elsewhere and (fenced or one.silent_s >= policy.replace_after_s)
    ]
    if not moved:
        return None
    return FollowAction(
        {one.member.server_id: one.elsewhere[0] for one in moved},
        "; ".join(f"{one.member.address} answers at {one.elsewhere[0]}" for one in moved),
    )


def _complete(sight: StoreSight, record: StoreRecord, policy: WatchPolicy) -> Action:
    new, old = filled_member(record), replaced_member(record)
    assert new is not None
    (filled,) = [one for one in sight.members if one.member == new]
    change = f"replaces {old.address}" if old is not None else "is being added"
    if filled.present:
        return CompleteAction(old, new, f"{new.address} {change}, and the run that began this stands still")
    if filled.silent_s < policy.replace_after_s:
        return WaitAction(_absence(filled, policy))
    if old is None:
        return ReportAction(
            f"{new.address} is being added, and is silent: every member is needed",
            f"start it; or, if it is gone for good: dos store replace {_url(record)} OLD NEW --other-is-gone",
            Problem.ADDED_IS_SILENT,
        )
    return _replace(sight, record, filled, instead=old)


def _replace(
    sight: StoreSight, record: StoreRecord, silent: MemberSight, instead: Member | None = None
) -> ReplaceAction | ReportAction:
    why = f"{silent.member.address} is silent for {silent.silent_s:.0f} s: {silent.why}"
    usable = [one.member for one in sight.spares if not one.problem]
    if tie_breaker(record) is not None and len(usable) > 1:  # it stays where it decides
        usable = [*usable[1:], usable[0]]
    if usable:
        return ReplaceAction(instead or silent.member, usable[0], why)
    problems = "; ".join(f"{one.member.address}: {one.problem}" for one in sight.spares)
    return ReportAction(
        f"{why}; {f'no spare can be used: {problems}' if problems else 'the store has no spare'}",
        f"start an empty server, and run: dos store spare add {_url(record)} HOST:PORT",
        Problem.NO_SPARE,
    )


@dataclass(slots=True)
class Silences:
    """How long members have been silent, counted over the looks of one watcher. `step_max_s`: the most that
    one look adds.
    """

    step_max_s: float
    _silent_s: dict[bytes, float] = field(default_factory=dict)
    _stamps: dict[bytes, DiskStamp] = field(default_factory=dict)
    _reached_by_others: set[bytes] = field(default_factory=set)
    _looked_s: float | None = None

    def look(self, now_s: float, absent: Collection[bytes], stamps: Mapping[bytes, DiskStamp]) -> None:
        """Record a look. `stamps`: the newest stamp of each absent member that the others know."""
        # A watcher that was suspended has not seen the time between two looks, so that time is not silence.
        step_s = 0.0 if self._looked_s is None else min(now_s - self._looked_s, self.step_max_s)
        self._looked_s = now_s
        for server_id in [one for one in self._silent_s if one not in absent]:
            del self._silent_s[server_id]
            self._stamps.pop(server_id, None)
            self._reached_by_others.discard(server_id)
        for server_id in absent:
            stamp = stamps.get(server_id)
            before = self._stamps.get(server_id)
            if before is not None and stamp is not None and stamp != before:
                self._silent_s[server_id] = 0.0
                # Its stamp has changed: another client reached it.
                self._reached_by_others.add(server_id)
            else:
                known = server_id in self._silent_s
                self._silent_s[server_id] = self._silent_s.get(server_id, 0.0) + (step_s if known else 0.0)
            if stamp is not None:
                self._stamps[server_id] = stamp

    def silent_s(self, server_id: bytes) -> float:
        return self._silent_s.get(server_id, 0.0)

    def reached_by_others(self, server_id: bytes) -> bool:
        return server_id in self._reached_by_others
