"""What the members of a store know of each other: the store record, and the stamps of their disks. Pure.

The record says which servers replicate together, and how many must hold a byte before it counts. A higher
generation replaces a lower one of the same store. At most 16 KiB: the fields of `STORE_RECORD`, then per
member

    server id 16 | state u8 (1 in, 2 joining, 3 adding, 4 spare) | address bytes u8 | address, visible ASCII

A server gives its disk a *stamp* at each start and periodically: the next number, and an id. Clients report
it to the other members, which *witness* it. A disk that lacks a witnessed stamp is an older copy of itself,
so nothing that it reports counts. The id is needed because such a disk reaches the same numbers again
(docs/decisions/0211).
"""

import struct
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from dos_protocol.errors import CorruptDataError
from dos_protocol.limits import (
    address_bytes_max,
    id_bytes,
    store_members_max,
    store_record_bytes_max,
    u64_max,
)
from dos_protocol.names import NO_ID
from dos_protocol.sealed import RESERVED, SealedField, SealedLayout

_WITNESSED: Final = struct.Struct(f">{id_bytes}sQ{id_bytes}s")


class DiskStamp(NamedTuple):
    """One stamp. `number` counts from 1 on one disk; Only the server can check `stamp_id`."""

    number: int
    stamp_id: bytes


NO_STAMP: Final = DiskStamp(0, NO_ID)
"""The stamp of a server that has none, or of which none was witnessed."""


def encode_witnessed(witnessed: Mapping[bytes, DiskStamp]) -> bytes:
    """Return the entries server id 16 | number u64 | stamp id 16, ordered by server id."""
    return b"".join(_WITNESSED.pack(one, *stamp) for one, stamp in sorted(witnessed.items()))


def decode_witnessed(data: bytes) -> dict[bytes, DiskStamp]:
    """Return the newest witnessed stamp per server id. Raises ValueError unless they are whole, distinct
    entries.
    """
    if len(data) % _WITNESSED.size:
        raise ValueError(f"{len(data)} bytes are not a multiple of the {_WITNESSED.size} bytes of an entry")
    witnessed = {one: DiskStamp(number, stamp_id) for one, number, stamp_id in _WITNESSED.iter_unpack(data)}
    if len(witnessed) * _WITNESSED.size != len(data):
        raise ValueError("more than one entry for one server")
    return witnessed


# --- The store record ---------------------------------------------------------------------------------------


STORE_RECORD: Final = SealedLayout(
    "store record",
    b"\xd0\x53",
    RESERVED,
    SealedField("store id", "16s"),
    SealedField("generation", "Q"),
    SealedField("ack quorum", "B"),
    SealedField("members", "B"),
    rest="the members",
)
_MEMBER: Final = struct.Struct(">16sBB")
assert _MEMBER.size == 18

MemberState = Literal["in", "joining", "adding", "spare"]
_STATE_NUMBERS: Final[dict[MemberState, int]] = {"in": 1, "joining": 2, "adding": 3, "spare": 4}
_STATES_BY_NUMBER: Final[dict[int, MemberState]] = {number: word for word, number in _STATE_NUMBERS.items()}


class Member(msgspec.Struct, frozen=True):
    """One server. Only members "in" count; "joining" will replace the member before it, "adding" will be one
    more. A "spare" is an empty server that may replace a member.
    """

    server_id: bytes
    address: str
    state: MemberState = "in"


class StoreRecord(msgspec.Struct, frozen=True):
    """The members of a store at one generation, and its spare servers. `check` lists the invariants."""

    store_id: bytes
    generation: int
    ack_quorum: int
    members: tuple[Member, ...]
    spares: tuple[Member, ...] = ()

    @property
    def voters(self) -> tuple[Member, ...]:
        """The members that count in quorums."""
        return tuple(member for member in self.members if member.state == "in")

    def member(self, server_id: bytes) -> Member | None:
        return next((member for member in self.members if member.server_id == server_id), None)

    def find(self, named: str) -> Member | None:
        """Return the member with that address or server id in hex; None if there is none."""
        return next((one for one in self.members if named in (one.address, one.server_id.hex())), None)

    def names(self, server_id: bytes) -> bool:
        return any(one.server_id == server_id for one in (*self.members, *self.spares))

    def spares_beside(self, members: tuple[Member, ...]) -> tuple[Member, ...]:
        """Return the spares that have neither the identity nor the address of one of these members."""
        used = {one for member in members for one in (member.server_id, member.address)}
        return tuple(one for one in self.spares if not {one.server_id, one.address} & used)

    def check(self) -> None:
        """Raise ValueError if the record violates a rule. A quorum counts distinct identities, none of them
        zero.
        """
        if len(self.store_id) != id_bytes or self.store_id == NO_ID:
            raise ValueError("a store id is 16 bytes, not all zero")
        if not 1 <= self.generation <= u64_max:
            raise ValueError(f"generations begin at 1, got {self.generation}")
        every = (*self.members, *self.spares)
        if not self.members or len(every) > store_members_max:
            raise ValueError(
                f"a store has 1 to {store_members_max} members, got {len(self.members)}"
                f" and {len(self.spares)} spares"
            )
        ids = {member.server_id for member in every}
        if len(ids) != len(every) or NO_ID in ids or any(len(one) != id_bytes for one in ids):
            raise ValueError("members need distinct identities of 16 bytes, not all zero")
        if len({member.address for member in every}) != len(every):
            raise ValueError("members need distinct addresses")
        for member in every:
            if not 1 <= len(member.address) <= address_bytes_max or not _is_visible(member.address):
                raise ValueError(
                    f"an address is 1 to {address_bytes_max} visible ASCII characters, got {member.address!a}"
                )
            if member.state not in _STATE_NUMBERS:
                raise ValueError(f"a member's state is in, joining or adding, got {member.state!r}")
            if (member.state == "spare") != (member in self.spares):
                raise ValueError(f"{member.address} is {member.state}: spares are listed apart from members")
        if not 1 <= self.ack_quorum <= len(self.voters):
            raise ValueError(
                f"an ack quorum of {self.ack_quorum} needs that many members in, got {len(self.voters)}"
            )


def _is_visible(text: str) -> bool:
    """Return whether the text is visible ASCII: addresses are untrusted and appear in logs and terminals."""
    return all("!" <= character <= "~" for character in text)


def default_ack_quorum(members: int) -> int:
    """Return the default Qa: 1 of 1, 2 of 2, 2 of 3, and a majority beyond. Losing Qa - 1 disks loses nothing
    (P-5).
    """
    return members // 2 + 1


def claims_needed(n: int, qa: int) -> int:
    """Return F = max(N - Qa + 1, Qa): the claims needed before a segment is opened (R1). N: members in state
    "in".
    """
    return max(n - qa + 1, qa)


def confirmations_needed(n: int, qa: int) -> int:
    """Return how many members must confirm a store record: a majority that includes a member of every ack
    quorum.
    """
    return max(n // 2 + 1, n - qa + 1)


def encode_store_record(record: StoreRecord) -> bytes:
    record.check()
    parts = []
    for member in (*record.members, *record.spares):
        address = member.address.encode("ascii")
        parts += [_MEMBER.pack(member.server_id, _STATE_NUMBERS[member.state], len(address)), address]
    count = len(record.members) + len(record.spares)
    head = record.store_id, record.generation, record.ack_quorum, count
    return STORE_RECORD.seal(*head, rest=b"".join(parts))


def decode_store_record(data: bytes, where: str = "store record") -> StoreRecord:
    """Return the record in the bytes. Raises CorruptDataError for anything but one whole valid record."""
    if len(data) > store_record_bytes_max:
        raise STORE_RECORD.damage(where, 0, "a store record", f"{len(data)} bytes")
    values, rest = STORE_RECORD.open(data, where)
    store_id, generation, ack_quorum, count = values
    every = _decode_members(rest, count, where)
    members = tuple(member for member in every if member.state != "spare")
    spares = every[len(members) :]
    record = StoreRecord(store_id, generation, ack_quorum, members, spares)
    try:
        record.check()
    except ValueError as error:
        raise CorruptDataError(where, 0, "a record within the rules", str(error)) from error
    return record


def _decode_members(data: bytes, count: int, where: str) -> tuple[Member, ...]:
    position, at = 0, STORE_RECORD.rest_at
    members = []
    for _ in range(count):
        if len(data) - position < _MEMBER.size:
            raise STORE_RECORD.damage(where, at + position, "a member", "the end")
        server_id, state, address_bytes = _MEMBER.unpack_from(data, position)
        position += _MEMBER.size
        address = data[position : position + address_bytes]
        if len(address) != address_bytes or state not in _STATES_BY_NUMBER or not address.isascii():
            found = data[position:][:40].hex()
            raise STORE_RECORD.damage(where, at + position, "an ASCII address and a state", found)
        members.append(Member(server_id, address.decode("ascii"), _STATES_BY_NUMBER[state]))
        position += address_bytes
    if position != len(data):
        raise STORE_RECORD.damage(where, at + position, "the end", f"{len(data) - position} more bytes")
    return tuple(members)
