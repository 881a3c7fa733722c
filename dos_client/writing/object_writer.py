"""One object that a claim writes or settles: bytes in, quorum sizes out.

An *open* target has a window and grows with its writer. A *sealed* target has a fixed size and digest. The
writer's machine may have a *local copy* of the object, an unreliable cache: no byte of it is used before the
digest of its range matches a known one.
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from dos_client.arguments import check_number
from dos_client.core.quorum import Quorums
from dos_client.core.replica import ObjectGoal, ObjectView
from dos_client.core.status import StoreCounters
from dos_client.core.window import AppendTimes, Chunk, Milestones, SendWindow, milestone_range
from dos_client.limits import (
    chunk_bytes_max,
    journal_lag_bytes_max,
    local_read_timeout_s,
    milestone_bytes,
    window_bytes_max,
    window_chunks_max,
)
from dos_monitoring import Attribute, SpanRecord, Tracer, appends_traced, tracer_of_environment
from dos_protocol.digests import Buffer, PrefixDigest
from dos_protocol.errors import ClosedError, DosError
from dos_protocol.limits import u64_max


class WriterClaim(Protocol):
    directory: str

    @property
    def ended(self) -> DosError | None: ...

    def check(self) -> None: ...

    def addresses(self) -> Mapping[bytes, str]: ...

    def wake_links(self) -> None: ...

    def seal(self, target: "WriteTarget") -> None: ...


class ObjectWriter:
    """Appends to one object of a claim. Made by `Claim.open_object`, used from the claim's trio thread. An
    append is durable when `synced` has reached the size that `append` returned. No other sign means that it
    is durable.
    """

    def __init__(self, claim: WriterClaim, target: "WriteTarget") -> None:
        assert target.window is not None
        self._claim = claim
        self._target = target
        self._window: SendWindow = target.window
        self._yielded_at = 0
        self._tracing = tracing_of(target, claim.directory, claim.addresses)

    @property
    def name(self) -> str:
        return self._target.name

    @property
    def size(self) -> int:
        """Bytes appended here, whether acknowledged or not."""
        return self._window.size

    @property
    def synced(self) -> int:
        """All bytes before this offset are on stable storage on a quorum (P-1, P-5)."""
        return self._target.synced

    @property
    def received(self) -> int:
        """All bytes before this offset are on a quorum. A take-over may lose what is not durable."""
        return self._target.received

    @property
    def digest(self) -> int:
        return self._window.digest

    def append(self, data: Buffer) -> int:
        """Append bytes and return the new size. Never waits; use `wait_room` for backpressure. Raises
        FencedError after the claim is lost, ClosedError after `seal` or the claim's end.
        """
        if self._claim.ended is not None:
            self._claim.check()
        target, window = self._target, self._window
        if target.window is None or target.on_complete is not None:
            raise ClosedError(f"{self.name} is sealed")
        if target.synced == window.size:
            target.about_to_append()
        size = window.append(data)
        if self._tracing is not None:
            self._tracing.appended(size)
        self._claim.wake_links()
        return size

    async def wait_synced(self, size: int) -> None:
        """Wait until `synced` is at least `size`, without limit while there is no quorum. Raises FencedError,
        ClosedError, LocalProtocolError. If the wait is interrupted, the bytes are kept and still sent.
        """
        self._check_appended(size)
        while self._target.synced < size:
            self._claim.check()
            await self._target.synced_waiters.wait(size)

    async def wait_received(self, size: int) -> None:
        """Wait until `received` is at least `size`. Raises as `wait_synced`."""
        self._check_appended(size)
        while self._target.received < size:
            self._claim.check()
            await self._target.received_waiters.wait(size)

    def _check_appended(self, size: int) -> None:
        """Reject a wait for bytes that were never appended, because it could never end. A size below 0 counts
        as reached.
        """
        if self._claim.ended is None:
            check_number(size, "size", least=-u64_max, most=self.size)

    async def wait_room(self) -> None:
        """Wait until fewer than `journal_lag_bytes_max` bytes are not synced (P-9). Call it in every loop
        that appends.
        """
        size = self._window.size
        if size - self._target.synced >= journal_lag_bytes_max:
            await self.wait_synced(size - journal_lag_bytes_max + 1)
            self._yielded_at = size
        elif size - self._yielded_at >= chunk_bytes_max:
            await trio.lowlevel.checkpoint()  # let the links send
            self._yielded_at = size
        if self._claim.ended is not None:
            self._claim.check()

    def seal(self) -> None:
        """Promise that nothing more is appended. The memory is freed once a quorum has everything."""
        self._claim.seal(self._target)


_TRIM_STEP_BYTES = 1 << 20


class Waiters:
    """Tasks, each of which waits for a size."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[trio.lowlevel.Task, int] = {}

    async def wait(self, size: int) -> None:
        """Wait until `wake` is called with at least `size`, or `wake_all`."""
        task = trio.lowlevel.current_task()
        self._waiting[task] = size

        def cancelled(_: object) -> trio.lowlevel.Abort:
            del self._waiting[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(cancelled)

    def wake(self, size: float) -> None:
        for task in [task for task, wanted in self._waiting.items() if wanted <= size]:
            del self._waiting[task]
            trio.lowlevel.reschedule(task)

    def wake_all(self) -> None:
        self.wake(math.inf)


class WriteTarget:
    """One object of a claim and what its members have of it.

    Invariants: `synced` and `received` are quorum sizes and never decrease. `sizes`: per member, the synced
    size of content whose digest agreed. `without`: members found to have less than the goal. `spoiled`: whose
    copy is damaged. `milestones`: known digests of bytes that are no longer in memory. `local`: this
    machine's copy.
    """

    def __init__(
        self,
        name: str,
        tag: int,
        quorums: Quorums,
        window: SendWindow | None = None,
        local: "LocalCopy | None" = None,
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
        return self.window.size if self.window is not None else self.goal_size

    @property
    def goal(self) -> ObjectGoal:
        return ObjectGoal(self.size, self.window is None)

    @property
    def base(self) -> int:
        return self.window.base if self.window is not None else self.goal_size

    @property
    def view(self) -> ObjectView:
        return ObjectView(self.goal, self.base, self.digest_at)

    def digest_at(self, size: int) -> int | None:
        if self.window is None and size == self.goal_size:
            return self.goal_digest
        in_window = self.window.digest_at(size) if self.window is not None else None
        return in_window if in_window is not None else self.milestones.at(size)

    def seal(self, size: int, digest: int) -> None:
        self.window = None
        self.goal_size, self.goal_digest = size, digest

    def requorum(self, quorums: Quorums) -> None:
        self._quorums = quorums
        # Sizes that were reported in sessions of the previous record do not count in the new one: a member
        # may have left with them. Members report them again when they are claimed again. Without this,
        # acknowledged data is lost, as the model of docs/decisions/0010 finds.
        self.sizes.clear()
        self.received_sizes.clear()
        self.without.clear()
        self.spoiled.clear()
        self.unsure.clear()

    def note(self, server_id: bytes, received: int, synced: int) -> None:
        self.sizes[server_id] = synced
        self.received_sizes[server_id] = received
        if received > self.received or synced > self.synced:  # otherwise no quorum has more than before
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
        return max(0, self.size - self.sizes.get(server_id, 0))

    @property
    def unsynced(self) -> int:
        return max(0, self.size - self.synced)

    def count(self, counts: StoreCounters) -> None:
        if self._counted_size is not None:
            size, synced = self.size, min(self.synced, self.size)
            counts.appended_bytes += size - self._counted_size
            counts.acknowledged_bytes += max(0, synced - self._counted_synced)
            self._counted_size, self._counted_synced = size, max(synced, self._counted_synced)

    def lag_s(self, server_id: bytes) -> float:
        """Return at least the age, in seconds, of the oldest byte that the member lacks; 0 if none."""
        have = self.sizes.get(server_id, 0)
        return self.times.age(have, trio.current_time()) if have < self.size else 0.0

    def about_to_append(self) -> None:
        self.moved_at = trio.current_time()
        self.times.note(self.size, self.moved_at)

    def wake_all(self) -> None:
        self.synced_waiters.wake_all()
        self.received_waiters.wake_all()


log: Final = logging.getLogger("dos.client")


class LocalCopy(Protocol):
    """The bytes of one object on this machine, if there are any. Called from threads; never raises."""

    def size(self) -> int: ...

    def read(self, offset: int, max_bytes: int) -> bytes | None: ...


class LocalSource:
    def __init__(self, target: "WriteTarget", copy: LocalCopy | None) -> None:
        self._target = target
        self._copy = copy
        self._proving = trio.Lock()

    def size(self) -> int:
        return self._copy.size() if self._copy is not None else 0

    async def proved(self, offset: int) -> Chunk | None:
        """Return the verified bytes from `offset` to the next milestone or to where the memory begins; None
        if not available.
        """
        begin, end = milestone_range(offset, self._target.base)
        before, after = self._target.milestones.at(begin), self._target.digest_at(end)
        if self._copy is None or end < offset:
            return None
        if before is None or after is None:
            if not await self._prove_all():
                return None
            before, after = self._target.milestones.at(begin), self._target.digest_at(end)
            if before is None or after is None:
                return None
        data = await self._read(begin, end - begin)
        if data is None:
            return None
        fold = PrefixDigest(begin, before)
        fold.update(memoryview(data)[: offset - begin])
        digest = fold.value
        fold.update(memoryview(data)[offset - begin :])
        if fold.value != after:
            self._distrust(f"its content between {begin} and {end} is different")
            return None
        return Chunk(offset, digest, data[offset - begin :] if offset > begin else data)

    async def _prove_all(self) -> bool:
        """Fold the whole copy once, if only its end's digest is known; the others become milestones."""
        async with self._proving:
            target = self._target
            if len(target.milestones):
                return True
            if target.window is not None or self._copy is None:
                return False
            milestones, fold = Milestones(), PrefixDigest()
            while fold.size < target.goal_size:
                milestones.note(fold.size, fold.value)
                data = await self._read(fold.size, min(milestone_bytes, target.goal_size - fold.size))
                if data is None:
                    return False
                fold.update(data)
            if fold.value != target.goal_digest:
                self._distrust(f"its first {target.goal_size} bytes are different")
                return False
            target.milestones = milestones
            return True

    async def _read(self, offset: int, count: int) -> bytes | None:
        """Read exactly `count` bytes. Returns None and stops using the copy if that fails."""
        if self._copy is None or not count:
            return b"" if not count else None
        data: bytes | None = None
        with trio.move_on_after(local_read_timeout_s):
            data = await trio.to_thread.run_sync(self._copy.read, offset, count, abandon_on_cancel=True)
        if data is None or len(data) != count:
            self._distrust(f"it cannot be read from byte {offset} on")
            return None
        return data

    def _distrust(self, why: str) -> None:
        if self._copy is not None:
            log.info("the local copy of %s is not used: %s", self._target.name, why)
        self._copy = None


class AppendTracing:
    def __init__(
        self,
        tracer: Tracer,
        every: int,
        target: WriteTarget,
        directory: str,
        members: Callable[[], Mapping[bytes, str]],
    ) -> None:
        self._tracer = tracer
        self._every = every
        self._target = target
        self._directory = directory
        self._members = members
        self._appends = 0
        self._times: AckTimes | None = None
        self._begun_s = 0.0

    def appended(self, size: int) -> None:
        self._appends += 1
        if self._appends % self._every:
            return
        self._end(trio.current_time() - self._begun_s)
        self._times, self._begun_s = AckTimes(size), trio.current_time()
        self._target.traced = self._noted

    def _noted(self, server_id: bytes, received: int, synced: int) -> None:
        times = self._times
        assert times is not None
        at_s = trio.current_time() - self._begun_s
        times.note(server_id, received, synced, at_s)
        times.note_quorum(self._target.synced, at_s)
        if times.quorum_s is not None and times.synced_s.keys() >= self._members().keys():
            self._end(at_s)

    def _end(self, end_s: float) -> None:
        times, self._times, self._target.traced = self._times, None, None
        if times is not None:
            self._tracer.emit(times.span(self._directory, self._target.name, self._members(), end_s))


def tracing_of(
    target: WriteTarget, directory: str, members: Callable[[], Mapping[bytes, str]]
) -> AppendTracing | None:
    """Return the tracing that the environment asks for, or None. An error that prevents it is logged, not
    raised.
    """
    try:
        every = appends_traced()
        tracer = tracer_of_environment() if every else None
    except (DosError, ValueError, OSError) as error:
        log.warning("appends to %s are not traced: %s", target.name, error)
        return None
    return None if tracer is None else AppendTracing(tracer, every, target, directory, members)


@dataclass(slots=True)
class AckTimes:
    """When what happened to one append, in seconds since it was made. By the id of each member."""

    size: int
    received_s: dict[bytes, float] = field(default_factory=dict)
    synced_s: dict[bytes, float] = field(default_factory=dict)
    quorum_s: float | None = None

    def note(self, server_id: bytes, received: int, synced: int, at_s: float) -> None:
        if received >= self.size:
            self.received_s.setdefault(server_id, at_s)
        if synced >= self.size:
            self.synced_s.setdefault(server_id, at_s)

    def note_quorum(self, synced: int, at_s: float) -> None:
        if synced >= self.size and self.quorum_s is None:
            self.quorum_s = at_s

    def span(self, directory: str, name: str, members: Mapping[bytes, str], end_s: float) -> SpanRecord:
        acks = tuple(self._ack(server_id, address, end_s) for server_id, address in members.items())
        quorum_s = end_s if self.quorum_s is None else self.quorum_s
        quorum = SpanRecord("dos.append.quorum", 0.0, quorum_s, error="no quorum" * (self.quorum_s is None))
        attributes: dict[str, Attribute] = {
            "dos.directory": directory,
            "dos.object": name,
            "dos.size": self.size,
        }
        return SpanRecord("dos.append", 0.0, end_s, attributes, (*acks, quorum))

    def _ack(self, server_id: bytes, address: str, end_s: float) -> SpanRecord:
        attributes: dict[str, Attribute] = {"dos.member": address}
        if server_id in self.received_s:
            attributes["dos.received_s"] = self.received_s[server_id]
        synced_s = self.synced_s.get(server_id)
        error = "" if synced_s is not None else "it has not synced until the end of this trace"
        return SpanRecord("dos.append.member", 0.0, synced_s or end_s, attributes, error=error)
