"""A gateway dies at every append and at every answer of a history that has every operation; the next one
takes over, and the client repeats what Hadoop's client repeats: requests without a body, until their answer.

An append that is the last one reaches no member, one, or all; the next gateway claims the one, or the others.
What must hold after each answer, and at the end: what was answered is there, and nothing else.
"""

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import pytest
import trio

from dos_gateway import serving
from dos_gateway.core import space
from dos_gateway.core.hadoop import HadoopError, parts_of
from dos_gateway.serving import ServedTree
from tests.journal.memory_store import MemoryClaim, MemoryObject, MemoryStore
from tests.shells.trio_run import run_deterministic

DIRECTORY: Final = "t.fs"
UUID: Final = "11111111-2222-3333-4444-555555555555"
ENDS: Final = ((0, (1, 2)), (1, (1, 2)), (1, (2, 3)), (3, (2, 3)))
"""How many members the last append of a gateway reaches, and which ones the next gateway claims."""
Operation = tuple[str, ...]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "clock", trio.current_time)
    for name, size in {"segment_bytes": 900, "inline_bytes_max": 50, "piece_bytes": 100}.items():
        monkeypatch.setattr(serving, name, size)
    monkeypatch.setattr(space, "slack_bytes", 800)


def there() -> None:
    """The client waits for its answer."""


@dataclass
class Fate:
    """When the gateway dies: at which append and how many members that reaches, or before which answer."""

    append: int = -1
    reach: int = 0
    answer: int = -1
    next_members: tuple[int, ...] = (1, 2)
    appends: int = 0
    answers: int = 0
    dies: Callable[[], None] = lambda: None


class MortalClaim(MemoryClaim):
    """A claim whose gateway dies. What it appended last reaches only some members."""

    fate: Fate

    def open_object(self, name: str, local: object = None) -> MemoryObject:
        self.objects[name] = MortalObject(self, name, self.fate)
        return self.objects[name]


class MortalObject(MemoryObject):
    def __init__(self, claim: MortalClaim, name: str, fate: Fate) -> None:
        super().__init__(claim, name)
        self._fate = fate

    def append(self, data: bytes) -> int:
        fate, claim = self._fate, self._claim
        if claim.held:
            return super().append(data)  # it is dead, and nothing of it arrives
        fate.appends += 1
        if fate.appends - 1 != fate.append:
            return super().append(data)
        claim.held = True
        size = super().append(data)
        for member in range(1, fate.reach + 1):
            claim.deliver(member)
        fate.dies()
        return size


class Lives:
    """A client, and one gateway after the other. files: what is there, as far as answers say; a body whose
    gateway died leaves what was there before, or the new file.
    """

    def __init__(self, fate: Fate, script: list[Operation]) -> None:
        self.fate, self.script = fate, script
        self.store = MemoryStore()
        self.files: dict[str, set[bytes | None]] = {}
        self.folders: set[str] = set()
        self.epoch = 0
        self.claim: MortalClaim | None = None
        self.served: ServedTree
        self.scopes: list[trio.CancelScope] = []
        self.dead = False
        fate.dies = self.die

    def die(self) -> None:
        self.dead = True
        for scope in self.scopes:
            scope.cancel()

    @contextmanager
    def mortal(self) -> Iterator[None]:
        """What ends with the gateway."""
        with trio.CancelScope() as scope:
            self.scopes.append(scope)
            yield

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            await self.take_over(nursery, (1, 2, 3))
            for operation in self.script:
                await self.perform(nursery, operation)
                if operation[0] == "put":
                    await self.alive(nursery, pause)  # for rolls, copies and releases
            await self.check(nursery)
            self.copied_bytes = self.served.copied_bytes
            self.die()
            await self.take_over(nursery, (1, 2, 3))
            await self.check(nursery)
            nursery.cancel_scope.cancel()

    async def take_over(self, nursery: trio.Nursery, members: tuple[int, ...]) -> None:
        before = self.claim
        while True:
            self.epoch, self.dead, self.scopes = self.epoch + 1, False, []
            claim = MortalClaim(self.store, DIRECTORY, self.epoch, bytes([self.epoch]) * 16)
            claim.fate = self.fate
            for member in members:
                claim.join(self.store.servers[member - 1])
            with self.mortal():
                self.served = await ServedTree.open(claim, 1, served_at="", name="t", max_bytes=None)  # type: ignore[arg-type]
            if not self.dead:
                break
            # Only what has never existed needs all members.
            members = self.fate.next_members if self.epoch > 1 else (1, 2, 3)
        self.claim = claim
        if before is not None:
            before.held = True
            for member in (1, 2, 3):
                before.deliver(member)  # it was cut off, not dead: nothing of it is taken any more
        self.served._kept.clear()
        nursery.start_soon(self.serve, self.served)

    async def serve(self, served: ServedTree) -> None:
        with self.mortal(), suppress(BaseExceptionGroup):
            await served.run()

    async def alive(self, nursery: trio.Nursery, call: Callable[[], Awaitable[Any]]) -> tuple[bool, Any]:
        """Return whether the gateway lived until the answer, and the answer."""
        answer: Any = None
        with self.mortal():
            try:
                answer = await call()
            except HadoopError as error:
                answer = error.java.rpartition(".")[2]
        if self.dead:
            await self.take_over(nursery, self.fate.next_members)
            return False, None
        return True, answer

    async def ask(
        self, nursery: trio.Nursery, call: Callable[[], Awaitable[Any]], *, repeats: bool = True
    ) -> tuple[bool, Any]:
        """Return whether there was an answer, and it."""
        while True:
            lived, answer = await self.alive(nursery, call)
            if lived:
                self.fate.answers += 1
                if self.fate.answers - 1 != self.fate.answer:
                    return True, answer
                self.die()
                await self.take_over(nursery, self.fate.next_members)
            if not repeats:
                return False, None

    # --- operations -----------------------------------------------------------------------------------------

    async def perform(self, nursery: trio.Nursery, operation: Operation) -> None:
        op, path, *more = operation
        await getattr(self, f"_{op}")(nursery, path, *more)

    async def _folder(self, nursery: trio.Nursery, path: str) -> None:
        _, answer = await self.ask(nursery, lambda: self.served.make_folder(parts_of(path), there))
        assert answer is None
        self.folders.add(path)

    async def _put(self, nursery: trio.Nursery, path: str, size: str) -> None:
        data = random.Random(path + size).randbytes(int(size))
        answered = False
        while not answered:  # its client does not repeat a body; a query that is started again puts it anew
            answered, answer = await self.ask(nursery, lambda: self.create(path, data), repeats=False)
            assert answer is None
            if not answered:
                self.files[path] = {*self.files.get(path, {None}), data}
                await self._settle(nursery, path)
        self.files[path] = {data}

    async def _rename(self, nursery: trio.Nursery, source: str, target: str, expected: str) -> None:
        _, answer = await self.ask(
            nursery, lambda: self.served.move(parts_of(source), parts_of(target), "NONE", there)
        )
        assert answer == (True if expected == "done" else expected)
        if expected == "done":
            self.files[target] = self.files.pop(source)

    async def _delete(self, nursery: trio.Nursery, path: str, how: str) -> None:
        recursive = how == "recursive"
        _, answer = await self.ask(
            nursery, lambda: self.served.remove(parts_of(path), recursive=recursive, still_there=there)
        )
        assert answer in (True, False)
        if not recursive:
            await self._settle(nursery, path)  # it stays until it is replaced: its driver may die now
        else:
            self.files = {
                one: data for one, data in self.files.items() if not f"{one}/".startswith(f"{path}/")
            }

    async def _settle(self, nursery: trio.Nursery, path: str) -> None:
        """The client looks what is there."""
        _, found = await self.ask(nursery, lambda: self.content(path))
        data = None if found == "FileNotFoundException" else found
        assert data in self.files[path], path
        self.files[path] = {data}

    async def check(self, nursery: trio.Nursery) -> None:
        for path in sorted(self.files):
            await self._settle(nursery, path)
        for path in {path.rpartition("/")[0] for path in self.files}:
            _, listed = await self.ask(nursery, lambda path=path: self.served.listing(parts_of(path)))
            names = {one.name for one in listed if not one.is_dir}
            assert names == {one.rpartition("/")[2] for one in self.files if one.rpartition("/")[0] == path}
        for path in self.folders:
            _, status = await self.ask(nursery, lambda path=path: self.served.status(parts_of(path)))
            assert status.is_dir
        _, below = await self.ask(nursery, lambda: self.served.summary(()))
        assert below.length == sum(len(one) for data in self.files.values() for one in data if one)

    async def create(self, path: str, data: bytes) -> None:
        async with aclosing(in_parts(data)) as body:
            await self.served.create(parts_of(path), body, overwrite=True, still_there=there)

    async def content(self, path: str) -> bytes:
        size, parts = await self.served.open_file(parts_of(path), 0, None)
        async with aclosing(parts):
            data = b"".join([part async for part in parts])
        assert len(data) == size
        return data


async def in_parts(data: bytes) -> AsyncGenerator[bytes]:
    for at in range(0, len(data), 70):
        yield data[at : at + 70]


async def pause() -> None:
    await trio.sleep(0.15)


def temporary(name: str) -> str:
    return f"/q/.{name}.{UUID}.tmp"


SCRIPT: Final[list[Operation]] = [
    ("folder", "/q/state"),
    ("put", temporary("1"), "40"),
    ("rename", temporary("1"), "/q/1", "done"),
    ("put", temporary("2"), "350"),
    ("rename", temporary("2"), "/q/1", "FileAlreadyExistsException"),
    ("rename", temporary("2"), "/q/2", "done"),
    ("put", temporary("1"), "45"),
    ("delete", "/q/1", "marks"),
    ("rename", temporary("1"), "/q/1", "done"),
    *(("put", "/q/state/large", str(size)) for size in (301, 302, 303)),
    ("put", "/q/gone/x", "120"),
    ("delete", "/q/gone", "recursive"),
    *(("put", "/q/state/small", str(size)) for size in (20, 21, 22)),
]


def live(fate: Fate, script: list[Operation], seed: int = 0) -> Fate:
    run_deterministic(lambda _: Lives(fate, script).run(), seed)
    return fate


def positions(script: list[Operation], ends: int = 1) -> Iterator[Fate]:
    """Yield every position, each append with so many of ENDS in turn."""
    whole = live(Fate(), script)
    for append in range(whole.appends):
        for turn in range(ends):
            reach, members = ENDS[(append + turn) % len(ENDS)]
            yield Fate(append, reach, next_members=members)
    for answer in range(whole.answers):
        yield Fate(answer=answer, next_members=(2, 3))


def random_script(seed: int) -> list[Operation]:
    """Return operations as a query has them; the answer to each rename is known."""
    rng, script = random.Random(seed), list[Operation]()
    there_are: set[str] = set()
    for number in range(12):
        name = f"/q/{rng.randint(1, 3)}"
        source = f"/q/.{name[3:]}.{UUID[:-2]}{number:02}.tmp"
        what = rng.choice(["large", "remove", "rename", "rename", "overwrite", "folder"])
        if what == "large":
            script.append(("put", "/q/large", str(rng.randint(0, 500))))
        elif what == "folder":
            script.append(("folder", f"/q/f{number}/d"))
        elif what == "remove":
            script.append(("delete", name, "recursive"))
            there_are.discard(name)
        else:
            script.append(("put", source, str(rng.randint(0, 250))))
            if what == "overwrite" and name in there_are:
                script.append(("delete", name, "marks"))
                there_are.discard(name)
            expected = "FileAlreadyExistsException" if name in there_are else "done"
            script.append(("rename", source, name, expected))
            there_are.add(name)
    return script


def test_the_script_rolls_copies_forward_and_releases() -> None:
    lives = Lives(Fate(), SCRIPT)
    run_deterministic(lambda _: lives.run(), 0)
    assert lives.copied_bytes > 0
    assert lives.served.tree.space.notes[0].base > 0


def test_nothing_that_was_answered_is_lost_wherever_the_gateway_dies() -> None:
    for fate in positions(SCRIPT):
        live(fate, SCRIPT)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(11))
def test_however_far_its_last_append_comes_whatever_was_done_before(seed: int) -> None:
    script = random_script(seed) if seed else SCRIPT
    for fate in positions(script, 1 if seed else len(ENDS)):
        live(fate, script)
