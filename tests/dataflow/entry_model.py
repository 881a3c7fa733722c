"""Random histories of entry points, producers, partitions, clocks that are off, and readers at several sites.

The records, the rules of time and the combined mark are the real ones. The store is modelled by what it
promises: a chain has one claimant, a claim settles what its former claimant had sent, and what a majority has
stays. `play` raises AssertionError for a history with a wrong result.
"""

import json
import random
from types import SimpleNamespace
from typing import Any

from checkpoint.core.records import inputs as real_entry
from checkpoint.core.records.inputs import (
    EntryOrigins,
    EntrySettings,
    InputPart,
    InputPiece,
    InputSequence,
    OriginMark,
)
from dataflow.core import event_time as real_time
from dataflow.core.event_time import SourceTime, is_time

SECOND = 1_000_000
ENTRIES = 3
READERS = 3
ERROR_MAX = 2 * SECOND
"""Larger than the real limit, so that clocks that are allowed differ by more than marks are apart."""


class Chain:
    """The chain of one origin: what a majority has, and what its claimant has sent."""

    def __init__(self) -> None:
        self.epoch = 0
        self.committed: list[InputPart | OriginMark] = []
        self.sent: list[InputPart | OriginMark] = []


class Reader:
    """One replica of a region: it reads the chains at its own pace."""

    def __init__(self, times: SimpleNamespace) -> None:
        self.marks = times.InputMarks()
        self.folds: dict[str, InputSequence] = {}
        self.at: dict[str, int] = {}
        self.rows: dict[str, list[tuple[int, int]]] = {}
        self.late: list[tuple[str, int]] = []
        self.watermark = -1

    def read(self, origin: str, chain: Chain, count: int) -> None:
        fold = self.folds.setdefault(origin, InputSequence(origin))
        for record in chain.committed[self.at.get(origin, 0) :][:count]:
            at = self.at.get(origin, 0)
            self.at[origin] = at + 1
            for piece in folded(fold, record, at):
                self._take(origin, piece)
        reached = self.marks.of_source("s", SourceTime()).watermark
        if is_time(reached):
            self.watermark = max(self.watermark, reached)

    def _take(self, origin: str, piece: InputPiece) -> None:
        if piece.mark is not None:
            mark = piece.mark
            self.marks.marked("s", origin, mark.mark, origin=mark.origin, version=mark.version)
            return
        for row, time in json.loads(piece.data):
            assert time > self.watermark, f"row {row} of {origin} at {time} is below {self.watermark}"
            self.rows.setdefault(origin, []).append((row, time))
        self.late += [(origin, row) for row, _ in json.loads(piece.late or b"[]")]


def folded(fold: InputSequence, record: InputPart | OriginMark, at: int) -> list[InputPiece]:
    pieces = fold.add(record, at, at + 1)
    assert isinstance(pieces, list)
    return pieces


class Producer:
    """Sends batches of one or two rows. It keeps each until it is acknowledged."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.batches: list[list[tuple[int, int]]] = []
        self.sent = 0
        self.acknowledged = 0
        self.entry: int | None = None


class Served:
    """An origin at the entry point that has claimed its chain."""

    def __init__(self, core: SimpleNamespace, settings: EntrySettings, number: int, chain: Chain) -> None:
        fold = InputSequence("o")
        for at, record in enumerate(chain.committed):
            folded(fold, record, at)
        self.epoch = chain.epoch
        self.time = core.OriginTime(settings, number, fold.newest_mark, fold.last_time)
        self.batch, self.digest, self.recorded = fold.batch, fold.digest, fold.batch


class History:
    """One history. `core`, `times`: the modules, perhaps with a bug."""

    def __init__(self, seed: int, core: SimpleNamespace, times: SimpleNamespace) -> None:
        self.rng = random.Random(seed)
        self.core = core
        self.now = 1_700_000_000 * SECOND
        stamps = self.rng.random() < 0.5
        self.settings = EntrySettings(
            lateness_us=None if stamps else self.rng.choice([0, SECOND]),
            marks_every_us=self.rng.choice([SECOND // 4, SECOND]),
        )
        self.origins = EntryOrigins(settings=self.settings)
        self.chains: dict[str, Chain] = {}
        self.producers: dict[str, Producer] = {}
        self.given: dict[tuple[str, int], int] = {}
        """(Origin, row) -> when it was recorded, by the true clock."""
        self.arrivals = self.rng.choice([0.03, 0.1])
        self.readers = [Reader(times) for _ in range(READERS)]
        self.skew = [self.rng.choice([-1, 0, 1]) * 9 * SECOND // 10 for _ in range(ENTRIES)]
        self.offset = list(self.skew)
        self.wrong = self.rng.randrange(ENTRIES)
        """The entry point whose clock is set wrong at times: E6 needs a majority of right ones."""
        self.checkpoint = [False] * ENTRIES
        self.serving: list[dict[str, Served]] = [{} for _ in range(ENTRIES)]
        self.clocks = [self._check(one) for one in range(ENTRIES)]
        self.watch = [core.AttendedOrigins() for _ in range(ENTRIES)]

    def _check(self, entry: int) -> Any:
        return self.core.ClockCheck([str(one) for one in range(ENTRIES) if one != entry], ERROR_MAX)

    def clock(self, entry: int) -> int:
        return self.now + self.offset[entry]

    def good(self, entry: int) -> bool:
        return bool(self.clocks[entry].is_good(self.clock(entry), self.now / SECOND))

    # --- entry points ---------------------------------------------------------------------------------------

    def claim(self, entry: int, origin: str) -> Served:
        self.origins = self.origins.with_origin(origin)
        chain = self.chains.setdefault(origin, Chain())
        settled = self.rng.randint(0, len(chain.sent))
        chain.committed += chain.sent[:settled]
        chain.sent = []
        chain.epoch += 1
        served = Served(self.core, self.settings, self.origins.number(origin), chain)
        self.serving[entry][origin] = served
        self.mark(entry, origin, restated=True)
        return served

    def holds(self, entry: int, origin: str) -> bool:
        return self.serving[entry][origin].epoch == self.chains[origin].epoch

    def mark(self, entry: int, origin: str, *, restated: bool = False) -> None:
        served = self.serving[entry][origin]
        if not self.good(entry) or not self.holds(entry, origin):
            return
        if not served.time.begun:
            marks = {self.origins.number(name): self.newest(name) for name in self.chains}
            known = {number: mark for number, mark in marks.items() if mark is not None}
            floor = self.core.floor_of_new_origin(served.time.number, known)
            if floor is None or self.checkpoint[entry]:
                return
            served.time.begin(floor)
            restated = True
        version = served.time.version if self.checkpoint[entry] else self.origins.version
        mark = served.time.next_mark(self.clock(entry), version=version, restated=restated)
        if mark is not None:
            assert mark.mark <= max(self.now + 3 * SECOND, self.highest()), "a mark in the future"
            state = {"batch": served.batch, "before": served.digest}
            self.chains[origin].sent.append(mark._replace(**state))

    def newest(self, origin: str) -> OriginMark | None:
        newest = reversed(self.chains[origin].committed)
        return next((one for one in newest if isinstance(one, OriginMark)), None)

    def highest(self) -> int:
        return max((mark.mark for name in self.chains if (mark := self.newest(name))), default=0)

    def tick(self, entry: int) -> None:
        now_s = self.now / SECOND
        for peer in range(ENTRIES):
            if peer != entry and not self.checkpoint[peer] and not self.checkpoint[entry]:
                took = self.rng.uniform(0.001, 0.1)
                answered = self.clock(peer) - int(took / 2 * SECOND)
                self.clocks[entry].measured(
                    str(peer), sent_s=now_s - took, received_s=now_s, peer_us=answered
                )
        for origin in self.serving[entry]:
            self.mark(entry, origin)
        if self.checkpoint[entry] or not self.good(entry):
            return
        for origin in self.origins.origins:
            if origin in self.serving[entry]:
                self.watch[entry].forget(origin)
            else:
                self.watch[entry].saw(origin, len(self.chains[origin].committed), now_s)
        for origin in self.watch[entry].unattended(now_s):
            self.watch[entry].forget(origin)
            self.claim(entry, origin)

    def sync(self, entry: int) -> None:
        """What was sent reaches a majority, unless this entry point is cut off or fenced."""
        for origin in list(self.serving[entry]):
            if not self.holds(entry, origin):
                if not self.checkpoint[entry]:
                    self.lose(entry, origin)
                continue
            if self.checkpoint[entry]:
                continue
            chain = self.chains[origin]
            chain.committed += chain.sent
            chain.sent = []
            served = self.serving[entry][origin]
            served.recorded = served.batch
            producer = self.producers.get(origin)
            if producer is not None and producer.entry == entry:
                producer.acknowledged = max(producer.acknowledged, served.recorded)

    def lose(self, entry: int, origin: str) -> None:
        del self.serving[entry][origin]
        producer = self.producers[origin]
        if producer.entry == entry:
            producer.entry = None

    # --- producers ------------------------------------------------------------------------------------------

    def connect(self, producer: Producer, entry: int) -> None:
        if self.checkpoint[entry] or not self.good(entry):
            return
        served = self.claim(entry, producer.name)
        assert served.batch >= producer.acknowledged, "an acknowledged batch is lost"
        producer.entry = entry
        producer.sent = served.batch
        producer.acknowledged = max(producer.acknowledged, served.recorded)

    def send(self, producer: Producer) -> None:
        entry = producer.entry
        if entry is None:
            return
        served = self.serving[entry].get(producer.name)
        if served is None or not self.good(entry):
            producer.entry = None
            return
        if not served.time.begun or not self.holds(entry, producer.name):
            return
        if producer.sent == len(producer.batches):
            row = sum(map(len, producer.batches))
            times = [self.old_time() for _ in range(self.rng.randint(1, 2))]
            producer.batches.append([(row + at, time) for at, time in enumerate(times)])
        self.append(served, producer, entry)

    def old_time(self) -> int:
        """A time that a source gives, at a mark or not."""
        time = self.now - self.rng.randrange(3 * SECOND)
        return time if self.rng.random() < 0.5 else time // SECOND * SECOND - 1

    def append(self, served: Served, producer: Producer, entry: int) -> None:
        rows = producer.batches[producer.sent]
        producer.sent += 1
        time = 0
        late: list[tuple[int, int]] = []
        if self.settings.lateness_us is None:
            time = served.time.stamp(self.clock(entry))
            rows = [(row, time) for row, _ in rows]
            bound = max(self.now + 3 * SECOND, self.highest() + SECOND)
            assert time <= bound, "a clock that is ahead gave a time"
        else:
            late = [(row, at) for row, at in rows if served.time.is_late(at)]
            rows = [(row, at) for row, at in rows if not served.time.is_late(at)]
        served.batch += 1
        parts = [rows[:1], rows[1:]] if self.rng.random() < 0.5 else [rows]
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            data, held = json.dumps(part).encode(), json.dumps(late).encode() if last and late else b""
            record = InputPart(served.batch, index, last, len(part), served.digest, 0, data, b"", time, held)
            self.chains[producer.name].sent.append(record)
            served.digest = record.digest
        for row, _ in [*rows, *late]:
            self.given.setdefault((producer.name, row), self.now)

    # --- the history ----------------------------------------------------------------------------------------

    def act(self) -> None:
        rng = self.rng
        self.now += rng.randrange(SECOND // 2)
        for entry in range(ENTRIES):
            if rng.random() < 0.5:
                self.tick(entry)
            if rng.random() < 0.6:
                self.sync(entry)
            if self.checkpoint[entry] and rng.random() < 0.08:
                self.checkpoint[entry] = False
        for _ in range(rng.randint(0, 3)):
            self.produce(rng.randrange(ENTRIES))
        self.read_some()
        kind, entry = rng.random(), rng.randrange(ENTRIES)
        if kind < 0.03 and not any(self.checkpoint):
            self.checkpoint[entry] = True
        elif kind < 0.06:
            self.crash(entry)
        elif kind < 0.10:
            wrong, right = self.wrong, self.skew[self.wrong]
            self.offset[wrong] = (
                right if self.offset[wrong] != right else right + rng.choice([-9, 9]) * SECOND
            )

    def produce(self, entry: int) -> None:
        rng = self.rng
        if rng.random() < self.arrivals and len(self.producers) < 5:
            name = f"o{len(self.producers)}"
            self.producers[name] = Producer(name)
            self.connect(self.producers[name], entry)
        elif self.producers:
            producer = rng.choice(list(self.producers.values()))
            if producer.entry is None or rng.random() < 0.02:
                self.connect(producer, entry)
            self.send(producer)

    def crash(self, entry: int) -> None:
        for origin in list(self.serving[entry]):
            self.lose(entry, origin)
        self.clocks[entry] = self._check(entry)
        self.watch[entry] = self.core.AttendedOrigins()

    def read_some(self) -> None:
        """The first reader is near, the others are slower."""
        for reader, most in zip(self.readers, (50, 6, 2), strict=True):
            for origin, chain in self.chains.items():
                if self.rng.random() < 0.6:
                    reader.read(origin, chain, self.rng.randint(most // 2, most))

    def settle(self) -> None:
        """All is repaired, but for one entry point that is gone: every producer is served, and marked."""
        gone = self.rng.randrange(ENTRIES)
        self.checkpoint, self.offset = [one == gone for one in range(ENTRIES)], list(self.skew)
        self.crash(gone)
        left = [one for one in range(ENTRIES) if one != gone]
        for _ in range(60):
            self.now += SECOND // 4
            for one in left:
                self.tick(one)
                self.sync(one)
        self.read_all()
        if self.producers:
            behind = self.now - (self.settings.lateness_us or 0) - self.readers[0].watermark
            assert behind < 3 * SECOND, f"the input mark is {behind} behind"
        for producer in self.producers.values():
            for _ in range(40):
                if producer.entry is None:
                    self.connect(producer, self.rng.choice(left))
                elif producer.sent < len(producer.batches):
                    self.send(producer)
                self.now += SECOND // 4
                for one in left:
                    self.tick(one)
                    self.sync(one)
        self.read_all()

    def read_all(self) -> None:
        for reader in self.readers:
            for origin, chain in self.chains.items():
                reader.read(origin, chain, 1_000_000)

    def check(self) -> None:
        first = self.readers[0]
        for reader in self.readers[1:]:
            assert reader.rows == first.rows, "readers differ"
            assert sorted(reader.late) == sorted(first.late), "late rows differ"
        late = {origin: [row for name, row in first.late if name == origin] for origin in self.producers}
        for name, producer in self.producers.items():
            assert producer.acknowledged == len(producer.batches), f"{name} is not served"
            sent = [row for batch in producer.batches for row, _ in batch]
            found = [row for row, _ in first.rows.get(name, [])]
            assert sorted(found + late[name]) == sent, "lost or doubled"
            assert found == sorted(found), "in another order"
            times = [time for _, time in first.rows.get(name, [])]
            if self.settings.lateness_us is None:
                assert times == sorted(times), "times go back"


def play(
    seed: int, *, core: dict[str, Any] | None = None, times: dict[str, Any] | None = None, actions: int = 100
) -> None:
    """Play one history."""
    history = History(
        seed, SimpleNamespace(**(core or vars(real_entry))), SimpleNamespace(**(times or vars(real_time)))
    )
    for _ in range(actions):
        history.act()
    history.settle()
    history.check()
