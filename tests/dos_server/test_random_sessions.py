"""Random sessions over few objects, with threads that end in any order: every request is answered once and
whole, every byte read is of an object that had that name in that directory, and in the end nothing is owed.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from tests.support.core_harness import SERVER_ID, Harness

DIRECTORIES, NAMES = ("left", "right"), ("a", "b")
MINUTE_MS = 60_000
STORE = b"s" * 16


@dataclass
class PendingRequest:
    """A request on its way: where its session was then, and what it said."""

    session: int
    directory: str
    message: m.Message


@dataclass
class RandomSessions:
    """`contents`: per directory and name, the content of each object, or copy of one, that was ever there or
    on its way. In a store copies are also repaired."""

    rng: random.Random
    in_store: bool
    server: Harness = field(default_factory=Harness)
    directories: dict[int, str] = field(default_factory=dict)
    pending: dict[int, PendingRequest] = field(default_factory=dict)
    contents: dict[tuple[str, str], list[bytes]] = field(default_factory=dict)
    epochs: Counter[str] = field(default_factory=Counter)
    read_bytes: int = 0

    def __post_init__(self) -> None:
        if self.in_store:
            record = StoreRecord(STORE, 1, 1, (Member(SERVER_ID, "h:1"),))
            self.server.ask(self.server.connect(), m.Configure(encode_store_record(record)))

    def content(self, directory: str, name: str) -> bytes:
        """As the core has accepted it."""
        state = self.server.core._tables.find(directory, name)
        if state is None:
            return b""
        known = (state.accepted, state.fold.value)
        contents = self.contents.get((directory, name), [b""])
        return next(one for one in reversed(contents) if (len(one), prefix_digest(one)) == known)

    def connect(self) -> None:
        hello = m.Hello(store_id=STORE, generation=1) if self.in_store else m.Hello()
        session = self.server.connect(hello)
        self.directories[session] = ""
        self.move(session)

    def move(self, session: int) -> None:
        """To a directory, perhaps as its writer; what was asked before is still on its way."""
        directory = self.rng.choice(DIRECTORIES)
        claims = self.rng.random() < 0.6
        epoch = self.epochs[directory] + self.rng.choice([0, 1])
        request = m.ChangeDirectory(
            directory, claim=claims, epoch=epoch, writer_id=bytes([session % 256]) * 16
        )
        number = self.server.send(session, request)
        while self.server.answer(session, number) is None:
            self.server.finish(self.rng.randrange(len(self.server.pending)))
        answer = self.server.answer(session, number)
        if isinstance(answer, m.DirectoryOpened):
            self.directories[session] = directory
            self.epochs[directory] = max(self.epochs[directory], answer.epoch)
        else:
            assert answer.code == ErrorCode.FENCED, answer

    def ask(self, session: int) -> None:
        directory, name = self.directories[session], self.rng.choice(NAMES)
        if not directory:
            self.move(session)
            return
        content = self.content(directory, name)
        wait = self.rng.choice([0, 0, 50, MINUTE_MS])
        message: m.Message = self.rng.choice(
            [
                m.Append(
                    name, len(content), prefix_digest(content), self.rng.randbytes(self.rng.randrange(9))
                ),
                m.Append(name, len(content), prefix_digest(content), self.rng.randbytes(40)),
                m.Append(name, 0, 0, self.rng.randbytes(5)),
                m.Get(name, self.rng.randrange(len(content) + 2), 100, wait),
                m.Get(name, len(content), 100, wait),
                m.Stat(name, self.rng.choice([m.NO_DIGEST, 0, len(content)])),
                m.List("", "", 10),
                self.change(directory, name, content),
            ]
        )
        before = self.accepted(directory, name)
        number = self.server.send(session, message)
        self.pending[number] = PendingRequest(session, directory, message)
        contents = self.contents.setdefault((directory, name), [b""])
        if isinstance(message, m.RepairChunk):
            contents.append(bytes(message.payload))
        elif isinstance(message, m.Append) and self.accepted(directory, name) != before:
            contents.append(content + bytes(message.payload))

    def change(self, directory: str, name: str, content: bytes) -> m.Message:
        if not self.in_store or self.rng.random() < 0.3:
            return m.Delete(name)
        return self.repair(directory, name, content)

    def repair(self, directory: str, name: str, content: bytes) -> m.RepairChunk:
        """A longer copy, or another one."""
        state = self.server.core._tables.find(directory, name)
        told = state.claimed_size if state is not None else (0, 0)
        new = self.rng.choice([content, b""]) + self.rng.randbytes(30)
        return m.RepairChunk(name, 0, len(new), prefix_digest(new), *told, overwrite=True, payload=new)

    def accepted(self, directory: str, name: str) -> int | None:
        state = self.server.core._tables.find(directory, name)
        return state.accepted if state is not None else None

    def check(self) -> None:
        """Every answer so far."""
        for session, heard in self.server.heard.items():
            told = Counter(number for number, _ in heard if number)
            assert max(told.values(), default=1) == 1, f"session {session} was answered twice: {heard}"
            for number, answer in heard:
                if number in self.pending:
                    self.check_answer(self.pending.pop(number), answer)

    def check_answer(self, request: PendingRequest, answer: m.Message) -> None:
        message = request.message
        contents = self.contents.get((request.directory, getattr(message, "name", "")), [])
        match answer:
            case m.Data(name, offset, synced, payload):
                assert isinstance(message, m.Get)
                assert (name, offset) == (message.name, message.offset)
                end = offset + len(payload)
                assert end <= synced
                assert any(one[offset:end] == payload and len(one) >= end for one in contents), (
                    request,
                    answer,
                )
                self.read_bytes += len(payload)
            case m.StatResult(info, at, digest) if at != m.NO_DIGEST:
                assert any(prefix_digest(one[:at]) == digest and len(one) >= at for one in contents), request
                assert info.synced <= info.received
            case m.Deleted(name):
                assert isinstance(message, m.Delete)
                assert name == message.name
            case m.RepairAck(name, size, done):
                assert isinstance(message, m.RepairChunk)
                assert (name, size, done) == (message.name, message.goal_size, True)
            case m.Error():
                assert answer.code != ErrorCode.CORRUPT, answer
                assert answer.code != ErrorCode.POISONED, answer

    def end(self) -> None:
        """Everything ends; then nothing is owed to anybody."""
        self.server.settle()
        self.server.tick(61)
        self.server.settle()
        self.check()
        owed = [one for one in self.pending.values() if not isinstance(one.message, m.Append)]
        assert not [one for one in owed if one.session not in self.server.closed], owed
        tables = self.server.core._tables
        for session in tables.sessions.values():
            assert (session.pending, session.unsynced_bytes, session.unsynced_appends) == (0, 0, 0)
        assert not tables.waiting
        assert not tables.unacknowledged
        assert not self.server.core.wants_tick()


def run_sessions(seed: int, *, in_store: bool) -> RandomSessions:
    run = RandomSessions(random.Random(seed), in_store)
    rng, server = run.rng, run.server
    for _ in range(3):
        run.connect()
    for _ in range(150):
        session = rng.choice(list(run.directories))
        chance = rng.random()
        if chance < 0.55:
            run.ask(session)
        elif chance < 0.62:
            run.move(session)
        elif chance < 0.68:
            server.tick(0.06)
        elif chance < 0.70:
            run.connect()
            del run.directories[session]
            server.end(session) if rng.random() < 0.5 else server.half_close(session)
        elif server.pending:
            server.finish(rng.randrange(len(server.pending)))
        run.check()
    run.end()
    return run


def test_random_sessions_are_answered_once_and_with_bytes_of_the_object_they_asked_for() -> None:
    # EVIDENCE-OF: P-2
    runs = [run_sessions(seed, in_store=in_store) for seed in range(40) for in_store in (False, True)]
    assert sum(run.read_bytes for run in runs) > 10_000, "that is, they do read"
    objects = sum(len(contents) for run in runs for contents in run.contents.values())
    assert objects > 400, "and objects come and go"
