"""The interfaces that a journal requires of a store. Claim, Store and ObjectWriter of `dos_client` have them;
tests run chains on an in-memory store. Reads return synced bytes only.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeAlias

from dos_client import Bookmark
from dos_protocol.errors import FencedError
from dos_protocol.messages import ObjectInfo
from dos_protocol.store_record import StoreRecord

Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with the bytes done, and the bytes in all, None if unknown."""


class LocalCopyPort(Protocol):
    """A copy of an object on this machine. Its bytes are unverified: check them by digest before use."""

    def size(self) -> int: ...

    def read(self, offset: int, max_bytes: int) -> bytes | None: ...


class ObjectWriterPort(Protocol):
    """The only appender of one object of a claim. Invariant: synced <= received <= size."""

    @property
    def size(self) -> int: ...

    @property
    def synced(self) -> int:
        """Bytes that are synced on the ack quorum."""
        ...

    @property
    def digest(self) -> int: ...

    def append(self, data: bytes) -> int:
        """Buffer the bytes, return the new size. Raises FencedError, ClosedError."""
        ...

    async def wait_synced(self, size: int) -> None:
        """Wait until `size` bytes are synced on the quorum. Raises FencedError."""
        ...

    async def wait_room(self) -> None:
        """Wait until few enough bytes are unsynced to append more. Raises FencedError."""
        ...

    def seal(self) -> None:
        """End the object. Its buffer is freed when a quorum holds all of it."""
        ...


class HasRecord(Protocol):
    @property
    def record(self) -> StoreRecord: ...


class ClaimPort(Protocol):
    """A claim of a directory: the right to be its only writer, until `lost` is set."""

    @property
    def epoch(self) -> int: ...

    @property
    def writer_id(self) -> bytes: ...

    @property
    def store(self) -> HasRecord: ...

    @property
    def answers(self) -> Mapping[bytes, Mapping[str, ObjectInfo]]:
        """The objects of each trusted member that answered, until the first `settle` or `open_object`."""
        ...

    @property
    def lost(self) -> FencedError | None: ...

    async def wait_all(self, timeout_s: float) -> bool:
        """Wait until every member has answered. Return False on timeout. Raises FencedError."""
        ...

    async def read(self, name: str, offset: int, max_bytes: int, member: bytes | None = None) -> bytes: ...

    def collect(self, garbage: Callable[[str], bool]) -> None:
        """Delete objects on every member while the claim is held: those of whose names `garbage` is true.
        Raises FencedError.
        """
        ...

    async def settle(self, name: str, size: int, digest: int, local: LocalCopyPort | None = None) -> None:
        """Wait until the first `size` bytes, with this prefix digest, are synced on the quorum; `local` may
        fill members. Raises MissingDataError, FencedError.
        """
        ...

    def open_object(self, name: str, local: LocalCopyPort | None = None) -> ObjectWriterPort:
        """Create an object. `local`: the copy of the appended bytes that is kept on this machine, if any."""
        ...


class DirectoryViewPort(Protocol):
    """The objects that members hold of a directory, read without a claim."""

    @property
    def answers(self) -> Mapping[bytes, Mapping[str, ObjectInfo]]: ...

    @property
    def filled(self) -> Mapping[bytes, Mapping[str, ObjectInfo]]:
        """The same for a member that is joining: its copies count toward quorums of the new member set."""
        ...

    @property
    def epochs(self) -> Mapping[bytes, tuple[int, bytes]]:
        """The claim that each member held when it answered: (epoch, writer id)."""
        ...


class DirectoryEntries(NamedTuple):
    answers: Mapping[bytes, Mapping[str, ObjectInfo]]
    filled: Mapping[bytes, Mapping[str, ObjectInfo]]
    epochs: Mapping[bytes, tuple[int, bytes]]


class StorePort(Protocol):
    @property
    def record(self) -> StoreRecord: ...

    async def inspect(self, directory: str) -> DirectoryViewPort: ...

    async def read(self, directory: str, name: str, offset: int, max_bytes: int) -> bytes: ...

    def stream(
        self, directory: str, name: str, offset: int = 0, end: int | None = None, seen: Bookmark | None = None
    ) -> AsyncGenerator[bytes]:
        """Yield bytes that a quorum holds, checked against its digest; ends where these end. seen: the
        progress of one reader; only if `end` is known to be committed. Raises QuorumUnavailableError,
        CorruptError.
        """
        ...


class GrowthPort(Protocol):
    """A context manager that watches the size of one object."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def beyond(self, size: int) -> int:
        """Wait until a quorum of members holds more than `size` bytes, and return how many it holds."""
        ...


class GrowingPort(Protocol):
    def growth(self, directory: str, name: str, size: int) -> GrowthPort: ...
