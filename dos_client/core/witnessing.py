"""Detect disks that went back to an older state: which stamps must be queried and passed on. Pure: no I/O.

For any two members A and P that are connected, P must know A's newest stamp before both count: else A's disk
could be replaced by an older copy, and P would not notice. Before P receives a newer stamp of A, A must prove
that its disk has the stamp that P knows: the newer stamp would erase the evidence. This client is a witness
too. docs/decisions/0211 has the reasons.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from dos_protocol.names import NO_ID
from dos_protocol.store_record import NO_STAMP, DiskStamp

OURSELVES: Final = NO_ID


class ProveStamp(NamedTuple):
    """Ask `member` whether its disk has a stamp that a witness knows."""

    member: bytes
    stamp: DiskStamp


class StoreStamp(NamedTuple):
    """Send the newest stamp of `member` to `witness`, which knew `before`; the disk has that stamp."""

    witness: bytes
    member: bytes
    stamp: DiskStamp
    before: DiskStamp


Step = ProveStamp | StoreStamp


class Witnessing:
    """The connected members of one store, as far as one client knows."""

    def __init__(self) -> None:
        self._newest: dict[bytes, DiskStamp] = {}
        self._stored: dict[bytes, dict[bytes, DiskStamp]] = {OURSELVES: {}}
        self._proved: set[tuple[bytes, DiskStamp]] = set()
        self._present: dict[bytes, None] = {OURSELVES: None}  # a dict: its order is reproducible

    def joined(self, member: bytes, newest: DiskStamp, witnessed: Mapping[bytes, DiskStamp]) -> None:
        self._present[member] = None
        self._stored[member] = dict(witnessed)
        self._is_at(member, newest)
        self._remember(member)

    def left(self, member: bytes) -> None:
        self._present.pop(member, None)

    def proved(self, member: bytes, stamp: DiskStamp, newest: DiskStamp) -> None:
        """Record that the member's disk has the stamp `stamp`, and that `newest` is its newest."""
        self._is_at(member, newest)
        if stamp.number:
            self._proved.add((member, stamp))
        self._remember(member)

    def went_back(self, member: bytes) -> None:
        ours = self._stored[OURSELVES]
        # It is the first stamp that this client saw: the disk that is no copy does not have it.
        if member in ours and ours[member] == self._newest.get(member):
            del ours[member]

    def stored(self, witness: bytes, member: bytes, held: DiskStamp) -> None:
        self._stored.setdefault(witness, {})[member] = held

    def _is_at(self, member: bytes, newest: DiskStamp) -> None:
        if self._newest.get(member) != newest:  # it was restarted, perhaps on another disk
            self._newest[member] = newest
            self._proved = {one for one in self._proved if one[0] != member}

    def _remember(self, member: bytes) -> None:
        """Store the member's newest stamp in this client, once the stamp it knew before is proved."""
        ours, newest = self._stored[OURSELVES], self._newest[member]
        held = ours.get(member)
        if newest.number and (held is None or (member, held) in self._proved):
            ours[member] = newest

    def steps(self, member: bytes | None = None) -> list[Step]:
        """Return the steps to take now, in any order. With `member`, only those that it waits for."""
        return list(dict.fromkeys(self._steps(member)))

    def _steps(self, only: bytes | None) -> Iterator[Step]:
        for member in self._present:
            newest = self._newest.get(member, NO_STAMP)
            for witness in self._present:
                if witness == member:
                    continue
                held = self._stored[witness].get(member, NO_STAMP)
                if held == newest or not newest.number or only not in (None, member, witness):
                    continue
                if held.number and (member, held) not in self._proved:
                    yield ProveStamp(member, held)
                elif witness != OURSELVES:  # this client stores a stamp when it is proved
                    yield StoreStamp(witness, member, newest, held)
