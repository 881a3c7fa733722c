"""P-5 of a loss that a person accepted: everything that the survivors of a store have when the command
reports the loss is found afterwards. What only the lost disks had, acknowledged or read, may be gone.

What survivors have is read from their platters by `platters`. A chain on them is read as by a writer that has
claimed all of them, without a request to any server.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dos_client.errors import MissingDataError
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import DosError, FencedError
from dos_protocol.messages import ObjectInfo
from dos_protocol.store_record import Member, StoreRecord, default_ack_quorum
from journal import take_over
from tests.sim.oracles.store import ViolationError, payload_at
from tests.sim.store.clients import CHAIN, numbers_of

if TYPE_CHECKING:
    from tests.sim.history import History
    from tests.sim.store.machine import Machine

ANY_GENERATION = 1 << 40


@dataclass
class Loss:
    """More disks were lost than the store tolerates. `pending`: directories that no writer has taken over
    since; `era`: of the store's records until then; `held`: by directory, the records that the survivors had
    when the command reported the loss; `bytes`: the size of each object then; `broken`: directories whose
    chain names bytes that no survivor has, so that it is refused forever.
    """

    pending: set[str]
    era: int = 0
    held: dict[str, list[int]] = field(default_factory=dict)
    bytes: dict[tuple[str, str], int] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)

    def note(self, history: "History", survivors: "Iterable[Machine]") -> None:
        """Record what is left, when the command reports it."""
        machines = list(survivors)
        for directory, name in history.segments:
            path = f"d/{directory}/{name}"
            sizes = [len(payload_at(one.disk.readable(path), path)) for one in machines]
            self.bytes[directory, name] = max(sizes)
            if not any(one.disk.content(path) for one in machines):
                history.forgotten.add((directory, name))
        for directory in sorted(self.pending):
            found = records_on(directory, machines)
            if found is None:
                self.broken.add(directory)
            else:
                self.held[directory] = found

    def taken_over(self, history: "History", directory: str, found: list[int]) -> None:
        """A writer continues from what is left, which is the history from now on. Raises ViolationError."""
        if directory not in self.pending:
            return
        self.pending.discard(directory)
        line, held = history.line(directory), self.held.get(directory, [])
        if found[: len(held)] != held:
            raise ViolationError("O1", f"of {directory} {len(held)} records were left, not all are found")
        there = set(found)
        lost = [number for number in line.acknowledged if number not in there]
        history.sometimes["loss: acknowledged records are gone" if lost else "loss: nothing is gone"] += 1
        line.acknowledged = [number for number in line.acknowledged if number in there]
        both = zip(found, line.returned, strict=False)
        same = next((at for at, (one, other) in enumerate(both) if one != other), len(found))
        line.returned = line.returned[:same]

    def clamp(self, history: "History") -> None:
        """Reduce the acknowledged sizes to what the survivors had."""
        for key, size in self.bytes.items():
            if key in history.durable:
                history.durable[key] = min(history.durable[key], size)


class _Survivors:
    """A claim that all survivors have granted. `copies`: by identity and name."""

    def __init__(self, copies: Mapping[bytes, Mapping[str, bytes]]) -> None:
        self._copies = copies
        self.epoch, self.writer_id, self.store = 1, bytes(16), self
        self.lost: FencedError | None = None
        self.answers = {
            one: {
                name: ObjectInfo(name, len(data), len(data), prefix_digest(data))
                for name, data in objects.items()
            }
            for one, objects in copies.items()
        }
        members = tuple(Member(one, f"s{number}:9999") for number, one in enumerate(copies))
        self.record = StoreRecord(bytes(16), ANY_GENERATION, default_ack_quorum(len(members)), members)

    async def wait_all(self, timeout_s: float) -> bool:
        return True

    async def read(self, name: str, offset: int, max_bytes: int, member: bytes | None = None) -> bytes:
        found = [
            objects.get(name, b"") for one, objects in self._copies.items() if member is None or one == member
        ]
        return max(found, key=len)[offset : offset + max_bytes]

    async def settle(self, name: str, size: int, digest: int, local: object = None) -> None:
        copies = (objects.get(name, b"") for objects in self._copies.values())
        if not any(len(data) >= size and prefix_digest(data[:size]) == digest for data in copies):
            raise MissingDataError(f"no survivor has {size} bytes of {name}")

    def collect(self, garbage: Callable[[str], bool]) -> None:
        raise AssertionError("no writer continues from this claim")

    def open_object(self, name: str, local: object = None) -> Any:
        raise AssertionError("no writer continues from this claim")


def records_on(directory: str, machines: "Iterable[Machine]") -> list[int] | None:
    """Return the records of a directory's chain on the platters of those machines; None if it names bytes
    that none of them has."""
    folder = f"d/{directory}"
    copies = {
        one.identity: {
            name: payload_at(one.disk.readable(f"{folder}/{name}"), f"{folder}/{name}")
            for name in one.disk.entries(folder)
            if not name.startswith(".") and one.disk.readable(f"{folder}/{name}") is not None
        }
        for one in machines
    }
    claim = _Survivors(copies)

    async def walk() -> list[int]:
        state = await take_over(claim, CHAIN, generation=ANY_GENERATION, wait_s=0.0)
        return await numbers_of(claim, state, None)

    try:
        return _run_now(walk())
    except DosError:
        return None


def _run_now(work: Coroutine[Any, Any, list[int]]) -> list[int]:
    """Run a coroutine that never waits, and return its result."""
    try:
        work.send(None)
    except StopIteration as end:
        found: list[int] = end.value
        return found
    raise AssertionError("the coroutine waits")
