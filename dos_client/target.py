"""One object that a claim brings its members up to: what it is to be, and who has how much of it.

Rules of this file: sizes and who waits for them. No socket, no task; the links report, the writers wait.

An *open* target has a window and grows with its writer. A *sealed* one has a fixed size and digest: a
segment of the chain that was taken over, or one that its writer is done with.
"""

from collections.abc import Callable

import trio

from dos_client.core.quorum import Quorums
from dos_client.core.replica import Goal
from dos_client.core.window import Window
from dos_client.limits import window_bytes_max, window_chunks_max

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


class Target:
    """See the module.

    Invariants: `synced` and `received` are quorum watermarks and never go back; `sizes` holds, per member,
    how much was found or told to be synced there, of content whose digest agreed. `without`: members found
    to have less than the goal. `moved_at`: when `synced` last grew, or bytes began to wait. `on_complete`
    is called when a quorum has everything."""

    def __init__(self, name: str, tag: int, quorums: Quorums, window: Window | None = None) -> None:
        self.name = name
        self.tag = tag
        self.window = window
        self.goal_size = 0
        self.goal_digest = 0
        self.sizes: dict[bytes, int] = {}
        self.received_sizes: dict[bytes, int] = {}
        self.without: set[bytes] = set()
        self.unsure: set[bytes] = set()
        self.synced = 0
        self.received = 0
        self.synced_waiters = Waiters()
        self.received_waiters = Waiters()
        self.moved_at = trio.current_time()
        self.on_complete: Callable[[Target], None] | None = None
        self._quorums = quorums
        self._trimmed_at = 0

    @property
    def size(self) -> int:
        """How far the object is to go, as of now."""
        return self.window.size if self.window is not None else self.goal_size

    @property
    def goal(self) -> Goal:
        return Goal(self.size, self.window is None)

    def digest_at(self, size: int) -> int | None:
        """The prefix digest at `size`, as far as it is known here."""
        if self.window is not None:
            return self.window.digest_at(size)
        return self.goal_digest if size == self.goal_size else None

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
            self.synced_waiters.wake(synced)
            if self.on_complete is not None and synced >= self.size:
                self.on_complete(self)
                return
            if synced - self._trimmed_at >= _TRIM_STEP_BYTES:
                self.trim(window_bytes_max)

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

    def wake_all(self) -> None:
        """Everyone who waits looks again: the claim ended."""
        self.synced_waiters.wake_all()
        self.received_waiters.wake_all()
