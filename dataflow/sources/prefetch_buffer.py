"""What is read ahead of a source that lies in the store: pieces, by split, between the link thread and the
circuit.

Rules of this file: a lock and queues; it reads nothing and decides no order. The link thread puts pieces in
and waits for room; the circuit takes them out, and never waits.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable

from checkpoint import InputPiece
from dataflow import limits
from dataflow.core.event_time import SourceTime


class PrefetchBuffer:
    """One source of one incarnation. woken: called (by the link thread) when there may be something to do
    for the circuit; roomy: called (by the circuit) when there is room again.
    """

    def __init__(
        self, *, woken: Callable[[], None] = lambda: None, roomy: Callable[[], None] = lambda: None
    ) -> None:
        self._woken = woken
        self._roomy = roomy
        self._lock = threading.Lock()
        self._pieces: dict[str, deque[InputPiece]] = {}
        self._bytes: dict[str, int] = {}
        self._total = 0
        self._count = 0
        self._wanted: dict[str, int] = {}
        """Split -> position: a replay cannot go on before all up to there is here."""
        self._complete = False
        self._known: set[str] | None = None
        """Splits of this worker that are not known to be at their end; None: they were not listed yet."""
        self._caught_up: set[str] = set()
        """Those of them of which nothing more was there when they were asked last."""

    # --- the link thread ------------------------------------------------------------------------------------

    def has_room(self, split: str) -> bool:
        """Whether more of this split may be put in. One piece may always be there, and what a replay
        wants.
        """
        with self._lock:
            waiting = self._pieces.get(split)
            if not waiting or waiting[-1].end < self._wanted.get(split, 0):
                return True
            return self._bytes[split] < limits.feed_split_bytes_max and self._total < limits.feed_bytes_max

    def put(self, piece: InputPiece) -> None:
        """Add a piece behind those of its split."""
        with self._lock:
            self._pieces.setdefault(piece.split, deque()).append(piece)
            self._bytes[piece.split] = self._bytes.get(piece.split, 0) + len(piece.data)
            self._total += len(piece.data)
            self._count += 1
        self._woken()

    def known(self, splits: Iterable[str]) -> None:
        """The splits were listed, and these are new. Before anything of them is put in."""
        with self._lock:
            self._known = {*(self._known or ()), *splits}

    def polled(self, split: str, *, caught_up: bool) -> None:
        """A split was asked for more: whether all that is there is put in."""
        with self._lock:
            (self._caught_up.add if caught_up else self._caught_up.discard)(split)

    def at_end(self, split: str) -> None:
        """All of a split is put in, and no more will come."""
        with self._lock:
            (self._known or set()).discard(split)

    def complete(self) -> None:
        """Nothing more will come: all splits are at their end."""
        with self._lock:
            self._complete = True
        self._woken()

    # --- the circuit ----------------------------------------------------------------------------------------

    def splits(self) -> list[str]:
        """Those that have something, in the order of their names."""
        with self._lock:
            return sorted(split for split, pieces in self._pieces.items() if pieces)

    @property
    def has_any(self) -> bool:
        """Whether there is something to read."""
        with self._lock:
            return self._count > 0

    @property
    def is_over(self) -> bool:
        """Whether everything was taken, and nothing more will come."""
        with self._lock:
            return self._complete and not self._count

    def time_now(self) -> SourceTime:
        """Which splits hold event time back: also those of which nothing was recorded yet."""
        with self._lock:
            waiting = {split for split, pieces in self._pieces.items() if pieces}
            known = self._known or set()
            quiet = dict.fromkeys((known & self._caught_up) - waiting, 0.0)
            behind = waiting | (known - self._caught_up)
            over = self._complete and not self._count
            return SourceTime(over, self._known is not None, behind=behind, caught_up=quiet)

    def reaches(self, split: str, position: int) -> bool:
        """Whether all of a split up to a position is here. If not, it is fetched without regard to room."""
        with self._lock:
            waiting = self._pieces.get(split)
            if waiting and waiting[-1].end >= position:
                return True
            self._wanted[split] = position
        self._roomy()
        return False

    def take(self, split: str) -> InputPiece | None:
        """The next piece of a split, None if there is none at the moment."""
        with self._lock:
            waiting = self._pieces.get(split)
            if not waiting:
                return None
            piece = waiting.popleft()
            self._bytes[split] -= len(piece.data)
            self._total -= len(piece.data)
            self._count -= 1
        self._roomy()
        return piece
