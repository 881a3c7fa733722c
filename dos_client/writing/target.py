"""One object that a claim brings its members up to: its intended content, and how much each member has.

Only sizes and their waiters; no sockets, no tasks. The links report sizes, the writers wait for them.

An *open* target has a window and grows with its writer. A *sealed* target has a fixed size and digest: it is
a segment of the chain that was taken over, or its writer has finished.
"""

from collections.abc import Callable

import trio

from dos_client.core.append_times import AppendTimes
from dos_client.core.milestones import Milestones
from dos_client.core.quorum import Quorums
from dos_client.core.replica import ObjectGoal, ObjectView
from dos_client.core.window import SendWindow
from dos_client.limits import window_bytes_max, window_chunks_max
from dos_client.status.counters import StoreCounters
from dos_client.writing.local_copy import LocalCopy, LocalSource

_TRIM_STEP_BYTES = 1 << 20


class Waiters:
    """Tasks that wait until a size is reached."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[int, trio.Event]] = []

    def add(self, size: int) -> trio.Event:
        """Return an event that is set once `wake` is called with at least `size`."""
        event = trio.Event()
        self._waiting.append((size, event))
        return event

    def wake(self, size: int) -> None:
        """Set the events of all sizes up to `size`."""
        if self._waiting:
            for _, event in (pair for pair in self._waiting if pair[0] <= size):
                event.set()
            self._waiting = [pair for pair in self._waiting if pair[0] > size]

    def wake_all(self) -> None:
        """Set every event. The tasks check again why they were woken."""
        for _, event in self._waiting:
            event.set()
        self._waiting.clear()


class WriteTarget:
    """One object of a claim and what its members have of it.

    Invariants:

    - `synced` and `received` are quorum sizes and never decrease.
    - `sizes`: per member, the synced size of content whose digest agreed.
    - `without`: members found to have less than the goal.
    - `spoiled`: members whose copy is damaged or poisoned.
    - `moved_at`: when `synced` last grew, or bytes began to wait.
    - `on_complete`: called when a quorum has everything.
    - `milestones`: known digests of bytes that are no longer in memory.
    - `local`: this machine's other copy of the object, as far as it can be verified.
    """

    def __init__(
        self,
        name: str,
        tag: int,
        quorums: Quorums,
        window: SendWindow | None = None,
        local: LocalCopy | None = None,
    ) -> None:
        self.name = name
        self.tag = tag
        self.window = window
        self.milestones = window.milestones if window is not None else Milestones()
        self.local = LocalSource(self, local)
        self.times = AppendTimes(trio.current_time())
        self.goal_size = 0
        self.goal_digest = 0
        self.sizes: dict[bytes, int] = {}
        self.received_sizes: dict[bytes, int] = {}
        self.without: set[bytes] = set()
        self.spoiled: set[bytes] = set()
        self.unsure: set[bytes] = set()
        self.synced = 0
        self.received = 0
        self.synced_waiters = Waiters()
        self.received_waiters = Waiters()
        self.moved_at = trio.current_time()
        self.on_complete: Callable[[WriteTarget], None] | None = None
        self.traced: Callable[[bytes, int, int], None] | None = None
        """Called with each report of a member while an append is traced."""
        self._quorums = quorums
        self._trimmed_at = 0
        self._counted_size = None if window is None else window.size
        self._counted_synced = 0 if window is None else window.size

    @property
    def size(self) -> int:
        """The intended size of the object at this moment."""
        return self.window.size if self.window is not None else self.goal_size

    @property
    def goal(self) -> ObjectGoal:
        return ObjectGoal(self.size, self.window is None)

    @property
    def base(self) -> int:
        """The offset of the first byte in memory; the end of the object if none is."""
        return self.window.base if self.window is not None else self.goal_size

    @property
    def view(self) -> ObjectView:
        """What is known of the object at this moment."""
        return ObjectView(self.goal, self.base, self.digest_at)

    def digest_at(self, size: int) -> int | None:
        """Return the prefix digest at `size`, or None if it is not known here."""
        if self.window is None and size == self.goal_size:
            return self.goal_digest
        in_window = self.window.digest_at(size) if self.window is not None else None
        return in_window if in_window is not None else self.milestones.at(size)

    def seal(self, size: int, digest: int) -> None:
        """Fix size and digest, and free the memory."""
        self.window = None
        self.goal_size, self.goal_digest = size, digest

    def requorum(self, quorums: Quorums) -> None:
        """Use the quorums of another store record.

        Sizes reported in sessions of the previous record do not count in the new one. Members report them
        again when they are claimed again. Without this, data is lost: the model of docs/decisions/0010 finds
        it.
        """
        self._quorums = quorums
        self.sizes.clear()
        self.received_sizes.clear()
        self.without.clear()
        self.spoiled.clear()
        self.unsure.clear()

    def note(self, server_id: bytes, received: int, synced: int) -> None:
        """Record that a member has this much of agreeing content."""
        self.sizes[server_id] = synced
        self.received_sizes[server_id] = received
        self._recount()
        if self.traced is not None:
            self.traced(server_id, received, synced)

    def _recount(self) -> None:
        synced = self._quorums.watermark(self.sizes)
        received = self._quorums.watermark(self.received_sizes)
        if received > self.received:
            self.received = received
            self.received_waiters.wake(received)
        if synced > self.synced:
            self.synced = synced
            self.moved_at = trio.current_time()
            self.times.note(self.size, self.moved_at)
            self.synced_waiters.wake(synced)
            if self.on_complete is not None and synced >= self.size:
                self.on_complete(self)
                return
            if synced - self._trimmed_at >= _TRIM_STEP_BYTES:
                self.trim(window_bytes_max)

    def uncount(self, server_id: bytes) -> None:
        """Stop counting what the member reported of its copy."""
        self.sizes.pop(server_id, None)
        self.received_sizes.pop(server_id, None)

    def distrust(self, server_id: bytes) -> None:
        """Stop counting the member's copy, also as evidence of what it lacks or ever had."""
        self.uncount(server_id)
        self.without.discard(server_id)
        self.spoiled.add(server_id)

    def trim(self, keep_bytes: int) -> None:
        """Drop from memory what all members have, and beyond `keep_bytes` what a quorum has."""
        self._trimmed_at = self.synced
        if self.window is None:
            return
        slowest = min((self.sizes.get(one, 0) for one in self._quorums.members), default=0)
        if self.window.chunks_count > window_chunks_max:
            keep_bytes //= 4
        self.window.trim(min(self.synced, max(slowest, self.window.size - keep_bytes)))

    def lag(self, server_id: bytes) -> int:
        """Return the number of bytes that the member still lacks."""
        return max(0, self.size - self.sizes.get(server_id, 0))

    @property
    def unsynced(self) -> int:
        """Bytes appended and not yet synced on a quorum."""
        return max(0, self.size - self.synced)

    def count(self, counts: StoreCounters) -> None:
        """Add what was appended and acknowledged since the last call."""
        if self._counted_size is not None:
            size, synced = self.size, min(self.synced, self.size)
            counts.appended_bytes += size - self._counted_size
            counts.acknowledged_bytes += max(0, synced - self._counted_synced)
            self._counted_size, self._counted_synced = size, max(synced, self._counted_synced)

    def lag_s(self, server_id: bytes) -> float:
        """Return an upper bound, in seconds, for the age of the oldest byte that the member lacks; 0 if it
        lacks none.
        """
        have = self.sizes.get(server_id, 0)
        return self.times.age(have, trio.current_time()) if have < self.size else 0.0

    def about_to_append(self) -> None:
        """Record that bytes begin to wait, after none did."""
        self.moved_at = trio.current_time()
        self.times.note(self.size, self.moved_at)

    def wake_all(self) -> None:
        """Wake all waiters, because the claim ended."""
        self.synced_waiters.wake_all()
        self.received_waiters.wake_all()
