"""What the journal needs of a store, as protocols: `dos_client`'s Claim, Store and ObjectWriter fit them.

Rules of this file: signatures only, the same as `dos_client`'s. They are here so that the chain shell is
tested on an in-memory store that obeys the same rules (`tests/journal/memory_store.py`), and so that a
reader sees on one page what a chain stands on. Errors are `dos_protocol.errors`; reads give synced bytes
only.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from types import TracebackType
from typing import Protocol, Self

from dos_client import Bookmark
from dos_protocol.errors import FencedError
from dos_protocol.messages import ObjectInfo
from dos_protocol.store_record import StoreRecord


class LocalCopyPort(Protocol):
    """Bytes of an object on this machine, which nobody vouches for."""

    def size(self) -> int: ...

    def read(self, offset: int, max_bytes: int) -> bytes | None: ...


class ObjectWriterPort(Protocol):
    """One object of a claim, appended to from here only. Invariant: synced <= received <= size."""

    @property
    def size(self) -> int:
        """Bytes handed to `append`."""
        ...

    @property
    def synced(self) -> int:
        """Bytes synced on the ack quorum."""
        ...

    @property
    def digest(self) -> int:
        """Prefix digest at `size`."""
        ...

    def append(self, data: bytes) -> int:
        """Buffer and send; the new size. FencedError, ClosedError."""
        ...

    async def wait_synced(self, size: int) -> None:
        """Until that many bytes are synced on the quorum. FencedError."""
        ...

    async def wait_room(self) -> None:
        """Until few enough bytes are unsynced. FencedError."""
        ...

    def seal(self) -> None:
        """Nothing more will be appended: the memory can go once a quorum has it all."""
        ...


class HasRecord(Protocol):
    """Whatever knows the store's record."""

    @property
    def record(self) -> StoreRecord: ...


class ClaimPort(Protocol):
    """A directory whose one writer we are, until `lost`."""

    @property
    def epoch(self) -> int: ...

    @property
    def writer_id(self) -> bytes: ...

    @property
    def store(self) -> HasRecord: ...

    @property
    def answers(self) -> Mapping[bytes, Mapping[str, ObjectInfo]]:
        """What each trusted member that answered the claim holds. Grows until the first settle or open."""
        ...

    @property
    def lost(self) -> FencedError | None: ...

    async def wait_all(self, timeout_s: float) -> bool:
        """Until every member has answered; False if that takes longer. FencedError."""
        ...

    async def read(self, name: str, offset: int, max_bytes: int, member: bytes | None = None) -> bytes: ...

    def collect(self, garbage: Callable[[str], bool]) -> None:
        """From now on take away, in the background and on every member, objects of which it says that nobody
        needs them any more, for ever. Replaces what was given before. FencedError.
        """
        ...

    async def settle(self, name: str, size: int, digest: int, local: LocalCopyPort | None = None) -> None:
        """Until the first `size` bytes, with that digest, are synced on the quorum. Members that lack them
        are filled from `local`, if it proves right, else from others. MissingDataError, FencedError.
        """
        ...

    def open_object(self, name: str, local: LocalCopyPort | None = None) -> ObjectWriterPort:
        """Begin an object. `local`: where what is appended is kept on this machine besides."""
        ...


class DirectoryViewPort(Protocol):
    """What members hold of a directory, without a claim."""

    @property
    def answers(self) -> Mapping[bytes, Mapping[str, ObjectInfo]]: ...

    @property
    def filled(self) -> Mapping[bytes, Mapping[str, ObjectInfo]]:
        """The same of a member that joins: it helps to make acknowledged what the others hold."""
        ...

    @property
    def epochs(self) -> Mapping[bytes, tuple[int, bytes]]:
        """The claim, (epoch, writer id), that each member held when it answered."""
        ...


class StorePort(Protocol):
    """A store, read without a claim."""

    @property
    def record(self) -> StoreRecord: ...

    async def look(self, directory: str) -> DirectoryViewPort: ...

    async def read(self, directory: str, name: str, offset: int, max_bytes: int) -> bytes: ...

    def stream(
        self,
        directory: str,
        name: str,
        offset: int = 0,
        end: int | None = None,
        bookmark: Bookmark | None = None,
    ) -> AsyncGenerator[bytes]:
        """Bytes that a quorum holds, checked against its digest; ends early where it holds no more.
        `bookmark`: how far one reader has come, for who knows that `end` is committed.
        QuorumUnavailableError, CorruptError.
        """
        ...


class GrowthPort(Protocol):
    """An object as it grows, for as long as this is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def beyond(self, size: int) -> int:
        """Wait until a quorum of members has more than `size`; how much."""
        ...


class GrowingPort(Protocol):
    """A store whose members tell when an object has grown."""

    def growth(self, directory: str, name: str, size: int) -> GrowthPort: ...
