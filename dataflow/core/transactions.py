"""The transactions of a two-phase sink on one worker: how they are named, which are to be shown at a
commit, which are left over after a failure. Pure.

Rules of this file: names and numbers. What a transaction holds, and where, is the sink's.

Theory. Rows since the last cut are *staged* in a transaction where no reader looks. When the worker votes
for a cut, the transaction is durable, and its name is in the cut; when the cut is committed, it is shown.
Three things go wrong in sinks that do less:

- A worker may prepare cut n+1 before it hears that n is committed, and die then. If n+1 was committed as
  well, only what n+1 holds is found again: so a cut names *all* transactions that were not shown when it
  was prepared.
- A number of a cut comes again when its first try was not committed. So names are made of the incarnation
  of the region and a count, not of the cut: a name never comes again, and a commit that is repeated is
  known by it.
- A worker that is left over from an earlier incarnation may come to its clean-up late. So an incarnation
  removes nothing that a later one has staged.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

_NAME = re.compile(r"([0-9a-f]{16})-w(\d{4,})-i(\d{10})-t(\d{10})")


class TransactionName(NamedTuple):
    """Names of one owner and worker sort, as text too, in the order in which they are shown."""

    owner: int
    """A digest of region, store and sink: several may share a place."""
    worker: int
    incarnation: int
    number: int

    def __str__(self) -> str:
        return f"{self.owner:016x}-w{self.worker:04d}-i{self.incarnation:010d}-t{self.number:010d}"


def parse_name(text: str) -> TransactionName | None:
    """None: it is no name of a transaction."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    owner, worker, incarnation, number = found.groups()
    return TransactionName(int(owner, 16), int(worker), int(incarnation), int(number))


class Transactions:
    """Of one worker in one incarnation.

    Invariant: each transaction is open (takes rows), or pending (in a cut, not shown), or forgotten.
    """

    def __init__(self, owner: int, worker: int, incarnation: int) -> None:
        self._next = TransactionName(owner, worker, incarnation, 1)
        self._open: TransactionName | None = None
        self._pending: dict[TransactionName, int] = {}
        """Transaction -> the cut that holds it; 0: the one we went back to."""
        self._unprepared: list[TransactionName] = []

    def stand(self, pending: Iterable[str]) -> None:
        """Go back to a cut that held these. Raises ValueError: not names of this owner and worker."""
        self._open, self._unprepared, self._pending = None, [], {}
        for text in pending:
            name = parse_name(text)
            if name is None or (name.owner, name.worker) != (self._next.owner, self._next.worker):
                raise ValueError(f"{text!r} is no transaction of {self._next}'s sink and worker")
            self._pending[name] = 0

    def left_over(self, staged: Iterable[str]) -> list[str]:
        """Of what was found staged: what no cut will name any more, and nobody else is writing."""
        found = sorted(name for name in map(parse_name, staged) if name is not None)
        me = self._next
        return [
            str(name)
            for name in found
            if (name.owner, name.worker) == (me.owner, me.worker)
            and name.incarnation <= me.incarnation
            and name not in self._pending
            and name != self._open
        ]

    def for_rows(self) -> str:
        """The transaction that rows belong to which come now."""
        if self._open is None:
            self._open = self._next
            self._next = self._next._replace(number=self._next.number + 1)
        return str(self._open)

    def prepare(self, cut: int) -> list[str]:
        """Rows that come from now on belong to later cuts; what this cut names, oldest first."""
        if self._open is not None:
            self._pending[self._open] = cut
            self._unprepared.append(self._open)
            self._open = None
        return [str(name) for name in self._pending]

    def to_make_durable(self) -> list[str]:
        """What the next vote promises, and is not durable yet."""
        return [str(name) for name in self._unprepared]

    def durable(self, text: str) -> None:
        """It will be found after a crash."""
        self._unprepared = [name for name in self._unprepared if str(name) != text]

    def to_show(self, cut: int) -> list[str]:
        """What is covered by this committed cut, oldest first."""
        return [str(name) for name, prepared in self._pending.items() if prepared <= cut]

    def shown(self, text: str) -> None:
        """It needs no cut any more."""
        self._pending = {name: cut for name, cut in self._pending.items() if str(name) != text}
