"""The chain against a plain list: random histories of writers that append, roll, snapshot, die, take over
and roll back.

The model is, for every position that was ever handed out, the list of notes that stood before it. Messages
are delivered by hypothesis: to any members, in part, late, from writers that are long dead. Demanded at
every take-over:

    M1  all that was ever acknowledged is there (P-1), unless a rollback was ordered since
    M2  what is there is a state that some writer had, exactly (P-2)
    M3  a reader never saw anything that a later take-over does not have (R10); a chain that is rolled back by
        order may be shown as it was before to one who cannot prove the newer start yet
    M4  the state at any position that was acknowledged, on any line, is restorable and exact (P-6, R12)
    M5  a fenced writer acknowledges nothing (P-4)
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dos_protocol.errors import FencedError
from journal import (
    ORIGIN,
    ChainState,
    ChainWriter,
    Op,
    Position,
    Record,
    inspect_chain,
    read_records,
    take_over,
)
from tests.journal.memory_store import DIRECTORY, MemoryClaim, MemoryStore, PartialStore
from tests.journal.takeovers import inspected

# EVIDENCE-OF: P-1, P-2, P-4, P-6

SUBSETS = ([1, 2], [1, 3], [2, 3], [1, 2, 3])
PADDING = 300  # so that a partial delivery often cuts a note in two


def note(number: int) -> Record:
    return Record(Op.OUTPUT, number, strings=(bytes(number * 7 % PADDING),))


def state_of(records: list[Record]) -> tuple[int, ...]:
    """The fold: notes add up; a snapshot's begin starts anew."""
    notes: list[int] = []
    for record in records:
        if record.op is Op.SNAPSHOT_BEGIN:
            notes.clear()
        elif record.op is Op.OUTPUT:
            notes.append(record.tag)
    return tuple(notes)


class DiedError(Exception):
    """A writer's end, in the middle of something."""


@dataclass
class History:
    """What was done, and what the model says of it."""

    data: st.DataObject
    store: MemoryStore
    pipelined: bool
    at: dict[Position, tuple[int, ...]] = field(default_factory=lambda: {ORIGIN: ()})
    acknowledged: list[Position] = field(default_factory=lambda: [ORIGIN])
    """Positions that were synced on the quorum while their claim held, on any line."""
    must_have: tuple[int, ...] = ()
    """Acknowledged and not rolled back."""
    shown: tuple[int, ...] = ()
    """The most that a reader was shown."""
    rolled_back: bool = False
    claims: list[MemoryClaim] = field(default_factory=list)
    claim: MemoryClaim | None = None
    writer: ChainWriter | None = None
    notes: tuple[int, ...] = ()
    """The current writer's state."""
    created: bool = False
    counter: int = 0
    epoch: int = 0

    def draw(self, strategy: st.SearchStrategy[object]) -> object:
        return self.data.draw(strategy)

    async def append(self) -> None:
        if self.writer is None or (not self.pipelined and self.writer.synced < self.writer.end.size):
            return
        for _ in range(self.data.draw(st.integers(1, 4)) if self.pipelined else 1):
            self.counter += 1
            try:
                position = self.writer.append(note(self.counter))
            except FencedError:
                self.writer = None
                return
            self.notes = (*self.notes, self.counter)
            self.at[position] = self.notes

    async def deliver(self) -> None:
        """Any claim's bytes, living or dead, to one member, perhaps in part."""
        if not self.claims:
            return
        claim = self.data.draw(st.sampled_from(self.claims))
        writers = list(claim.objects.values())
        if writers:
            writer = self.data.draw(st.sampled_from(writers))
            size = self.data.draw(st.one_of(st.none(), st.integers(0, writer.size)))
            claim.deliver(self.data.draw(st.integers(1, 3)), writer.name, size)
        self.acknowledge()

    async def deliver_all(self) -> None:
        if self.claim is not None:
            for member in self.data.draw(st.sampled_from(SUBSETS)):
                self.claim.deliver(member)
        self.acknowledge()

    def acknowledge(self) -> None:
        """What the current writer may now count as done."""
        if self.writer is None or self.claim is None or self.claim.lost is not None:
            return
        done = [p for p in self.at if p.epoch == self.claim.epoch and p.size <= self.writer.synced]
        for position in done:
            if position not in self.acknowledged:
                self.acknowledged.append(position)
        if done:
            best = self.at[max(done, key=lambda position: position.size)]
            self.must_have = max(self.must_have, best, key=len)

    def delivered_everywhere(self, claim: MemoryClaim) -> bool:
        """Deliver all that was appended to all members, and acknowledge it. False: the claim is lost."""
        if claim.lost is not None:
            return False
        claim.held = False
        for member in (1, 2, 3):
            claim.deliver(member)
        self.acknowledge()
        return True

    async def roll(self) -> None:
        if self.writer is None or self.claim is None or not self.delivered_everywhere(self.claim):
            return
        snapshot = [note(number) for number in self.notes] if self.data.draw(st.booleans()) else None
        try:
            await self.writer.roll(snapshot)
            self.at[self.writer.end] = self.notes
            self.acknowledge()
        except FencedError:
            self.writer = None
        self.claim.held = True

    async def die_in_a_snapshot(self) -> None:
        """The writer rolls, and dies before the snapshot's end is anywhere."""
        if self.writer is None or self.claim is None or not self.delivered_everywhere(self.claim):
            return
        copied = self.notes[: self.data.draw(st.integers(0, len(self.notes)))]

        def snapshot() -> Iterator[Record]:
            yield from map(note, copied)
            raise DiedError

        with suppress(FencedError, DiedError):
            await self.writer.roll(snapshot())
        self.claim.held = True
        self.writer = None

    async def crash(self) -> None:
        self.writer = None

    async def take_over(self) -> None:
        await self.begin(None)

    async def roll_back(self) -> None:
        """To any position that was ever acknowledged, on whatever line it lies (R13)."""
        await self.begin(self.data.draw(st.sampled_from(self.acknowledged)))

    async def begin(self, at: Position | None) -> None:
        """A new writer claims some members, reads, and perhaps opens its segment."""
        self.writer = None
        self.epoch += self.data.draw(st.integers(1, 3))
        members = self.data.draw(st.sampled_from(SUBSETS)) if self.created else [1, 2, 3]  # R16
        claim = self.store.claim(self.epoch, members)
        self.claims.append(claim)
        state = await take_over(claim, "J", at=at, generation=1, wait_s=0)
        found = await self.read(claim, state)
        if at is not None:
            assert found == self.at[at], "M4"
        else:
            assert found[: len(self.must_have)] == self.must_have, "M1"
            assert found in self.at.values(), "M2"
            assert self.rolled_back or found[: len(self.shown)] == self.shown, "M3"
        if at is not None:
            self.must_have, self.rolled_back = (), True
        if self.data.draw(st.booleans()):  # it dies here, or while its start is under way
            claim.held = True
            with trio.move_on_after(0):
                await ChainWriter.open(claim, "J", state, 1, pipelined=self.pipelined)
            return
        await self.open(claim, state, found)

    async def open(self, claim: MemoryClaim, state: ChainState, found: tuple[int, ...]) -> None:
        snapshot = [note(number) for number in found] if self.data.draw(st.booleans()) else None
        self.writer = await ChainWriter.open(
            claim, "J", state, 1, snapshot=snapshot, pipelined=self.pipelined
        )
        self.claim, self.notes, self.created = claim, found, True
        self.at[self.writer.end] = found
        claim.held = True
        self.must_have = max(self.must_have, found, key=len)
        self.acknowledge()

    async def inspect(self) -> None:
        reader = PartialStore(self.store, self.data.draw(st.sampled_from(SUBSETS)))
        state = await inspect_chain(reader, DIRECTORY, "J")
        steps = [step async for step in read_records(reader, state, directory=DIRECTORY)]
        seen = state_of([record for _, record in steps])
        assert seen in self.at.values(), "M2"
        if self.rolled_back:
            return
        shorter, longer = sorted((seen, self.shown), key=len)
        assert longer[: len(shorter)] == shorter, "M3: two readers see one line"
        self.shown = longer

    async def glance(self) -> None:
        await inspected(PartialStore(self.store, self.data.draw(st.sampled_from(SUBSETS))))

    async def read(self, claim: MemoryClaim, state: ChainState) -> tuple[int, ...]:
        steps = [step async for step in read_records(claim, state)]
        return state_of([record for _, record in steps])


ACTIONS = (
    *(History.append, History.append, History.deliver, History.deliver, History.deliver_all),
    *(History.roll, History.crash, History.take_over, History.roll_back, History.inspect),
    History.die_in_a_snapshot,
)


@settings(max_examples=3 * settings.default.max_examples)
@given(st.data())
def test_any_history_of_writers_agrees_with_a_plain_list(data: st.DataObject) -> None:
    async def run() -> None:
        history = History(data, MemoryStore(), pipelined=data.draw(st.booleans()))
        await history.begin(None)
        for _ in range(data.draw(st.integers(1, 25))):
            await data.draw(st.sampled_from(ACTIONS))(history)
            await history.glance()
        await history.take_over()
        for position in history.acknowledged:
            history.epoch += 1
            claim = history.store.claim(history.epoch, [1, 2, 3])
            state = await take_over(claim, "J", at=position, generation=1, wait_s=0)
            assert await history.read(claim, state) == history.at[position], "M4"

    trio.run(run)
