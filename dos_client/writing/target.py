"""One object that a claim brings its members up to: what it is to be, and who has how much of it.

Rules of this file: sizes and who waits for them. No socket, no task; the links report, the writers wait.

An *open* target has a window and grows with its writer. A *sealed* one has a fixed size and digest: a
segment of the chain that was taken over, or one that its writer is done with.
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
    """Tasks that wait until a number has grown far enough."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[int, trio.Event]] = []

    def add(self, size: int) -> trio.Event:
        """An event that is set once `wake` is given at least `size`."""
        event = trio.Event()
        self._waiting.append((size, event))
        return event

    def wake(self, size: int) -> None:
        """Set the events for what is reached."""
        if self._waiting:
            for _, event in (pair for pair in self._waiting if pair[0] <= size):
                event.set()
            self._waiting = [pair for pair in self._waiting if pair[0] > size]

    def wake_all(self) -> None:
        """Set every event: something else happened, they look for themselves."""
        for _, event in self._waiting:
            event.set()
        self._waiting.clear()


class WriteTarget:
    """See the module.

    Invariants: `synced` and `received` are quorum watermarks and never go back; `sizes` holds, per member,
    how much was found or told to be synced there, of content whose digest agreed. `without`: members found
    to have less than the goal; `spoiled`: whose copy is damaged or poisoned. `moved_at`: when `synced` last
    grew, or bytes began to wait. `on_complete` is called when a quorum has everything. `milestones`:
    digests known of what is no longer in memory. `local`: what this machine has of the object besides, as
    far as it can be proved."""

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
        self._quorums = quorums
        self._trimmed_at = 0
        self._counted_size = None if window is None else window.size
        self._counted_synced = 0 if window is None else window.size

    @property
    def size(self) -> int:
        """How far the object is to go, as of now."""
        return self.window.size if self.window is not None else self.goal_size

    @property
    def goal(self) -> ObjectGoal:
        return ObjectGoal(self.size, self.window is None)

    @property
    def base(self) -> int:
        """The first byte in memory; the end of the object when none is."""
        return self.window.base if self.window is not None else self.goal_size

    @property
    def view(self) -> ObjectView:
        """What is known of the object at this moment."""
        return ObjectView(self.goal, self.base, self.digest_at)

    def digest_at(self, size: int) -> int | None:
        """The prefix digest at `size`, as far as it is known here."""
        if self.window is None and size == self.goal_size:
            return self.goal_digest
        found = self.window.digest_at(size) if self.window is not None else None
        return found if found is not None else self.milestones.at(size)

    def seal(self, size: int, digest: int) -> None:
        """From now on exactly this; the memory is given up."""
        self.window = None
        self.goal_size, self.goal_digest = size, digest

    def requorum(self, quorums: Quorums) -> None:
        """Another store record counts. What was told in sessions of the one before does not count in it:
        members tell it again when they are claimed again. (The model of docs/decisions/0010 finds the loss
        without that.)"""
        self._quorums = quorums
        self.sizes.clear()
        self.received_sizes.clear()
        self.without.clear()
        self.spoiled.clear()
        self.unsure.clear()

    def note(self, server_id: bytes, received: int, synced: int) -> None:
        """A member has this much, of agreeing content."""
        self.sizes[server_id] = synced
        self.received_sizes[server_id] = received
        self._recount()

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
        """What the member told of its copy does not count any more."""
        self.sizes.pop(server_id, None)
        self.received_sizes.pop(server_id, None)

    def distrust(self, server_id: bytes) -> None:
        """The member's copy says nothing any more of what it has, or ever had."""
        self.uncount(server_id)
        self.without.discard(server_id)
        self.spoiled.add(server_id)

    def sizes_reach(self, size: int) -> bool:
        """Whether any member is known to have that much."""
        return any(have >= size for have in self.sizes.values())

    def trim(self, keep_bytes: int) -> None:
        """Forget what all members have, and beyond `keep_bytes` what a quorum has."""
        self._trimmed_at = self.synced
        if self.window is None:
            return
        slowest = min((self.sizes.get(one, 0) for one in self._quorums.members), default=0)
        if self.window.chunks_count > window_chunks_max:
            keep_bytes //= 4
        self.window.trim(min(self.synced, max(slowest, self.window.size - keep_bytes)))

    def lag(self, server_id: bytes) -> int:
        """Bytes that the member still lacks."""
        return max(0, self.size - self.sizes.get(server_id, 0))

    @property
    def unsynced(self) -> int:
        """Bytes appended and not yet synced on a quorum."""
        return max(0, self.size - self.synced)

    def count(self, counts: StoreCounters) -> None:
        """Add what was appended and acknowledged since the last time."""
        if self._counted_size is not None:
            size, synced = self.size, min(self.synced, self.size)
            counts.appended_bytes += size - self._counted_size
            counts.acknowledged_bytes += max(0, synced - self._counted_synced)
            self._counted_size, self._counted_synced = size, max(synced, self._counted_synced)

    def lag_s(self, server_id: bytes) -> float:
        """Seconds since the oldest byte that the member lacks was appended, at most; 0 if it lacks none."""
        have = self.sizes.get(server_id, 0)
        return self.times.age(have, trio.current_time()) if have < self.size else 0.0

    def about_to_append(self) -> None:
        """Bytes are to wait from now on, after none did."""
        self.moved_at = trio.current_time()
        self.times.note(self.size, self.moved_at)

    def wake_all(self) -> None:
        """Everyone who waits looks again: the claim ended."""
        self.synced_waiters.wake_all()
        self.received_waiters.wake_all()
