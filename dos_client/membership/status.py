"""Collect the status of a store: its record, the condition of each member, its lag, and forced changes.

The names of conditions are defined in `core.describing`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dos_client.core.change_log import Change
from dos_client.core.describing import MemberView, describe, rolled_back, same_server
from dos_client.core.override_log import Override
from dos_client.core.quorum import Quorums, filled_member
from dos_client.live_store import Store
from dos_client.membership.history import read_history
from dos_client.membership.record_log import read_overrides
from dos_client.repair.walking import open_walk
from dos_client.sessions.discovery import find_membership
from dos_client.store import open_store
from dos_protocol.errors import DosError
from dos_protocol.store_record import Member, StoreRecord


@dataclass(slots=True)
class MemberHolding:
    """What one member has.

    `lag_bytes`: bytes of the longest undamaged copies that its own copies lack. `damaged`: objects that its
    server reports as damaged, as directory/object.
    """

    bytes: int = 0
    objects: int = 0
    lag_bytes: int = 0
    damaged: list[str] = field(default_factory=list)


@dataclass(slots=True)
class StoreStatus:
    """The status of a store.

    `record`: None if none is confirmed; then only `problems` is filled. `holdings`: by server id, for members
    whose directories were listed; empty if that was not requested. `total_bytes`: of the longest undamaged
    copies. `history`: the changes. `spares`: by server id, why a spare does not answer; empty if it does.
    """

    record: StoreRecord | None
    members: list[MemberView] = field(default_factory=list)
    usable: bool = False
    problems: list[str] = field(default_factory=list)
    holdings: dict[bytes, MemberHolding] = field(default_factory=dict)
    total_bytes: int = 0
    overrides: list[Override] | None = None
    history: list[Change] | None = None
    spares: dict[bytes, str] = field(default_factory=dict)

    @property
    def filling(self) -> tuple[Member, int] | None:
        """The joining or adding member and how many of `total_bytes` it has. None without such a member, or
        without `holdings`.
        """
        member = filled_member(self.record) if self.record is not None else None
        if member is None or member.server_id not in self.holdings:
            return None
        return member, self.total_bytes - self.holdings[member.server_id].lag_bytes


async def store_status(
    servers: Sequence[str], *, holdings: bool = True, token: bytes = b"", client: str = "dos store status"
) -> StoreStatus:
    """Ask the servers and the members that they name. `holdings`: also list all directories."""
    membership, seen = await find_membership(servers, token=token, client=client)
    problems, duplicates = seen.problems(membership), same_server(seen.answers)
    record = membership.record
    if record is None:
        return StoreStatus(None, problems=[*problems, *duplicates])
    members = describe(record, seen.answers, seen.errors)
    described = {member.address for member in (*record.members, *record.spares)}
    problems = [line for line in problems if line.split(" ")[0].rstrip(":") not in described]
    present = [one.member.server_id for one in members if one.there]
    status = StoreStatus(record, members, Quorums(record).can_take_over(present), [*problems, *duplicates])
    at = {one.address: one.server_id for one in seen.answers}
    for spare in record.spares:
        other = "another server answers there" if spare.address in at else ""
        problem = seen.errors.get(spare.address, other)
        status.spares[spare.server_id] = "" if at.get(spare.address) == spare.server_id else problem
    if status.usable:
        try:
            await _complete_status(status, servers, holdings=holdings, token=token, client=client)
            status.usable = Quorums(record).can_take_over(
                [one.member.server_id for one in members if one.there]
            )
        except DosError as error:
            status.problems.append(str(error.args[0]))
    if status.filling is not None:
        member, done = status.filling
        text = f"{member.address} is {member.state}: {done} of {status.total_bytes} bytes are copied"
        status.problems.append(text)
    damaged = sum(len(one.damaged) for one in status.holdings.values())
    if damaged:
        status.problems.append(f"{damaged} copies are damaged: run `dos store repair`")
    return status


async def _complete_status(
    status: StoreStatus, servers: Sequence[str], *, holdings: bool, token: bytes, client: str
) -> None:
    url = f"dos://{','.join(servers)}"
    async with open_store(url, token=token, client=client) as store:
        status.overrides = await read_overrides(store)
        status.history = await read_history(store)
        if holdings:
            await _measure_holdings(store, status)
        for index, one in enumerate(status.members):  # known only after the stamps of members were compared
            if one.member.server_id in store.witnesses.rolled_back:
                status.members[index] = rolled_back(one)


async def _measure_holdings(store: Store, status: StoreStatus) -> None:
    """List all directories on the members that answer."""
    async with open_walk(store) as walk:
        status.holdings = {one: MemberHolding() for one in walk.sessions}
        for directory in await walk.directories():
            await walk.enter(directory)
            for name in walk.names():
                infos = walk.infos(name)
                sizes = [info.synced for info in infos.values() if info is not None and not info.corrupt]
                longest = max(sizes, default=0)
                status.total_bytes += longest
                for server_id, info in infos.items():
                    holding = status.holdings.setdefault(server_id, MemberHolding())
                    size = info.synced if info is not None else 0
                    holding.bytes += size
                    holding.objects += info is not None
                    holding.lag_bytes += max(0, longest - size)
                    if info is not None and info.corrupt:
                        holding.damaged.append(f"{directory}/{name}")
