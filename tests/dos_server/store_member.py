"""A member of a store that can be damaged and repaired, and a disk whose power is cut at a call."""

import random

from msgspec import structs

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from dos_server.core.requests.scrub import NO_SCRUB, ScrubPlan
from dos_server.memory.disk import _Folder, _Node
from tests.dos_server.core_requests import to_claim
from tests.support.core_harness import SERVER_ID, Harness
from tests.support.fake_disk import FakeDisk

STORE = b"s" * 16
RECORD = StoreRecord(STORE, 1, 1, (Member(SERVER_ID, "a:1"),))
HELLO = m.Hello(store_id=STORE, generation=1)
CONTENT = random.Random(1).randbytes(300_000)
LONGER = CONTENT + b"and more"


class StoreMember(Harness):
    """A member of a store with `dir/o`, written under epoch 3; `writer` holds the claim."""

    def __init__(self, content: bytes = CONTENT, scrub: ScrubPlan = NO_SCRUB, *, slot_bytes: int = 0) -> None:
        super().__init__(FakeDisk(), scrub=scrub, slot_bytes=slot_bytes)
        alone = self.connect()
        assert isinstance(self.ask(alone, m.Configure(encode_store_record(RECORD))), m.Configured)
        self.claim()
        for start in range(0, len(content), 100_000):
            part = content[start : start + 100_000]
            self.send(self.writer, m.Append("o", start, prefix_digest(content[:start]), part))
            self.settle()

    def claim(self) -> m.DirectoryOpened:
        self.writer = self.connect(HELLO)
        opened = self.ask(self.writer, to_claim(3))
        assert isinstance(opened, m.DirectoryOpened), opened
        return opened

    def inspect(self) -> m.ObjectInfo:
        (info,) = self.ask(self.reader(), m.ChangeDirectory("dir")).entries
        assert isinstance(info, m.ObjectInfo)
        return info

    def reader(self) -> int:
        session = self.connect(HELLO)
        self.ask(session, m.ChangeDirectory("dir"))
        return session

    @property
    def folder(self) -> dict[str, "_Node | _Folder"]:
        node = self.disk.root.seen["d"]
        assert isinstance(node, _Folder)
        inner = node.seen["dir"]
        assert isinstance(inner, _Folder)
        return inner.seen

    def file(self, name: str = "o") -> _Node:
        node = self.folder[name]
        assert isinstance(node, _Node)
        return node

    def rot(self, position: int) -> None:
        """A bit flips on the platters; the next read of it notices."""
        for data in (self.file().seen, self.file().stable):
            data[position] ^= 1
        answer = self.ask(self.reader(), m.Get("o", position - 1_000, 2_000))
        assert answer.code == ErrorCode.CORRUPT

    def lose_tail(self, size: int) -> None:
        """The server stops, its file loses a tail, and it starts again."""
        self.storage.stop()
        del self.file().seen[size:]
        del self.file().stable[size:]
        self.disk.kill()
        self.start()

    def repair(
        self,
        session: int,
        data: bytes,
        *,
        old: m.ObjectInfo,
        overwrite: bool = False,
        chunk_bytes: int = 1 << 18,
    ) -> m.Message:
        """Bring a new copy; the last answer."""
        answer = None
        for start in range(0, len(data) or 1, chunk_bytes):
            piece = chunk(data, old, start, data[start : start + chunk_bytes])
            answer = self.ask(session, structs.replace(piece, overwrite=overwrite))
            if not isinstance(answer, m.RepairAck):
                break
        return answer

    def content(self) -> bytes:
        session, data = self.reader(), b""
        while isinstance(part := self.ask(session, m.Get("o", len(data), 1 << 20)), m.Data) and part.payload:
            data += bytes(part.payload)
        return data


def chunk(data: bytes, old: m.ObjectInfo, start: int = 0, part: bytes | None = None) -> m.RepairChunk:
    """A piece of a new copy with that data: the part at `start`, None: all of it."""
    whole, payload = (len(data), prefix_digest(data)), data if part is None else part
    return m.RepairChunk("o", start, *whole, old.synced, old.digest, overwrite=False, payload=payload)


def first_chunk(data: bytes, old: m.ObjectInfo) -> m.RepairChunk:
    return chunk(data, old, 0, data[:1000])


class PowerCutError(Exception):
    """The plug is pulled in the middle of a call to the disk."""


class PowerPlug:
    """Pulled at the nth call from now on."""

    def __init__(self, disk: FakeDisk, nth: int) -> None:
        self.calls_left = nth
        self._disk, self._called = disk, disk._called
        disk._called = self._count  # type: ignore[method-assign]

    def _count(self, method: str, what: str) -> None:
        self.calls_left -= 1
        if self.calls_left == 0:
            raise PowerCutError
        self._called(method, what)

    def restore(self) -> None:
        self._disk._called = self._called  # type: ignore[method-assign]
