"""An object's life on one server: which turns it may take, and what each request is answered in each of them.

The turns are a table here, and a test lets random lives happen to the real core and the real storage: no
other turn is ever seen, and each of these is. The answers are not written down anywhere: they are asked of
the core when protocol.md is drawn.
"""

import errno
from collections.abc import Callable
from enum import Enum

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from dos_server.core.object_state import ObjectState
from tests.support.core_harness import SERVER_ID, Harness

STORE = b"s" * 16
GOOD, REST = b"good", b" and the rest"
CONTENT = GOOD + REST
LONGER = CONTENT + b", longer"
_MINUTE_MS = 60_000


class Life(Enum):
    """What an object is to its server."""

    ABSENT = "ABSENT"
    SOUND = "SOUND"
    CORRUPT = "CORRUPT"
    POISONED = "POISONED"
    REPAIRING = "REPAIRING"
    REMOVING = "REMOVING"


_NEW_COPY = "REPAIR completed a new copy"
_REMOVAL = "DELETE, or d of version 0"
_FAILED = "a write or sync of it failed"
_KEPT = "the disk failed, the object is unchanged"

TURNS: dict[Life, dict[Life, str]] = {
    Life.ABSENT: {
        Life.SOUND: "its first append is in the file",
        Life.POISONED: "the write of its first append failed",
        Life.REPAIRING: _NEW_COPY,
    },
    Life.SOUND: {
        Life.CORRUPT: "a read or the scrub found damaged bytes",
        Life.POISONED: _FAILED,
        Life.REPAIRING: _NEW_COPY,
        Life.REMOVING: _REMOVAL,
    },
    Life.CORRUPT: {
        Life.POISONED: _FAILED,
        Life.REPAIRING: _NEW_COPY,
        Life.REMOVING: _REMOVAL,
    },
    Life.POISONED: {
        Life.REPAIRING: _NEW_COPY,
    },
    Life.REPAIRING: {
        Life.SOUND: "the new copy is in its place, durably",
        Life.POISONED: "the disk failed, which copy is stored is unknown",
    },
    Life.REMOVING: {
        Life.ABSENT: "removed, durably",
        Life.SOUND: _KEPT,
        Life.CORRUPT: _KEPT,
        Life.POISONED: "the disk failed, whether it still exists is unknown",
    },
}

STARTS: dict[Life, str] = {
    Life.ABSENT: "absent, or its removal had begun",
    Life.SOUND: "found complete at start-up",
    Life.CORRUPT: "found damaged or lost at start-up",
}


def life_of(state: ObjectState | None) -> Life:
    """Of the core's own notes of an object."""
    if state is None:
        return Life.ABSENT
    if state.changing is not None:
        return Life.REPAIRING if state.repairing else Life.REMOVING
    if state.poisoned:
        return Life.POISONED
    if not state.exists:
        return Life.ABSENT
    return Life.SOUND if state.corrupt_from is None else Life.CORRUPT


def diagram() -> str:
    """As protocol.md shows it."""
    lines = [f"    [*] --> {life.name}: {why}" for life, why in STARTS.items()]
    lines += [
        f"    {life.name} --> {after.name}: {why}"
        for life, row in TURNS.items()
        for after, why in row.items()
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


class World(Harness):
    """A server with `dir`, in a store or in none; `writer` holds the claim of the directory."""

    def __init__(self, *, in_store: bool = False) -> None:
        super().__init__()
        self.in_store = in_store
        if in_store:
            record = StoreRecord(STORE, 1, 1, (Member(SERVER_ID, "h:1"),))
            self.ask(self.connect(), m.Configure(encode_store_record(record)))
        self.claim()

    def claim(self) -> None:
        self.writer = self.connect(m.Hello(store_id=STORE, generation=1) if self.in_store else m.Hello())
        self.ask(self.writer, m.ChangeDirectory("dir", claim=True, epoch=1, writer_id=b"w" * 16))

    @property
    def state(self) -> ObjectState | None:
        return self.core._tables.find("dir", "o")

    @property
    def life(self) -> Life:
        return life_of(self.state)

    def append(self, payload: bytes) -> int:
        """At its end, as the core has it."""
        state = self.state
        size, digest = (state.accepted, state.fold.value) if state is not None else (0, 0)
        return self.send(self.writer, m.Append("o", size, digest, payload))

    def rot(self) -> None:
        """Its last bytes are damaged, and a read meets them."""
        state = self.state
        assert state is not None
        self.disk.write(self.disk.open("d/dir/o", create=False), state.file_bytes - 2, [b"\xff\xfe"])
        self.ask(self.writer, m.Get("o", state.synced - 1, 1))

    def repair(self, content: bytes) -> m.RepairChunk:
        """A new copy, whatever the old one is."""
        told = self.state.claimed_size if self.state is not None else (0, 0)
        return m.RepairChunk(
            "o", 0, len(content), prefix_digest(content), *told, overwrite=True, payload=content
        )


# What is answered


def absent(_: World) -> None:
    """Nothing was ever appended."""


def sound(world: World) -> None:
    for part in (GOOD, REST):
        world.append(part)
        world.settle()


def appended(world: World) -> None:
    world.append(GOOD)
    world.settle()
    world.append(REST)


def corrupt(world: World) -> None:
    sound(world)
    world.rot()


def poisoned(world: World) -> None:
    sound(world)
    world.disk.fail("sync", errno.EIO)
    world.append(b"lost")
    world.settle()


def repairing(world: World) -> None:
    sound(world)
    other = world.connect(m.Hello(store_id=STORE, generation=1))
    world.ask(other, m.ChangeDirectory("dir"))
    world.send(other, world.repair(LONGER))
    world.finish()  # the bytes are written; that the copies change places is still to come


def removing(world: World) -> None:
    sound(world)
    world.send(world.writer, m.Delete("o"))


ROWS: list[tuple[str, Life, Callable[[World], None]]] = [
    ("ABSENT", Life.ABSENT, absent),
    ("SOUND", Life.SOUND, sound),
    ("SOUND, bytes not yet synced", Life.SOUND, appended),
    ("CORRUPT", Life.CORRUPT, corrupt),
    ("POISONED", Life.POISONED, poisoned),
    ("REPAIRING", Life.REPAIRING, repairing),
    ("REMOVING", Life.REMOVING, removing),
]

COLUMNS: list[tuple[str, bool, Callable[[World], m.Message]]] = [
    ("APPEND", False, lambda world: _append_at_end(world)),
    ("GET below the damage", False, lambda _: m.Get("o", 0, 4)),
    ("GET at the end, waiting", False, lambda world: m.Get("o", _synced(world), 4, _MINUTE_MS)),
    ("STAT", False, lambda _: m.Stat("o")),
    ("STAT with a digest", False, lambda _: m.Stat("o", 4)),
    ("DELETE", False, lambda _: m.Delete("o")),
    ("REPAIR", True, lambda world: world.repair(LONGER)),
]


def _append_at_end(world: World) -> m.Message:
    state = world.state
    return m.Append("o", state.accepted, state.fold.value, b"!") if state else m.Append("o", 0, 0, b"!")


def _synced(world: World) -> int:
    return world.state.synced if world.state is not None else 0


def answer_in(
    make: Callable[[World], None], life: Life, ask: Callable[[World], m.Message], store: bool
) -> str:
    """What a server answers at once, or when its disk has answered: `yes`, `waits`, or the code."""
    world = World(in_store=life is Life.REPAIRING or store)
    make(world)
    assert world.life is life, (world.life, life)
    before = len(world.pending)
    request = world.send(world.writer, message := ask(world))
    answer = world.answer(world.writer, request)
    if answer is None and len(world.pending) == before and isinstance(message, m.Get):
        return "waits"
    while answer is None and len(world.pending) > before:
        world.finish(before)
        answer = world.answer(world.writer, request)
    return ErrorCode(answer.code).name if isinstance(answer, m.Error) else "yes"


def answers_table() -> str:
    """As protocol.md shows it."""
    lines = [
        "| object | " + " | ".join(name for name, _, _ in COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for title, life, make in ROWS:
        cells = [answer_in(make, life, ask, store) for _, store, ask in COLUMNS]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
