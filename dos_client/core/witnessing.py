"""Whether the disk of each member is as new as other members were told: what has to be asked and told for it.
Pure.

For every two members A and P that are there, P must have been told A's newest stamp before both count: else
A's disk could be replaced by an older copy, and P would not notice. Before P is told a newer stamp, A must
have shown that it has the one that P knows: else the disk that went back would wipe out the proof of it.

This client is a witness, too: it remembers the newest stamp that each member had. What stamps are:
`dos_protocol.stamps`; what these rules rest on: docs/decisions/0211.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from dos_protocol.names import NO_ID
from dos_protocol.stamps import NO_STAMP, DiskStamp

OURSELVES: Final = NO_ID


class ProveStamp(NamedTuple):
    """Ask `member` whether its disk has a stamp that somebody was told of."""

    member: bytes
    stamp: DiskStamp


class TellStamp(NamedTuple):
    """Tell `witness` the newest stamp of `member`, whose disk has the one that it was told `before`."""

    witness: bytes
    member: bytes
    stamp: DiskStamp
    before: DiskStamp


Step = ProveStamp | TellStamp


class Witnessing:
    """The members of one store that are there, as far as one client knows."""

    def __init__(self) -> None:
        self._newest: dict[bytes, DiskStamp] = {}
        self._told: dict[bytes, dict[bytes, DiskStamp]] = {OURSELVES: {}}
        self._proved: set[tuple[bytes, DiskStamp]] = set()
        self._present: dict[bytes, None] = {OURSELVES: None}  # in an order that repeats

    def met(self, member: bytes, newest: DiskStamp, witnessed: Mapping[bytes, DiskStamp]) -> None:
        """A session with a member began, with this in its WELCOME."""
        self._present[member] = None
        self._told[member] = dict(witnessed)
        self._is_at(member, newest)
        self._remember(member)

    def left(self, member: bytes) -> None:
        """The last session with it ended."""
        self._present.pop(member, None)

    def proved(self, member: bytes, stamp: DiskStamp, newest: DiskStamp) -> None:
        """Its disk has that stamp, and this one is its newest."""
        self._is_at(member, newest)
        if stamp.number:
            self._proved.add((member, stamp))
        self._remember(member)

    def told(self, witness: bytes, member: bytes, held: DiskStamp) -> None:
        """The witness keeps that stamp of the member."""
        self._told.setdefault(witness, {})[member] = held

    def _is_at(self, member: bytes, newest: DiskStamp) -> None:
        if self._newest.get(member) != newest:  # it started again: perhaps on another disk
            self._newest[member] = newest
            self._proved = {one for one in self._proved if one[0] != member}

    def _remember(self, member: bytes) -> None:
        """This client is told at once, once the stamp that it knew is proved."""
        ours, newest = self._told[OURSELVES], self._newest[member]
        held = ours.get(member)
        if newest.number and (held is None or (member, held) in self._proved):
            ours[member] = newest

    def steps(self, member: bytes | None = None) -> list[Step]:
        """What is to be done now, in any order; of one member, what it waits for."""
        return list(dict.fromkeys(self._steps(member)))

    def _steps(self, only: bytes | None) -> Iterator[Step]:
        for member in self._present:
            newest = self._newest.get(member, NO_STAMP)
            for witness in self._present:
                if witness == member:
                    continue
                held = self._told[witness].get(member, NO_STAMP)
                if held == newest or not newest.number or only not in (None, member, witness):
                    continue
                if held.number and (member, held) not in self._proved:
                    yield ProveStamp(member, held)
                else:
                    yield TellStamp(witness, member, newest, held)
