"""The buffer of one prefetched source: pieces by split, between the link thread and the circuit thread.

Only a lock and queues; it reads nothing and decides no order. The link thread adds pieces and waits for room;
the circuit thread takes them and never waits.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from checkpoint import InputPiece
from dataflow import limits
from dataflow.core.event_time import SourceTime


class PrefetchBuffer:
    """The prefetched input of one source in one incarnation.

    woken: called by the link thread when the circuit may have work. roomy: called by the circuit thread when
    there is room again.
    """

    def __init__(
        self, *, woken: Callable[[], None] = lambda: None, roomy: Callable[[], None] = lambda: None
    ) -> None:
        self.counters: Mapping[str, int] = {}
        """What the link thread has reported of the source."""
        self._reported = False
        self._woken = woken
        self._roomy = roomy
        self._lock = threading.Lock()
        self._pieces: dict[str, deque[InputPiece]] = {}
        self._bytes: dict[str, int] = {}
        self._total = 0
        self._count = 0
        self._wanted: dict[str, int] = {}
        """Split -> position: a replay needs all input up to there before it can continue."""
        self._complete = False
        self._known: set[str] | None = None
        """Splits of this worker that may still have input; None: not listed yet."""
        self._caught_up: set[str] = set()
        """Those of them that had nothing more when they were polled last."""
        self._resting: set[str] = set()
        """Those of them of which nothing is expected now: they hold no watermark back."""
        self._beyond: dict[str, int] = {}
        """Split -> bytes that did not fit into the buffer, when they were last measured."""

    # --- the link thread ------------------------------------------------------------------------------------

    def has_room(self, split: str) -> bool:
        """Whether to add more of this split. One piece, and all that a replay needs, is always allowed."""
        with self._lock:
            waiting = self._pieces.get(split)
            if not waiting or waiting[-1].end < self._wanted.get(split, 0):
                return True
            return self._bytes[split] < limits.feed_split_bytes_max and self._total < limits.feed_bytes_max

    def put(self, piece: InputPiece) -> None:
        """Append a piece of a split."""
        with self._lock:
            self._pieces.setdefault(piece.split, deque()).append(piece)
            self._bytes[piece.split] = self._bytes.get(piece.split, 0) + len(piece.data)
            self._total += len(piece.data)
            self._count += 1
        self._woken()

    def known(self, splits: Iterable[str]) -> None:
        """Add listed splits. Call it before any piece of them is added."""
        with self._lock:
            self._known = {*(self._known or ()), *splits}

    def polled(self, split: str, *, caught_up: bool, rests: bool = False) -> None:
        """Note that a split was polled, and whether all its current input is in the buffer.

        rests: nothing is expected of it until it has input again.
        """
        with self._lock:
            news = caught_up and split not in self._caught_up
            (self._caught_up.add if caught_up else self._caught_up.discard)(split)
            if caught_up:
                self._beyond.pop(split, None)
            (self._resting.add if rests else self._resting.discard)(split)
        if news:
            self._woken()

    def measured(self, split: str, beyond: int) -> None:
        """Note how many bytes of a split follow those in the buffer."""
        with self._lock:
            self._beyond[split] = beyond

    def at_end(self, split: str) -> None:
        """Note that all of a split is in the buffer and no more will follow."""
        with self._lock:
            (self._known or set()).discard(split)

    def complete(self) -> None:
        """Note that all splits are at their end."""
        with self._lock:
            self._complete = True
        self._woken()

    def report(self, counters: Mapping[str, int]) -> None:
        """Replace the counters of the source."""
        self.counters, self._reported = counters, True
        self._woken()

    # --- the circuit ----------------------------------------------------------------------------------------

    def take_report(self) -> bool:
        """Return whether the counters were replaced since the last call."""
        reported, self._reported = self._reported, False
        return reported

    def splits(self) -> list[str]:
        """Return the names of the splits with pieces, sorted."""
        with self._lock:
            return sorted(split for split, pieces in self._pieces.items() if pieces)

    @property
    def has_any(self) -> bool:
        """Whether there is something to read."""
        with self._lock:
            return self._count > 0

    @property
    def backlog_bytes(self) -> int | None:
        """What was not taken, as far as it was measured; None before the splits were listed."""
        with self._lock:
            return None if self._known is None else self._total + sum(self._beyond.values())

    @property
    def is_over(self) -> bool:
        """Whether everything was taken and nothing more will follow."""
        with self._lock:
            return self._complete and not self._count

    def time_now(self) -> SourceTime:
        """Return which splits hold the watermark back, including those without any recorded row."""
        with self._lock:
            waiting = {split for split, pieces in self._pieces.items() if pieces}
            known = (self._known or set()) - self._resting
            quiet = (known & self._caught_up) - waiting
            behind = waiting | (known - self._caught_up)
            over = self._complete and not self._count
            return SourceTime(over, self._known is not None, behind=behind, caught_up=quiet)

    def reaches(self, split: str, position: int) -> bool:
        """Whether the buffer has all of a split up to a position.

        If not, it is fetched regardless of room.
        """
        with self._lock:
            waiting = self._pieces.get(split)
            if waiting and waiting[-1].end >= position:
                return True
            self._wanted[split] = position
        self._roomy()
        return False

    def goes_back(self, split: str, *, to: int | None = None, below: int = 0) -> bool:
        """Whether the next piece of a split is of a line of history above 0, and begins at a position, or
        below one.
        """
        with self._lock:
            waiting = self._pieces.get(split)
            if not waiting or not waiting[0].line:
                return False
            begin = waiting[0].begin
            return begin < below if to is None else begin == to

    def take(self, split: str) -> InputPiece | None:
        """Return the next piece of a split, None if there is none currently."""
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
