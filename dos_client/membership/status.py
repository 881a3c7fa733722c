"""Collect the status of a store: its record, the condition of each member, its lag, and forced changes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dos_client.core.comparing import CopyState
from dos_client.core.logs import OVERRIDES, Change, Override
from dos_client.core.membership import Condition, MemberView, describe, rolled_back, same_server
from dos_client.core.quorum import Quorums, filled_member
from dos_client.limits import status_answer_s
from dos_client.membership.record_log import read_history, read_log
from dos_client.repair.verifying import (
    MemberHolding,
    VerifyReport,
    blocked_text,
    damage_text,
    verify_store,
)
from dos_client.sessions.connection import ServerAccess
from dos_client.sessions.discovery import find_membership
from dos_client.store import open_store
from dos_protocol.errors import DosError
from dos_protocol.store_record import Member, StoreRecord


@dataclass(slots=True)
class StoreStatus:
    """The status of a store. `record`: None if none is confirmed. `usable`: enough members answer.
    `accepts_appends`: enough of them have room. `compared`: None if not requested, or not possible. `spares`:
    by server id, why a spare does not answer.
    """

    record: StoreRecord | None
    members: list[MemberView] = field(default_factory=list)
    usable: bool = False
    accepts_appends: bool = False
    problems: list[str] = field(default_factory=list)
    compared: VerifyReport | None = None
    overrides: list[Override] | None = None
    history: list[Change] | None = None
    spares: dict[bytes, str] = field(default_factory=dict)

    @property
    def holdings(self) -> dict[bytes, MemberHolding]:
        return {} if self.compared is None else self.compared.holdings

    @property
    def total_bytes(self) -> int:
        return 0 if self.compared is None else self.compared.total_bytes

    @property
    def filling(self) -> tuple[Member, int] | None:
        """The member that is filled, and how many of `total_bytes` it has; None without `holdings`."""
        member = filled_member(self.record) if self.record is not None else None
        if member is None or member.server_id not in self.holdings:
            return None
        return member, self.total_bytes - self.holdings[member.server_id].lag_bytes

    @property
    def blocked(self) -> list[str]:
        return [] if self.compared is None else self.compared.blocked

    @property
    def writers_wait(self) -> bool:
        """Whether writers wait, or would wait if they were started again, in one directory at least."""
        return not self.usable or not self.accepts_appends or bool(self.blocked)

    @property
    def verdict(self) -> str:
        if self.record is None:
            return "no store record could be confirmed"
        if not self.usable:
            return "too few members are available"
        if not self.accepts_appends:
            return "writers wait: too few members have room"
        if self.blocked:
            return f"writers wait in {len(self.blocked)} directories: too few members are undamaged there"
        return "usable"

    @property
    def whole(self) -> bool:
        """Whether all members are there and have room, and copies are equal, or behind an active writer."""
        equal = self.compared is None or self.compared.equal
        return equal and all(one.there and not one.refuses_appends for one in self.members)


async def store_status(
    servers: Sequence[str], *, holdings: bool = True, token: bytes = b"", client: str = "dos store status"
) -> StoreStatus:
    """Ask the servers and the members that they name. `holdings`: also compare all copies, by digest. A
    server that does not answer within `status_answer_s` counts as unavailable.
    """
    access = ServerAccess(token, client)
    membership, seen = await find_membership(servers, access, timeout_s=status_answer_s)
    problems, duplicates = seen.problems(membership), same_server(seen.answers)
    record = membership.record
    if record is None:
        return StoreStatus(None, problems=[*problems, *duplicates])
    members = describe(record, seen.answers, seen.errors)
    described = {member.address for member in (*record.members, *record.spares)}
    problems = [line for line in problems if line.split(" ")[0].rstrip(":") not in described]
    status = StoreStatus(record, members, problems=[*problems, *duplicates])
    status.usable = Quorums(record).can_take_over(_answering(status))
    status.spares = {spare.server_id: seen.why_absent(spare) for spare in record.spares}
    if status.usable:
        try:
            await _complete_status(status, servers, access, holdings=holdings)
        except DosError as error:
            status.problems.append(str(error.args[0]))
    answering = _answering(status)
    status.usable = Quorums(record).can_take_over(answering)
    full = {one.member.server_id for one in members if one.refuses_appends}
    status.accepts_appends = Quorums(record).can_acknowledge(set(answering) - full)
    status.problems += _problems(status)
    return status


def _answering(status: StoreStatus) -> list[bytes]:
    return [one.member.server_id for one in status.members if one.there]


def _problems(status: StoreStatus) -> list[str]:
    lines = []
    if status.usable and not status.accepts_appends:
        lines.append("writers wait: too few members have room: free some space on the full disks")
    if status.filling is not None:
        member, done = status.filling
        lines.append(f"{member.address} is {member.state}: {done} of {status.total_bytes} bytes are copied")
    found = []
    if status.compared is not None:
        found = status.compared.differences
        lines += [damage_text(one) for one in status.compared.damaged_directories]
        lines += [blocked_text(one) for one in status.compared.blocked]
    for states, text in (
        ((CopyState.DAMAGED,), "are damaged"),
        ((CopyState.BEHIND, CopyState.MISSING), "are behind, and nobody appends there"),
        ((CopyState.DIFFERS,), "contradict the others"),
    ):
        if count := sum(one.verdict in states for one in found):
            lines.append(f"{count} copies {text}: run `dos store repair`")
    return lines


async def _complete_status(
    status: StoreStatus, servers: Sequence[str], access: ServerAccess, *, holdings: bool
) -> None:
    url = f"dos://{','.join(servers)}"
    silent = {one.member.server_id for one in status.members if one.condition is Condition.UNAVAILABLE}
    async with open_store(url, record=status.record, **access._asdict()) as store:
        status.overrides = await read_log(store, OVERRIDES)
        status.history = await read_history(store)
        if holdings:
            status.compared = await verify_store(store, without=silent, answer_timeout_s=status_answer_s)
        for index, one in enumerate(status.members):  # known only after the stamps of members were compared
            if one.member.server_id in store.witnesses.rolled_back:
                status.members[index] = rolled_back(one)
