"""What a program did to a file system, one operation after the other: the journal of a run.

A node is a file or a folder, by number; 1 is the root. `at`: when it took effect, on the machine's monotonic
clock, the same in every process. A sync covers the operations on its node whose number in the journal is
below `since`: the number of the first that came after the sync had *begun*.
"""

import msgspec


class Operation(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    at: float = 0.0


class MakeFile(Operation, frozen=True):
    folder: int
    name: str
    node: int


class MakeFolder(Operation, frozen=True):
    folder: int
    name: str
    node: int


class Link(Operation, frozen=True):
    """Another name of a file."""

    folder: int
    name: str
    node: int


class Write(Operation, frozen=True):
    node: int
    position: int
    data: bytes


class Resize(Operation, frozen=True):
    node: int
    size: int


class Remove(Operation, frozen=True):
    folder: int
    name: str


class Rename(Operation, frozen=True):
    """What had the new name is replaced. `new_folder`: 0 for the same one."""

    folder: int
    name: str
    new_name: str
    new_folder: int = 0


class SyncFile(Operation, frozen=True):
    node: int
    since: int


class SyncFolder(Operation, frozen=True):
    node: int
    since: int


AnyOperation = MakeFile | MakeFolder | Link | Write | Resize | Remove | Rename | SyncFile | SyncFolder

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AnyOperation])


def encode(operations: list[AnyOperation]) -> bytes:
    return _encoder.encode(operations)


def decode(data: bytes) -> list[AnyOperation]:
    return _decoder.decode(data)
