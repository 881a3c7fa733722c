"""The transactions of a two-phase sink on one worker: names, when each is published, which are left over.
Pure.

Rows since the last checkpoint are *staged* in a transaction that no reader sees. The vote contains its name;
it is published when the checkpoint is committed.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

_NAME = re.compile(r"([0-9a-f]{16})-w(\d{4,})-i(\d{10})-t(\d{10})")


class TransactionName(NamedTuple):
    """The name of a transaction. Names of one owner and worker sort in publishing order, also as text."""

    owner: int
    """A digest of region, store and sink, because several may share one target."""
    worker: int
    incarnation: int
    number: int

    def __str__(self) -> str:
        return f"{writer_name(self.owner, self.worker)}-i{self.incarnation:010d}-t{self.number:010d}"


def writer_name(owner: int, worker: int) -> str:
    """Return the beginning of the names of a worker's transactions."""
    return f"{owner:016x}-w{worker:04d}"


def parse_name(text: str) -> TransactionName | None:
    """Return the parsed name, None if the text is no transaction name."""
    matched = _NAME.fullmatch(text)
    if matched is None:
        return None
    owner, worker, incarnation, number = matched.groups()
    return TransactionName(int(owner, 16), int(worker), int(incarnation), int(number))


class Transactions:
    """The transactions of one worker in one incarnation. Each is open (takes rows), pending (in a checkpoint,
    not published) or forgotten.
    """

    # Three failures decide the design. (1) A worker may prepare checkpoint n+1 before it learns that n is
    # committed, and crash: if n+1 was committed as well, only its transactions are found again, so a
    # checkpoint names ALL that were not published. (2) The number of a checkpoint is used again after a
    # failed attempt, so names consist of the incarnation and a count, and a repeated commit is recognized by
    # its name. (3) A worker left over from an earlier incarnation may clean up late, so an incarnation
    # removes nothing that a later one has staged.
    def __init__(self, owner: int, worker: int, incarnation: int) -> None:
        self._next = TransactionName(owner, worker, incarnation, 1)
        self._open: TransactionName | None = None
        self._pending: dict[TransactionName, int] = {}
        """Transaction -> the checkpoint that holds it; 0: the restored one."""
        self._unprepared: list[TransactionName] = []
        self.newest = ""
        """The newest transaction that the last checkpoint covers, "" if it covers none."""

    def restore(self, pending: Iterable[str], newest: str) -> None:
        """Restore a checkpoint with these names; newest: its `newest`. Raises ValueError for another owner's
        names.
        """
        self._open, self._unprepared = None, []
        self._pending = {self._mine(text): 0 for text in pending}
        self.newest = str(self._mine(newest)) if newest else newest

    def _mine(self, text: str) -> TransactionName:
        name = parse_name(text)
        if name is None or (name.owner, name.worker) != (self._next.owner, self._next.worker):
            raise ValueError(f"{text!r} is no transaction of the sink and worker of {self._next}")
        return name

    def to_take_back(self, published: Iterable[str]) -> list[str]:
        """Return those of `published` that were published after the restored checkpoint, newest first."""
        # None of a later incarnation: this worker is then the one that is left over.
        newest, current = self.newest, self._next
        names = sorted((name for name in map(parse_name, published) if name is not None), reverse=True)
        return [
            str(name)
            for name in names
            if (name.owner, name.worker) == (current.owner, current.worker)
            and newest < str(name)
            and name.incarnation <= current.incarnation
        ]

    def left_over(self, staged: Iterable[str]) -> list[str]:
        """Return those of `staged` that no checkpoint will name any more and no later incarnation writes."""
        names = sorted(name for name in map(parse_name, staged) if name is not None)
        current = self._next
        return [
            str(name)
            for name in names
            if (name.owner, name.worker) == (current.owner, current.worker)
            and name.incarnation <= current.incarnation
            and name not in self._pending
            and name != self._open
        ]

    def for_rows(self) -> str:
        if self._open is None:
            self._open = self._next
            self._next = self._next._replace(number=self._next.number + 1)
        return str(self._open)

    def prepare(self, checkpoint: int) -> list[str]:
        """Close the open transaction; return all names for this checkpoint, oldest first."""
        if self._open is not None:
            self._pending[self._open] = checkpoint
            self._unprepared.append(self._open)
            self.newest, self._open = str(self._open), None
        return [str(name) for name in self._pending]

    def to_make_durable(self) -> list[str]:
        """Return the transactions that the next vote promises and that are not durable yet."""
        return [str(name) for name in self._unprepared]

    def durable(self, text: str) -> None:
        """Note that the transaction will survive a crash."""
        self._unprepared = [name for name in self._unprepared if str(name) != text]

    def to_publish(self, checkpoint: int) -> list[str]:
        """Return the transactions that this committed checkpoint covers, oldest first."""
        return [str(name) for name, prepared in self._pending.items() if prepared <= checkpoint]

    def published(self, text: str) -> None:
        """Forget a transaction: it is published, so later checkpoints need not name it."""
        self._pending = {name: number for name, number in self._pending.items() if str(name) != text}
