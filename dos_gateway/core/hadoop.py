"""What Hadoop's client expects: exceptions by their Java classes, file statuses, paths. Pure."""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from dos_gateway.limits import block_bytes, path_part_bytes_max, path_parts_max

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_CODES: Final = {
    "FileNotFoundException": 404,
    "IllegalArgumentException": 400,
    "UnsupportedOperationException": 400,
}
"""Hadoop's own codes; 403 for all others. The client decides by the class, not by the code."""


_OUTCOMES: Final = {"FileNotFoundException": "not_found", "StandbyException": "standby"}


class HadoopError(Exception):
    """A refusal that is sent to the client, which raises it as an exception of the Java class `java`. reason:
    the phrase of HTTP beside the code.
    """

    def __init__(self, java: str, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.java = java
        self.text = text
        self.reason = reason

    @property
    def code(self) -> int:
        return _CODES.get(self.java.rpartition(".")[2], 403)

    @property
    def outcome(self) -> str:
        """Return what became of the request, for the figures. Clients ask for files that are not there."""
        return _OUTCOMES.get(self.java.rpartition(".")[2], "refused")

    @property
    def reply(self) -> dict[str, Any]:
        name = self.java.rpartition(".")[2]
        return {"RemoteException": {"exception": name, "javaClassName": self.java, "message": self.text}}


def not_found(path: str) -> HadoopError:
    return HadoopError("java.io.FileNotFoundException", f"File does not exist: {path}")


def exists(path: str) -> HadoopError:
    return HadoopError("org.apache.hadoop.fs.FileAlreadyExistsException", f"{path} already exists")


def refused(text: str) -> HadoopError:
    return HadoopError("java.io.IOException", text)


def bad_request(text: str) -> HadoopError:
    return HadoopError("java.lang.IllegalArgumentException", text)


_WRITES_AGAIN: Final = ("APPEND", "TRUNCATE", "CONCAT")


def unsupported(op: str) -> HadoopError:
    rule = "a file of this tree is written once"
    if op not in _WRITES_AGAIN:
        rule = (
            "a tree has no links, snapshots, owners, ACLs, attributes, quotas, policies, checksums or tokens"
        )
    return HadoopError("java.lang.UnsupportedOperationException", f"op={op} is not supported: {rule}")


def empty_body() -> HadoopError:
    """Return the refusal of a body of which the head says that it is empty. A client that writes by APPEND
    begins so, and would leave an empty file, or empty the one that is there.
    """
    text = (
        "an empty file needs Transfer-Encoding: chunked. fsspec sends an empty body before op=APPEND, which "
        "is not supported: a file of this tree is written once. Write it with Hadoop's client, or in one PUT"
    )
    return HadoopError("java.lang.UnsupportedOperationException", text, reason=text)


def standby(text: str = "this gateway does not serve the tree now") -> HadoopError:
    """Return the refusal after which a client of several gateways goes on to the next one."""
    return HadoopError("org.apache.hadoop.ipc.StandbyException", text)


Parts = tuple[str, ...]
"""The names on the way from the root to a node; none for the root."""


def parts_of(path: str) -> Parts:
    """Return the parts of a path. Raises HadoopError for one that no node may have."""
    parts = tuple(part for part in path.split("/") if part)
    if not path.startswith("/"):
        raise bad_request(f"a path begins with '/', got {path!r:.100}")
    if len(parts) > path_parts_max:
        raise bad_request(f"a path has at most {path_parts_max} parts, {path[:80]!r}... has {len(parts)}")
    for part in parts:
        # Names are shown in logs and by commands, where control characters would do what they mean.
        if part in (".", "..") or _CONTROL.search(part):
            raise bad_request(f"{part!r} is not allowed as a part of a path, in {path!r:.100}")
        if len(part.encode()) > path_part_bytes_max:
            raise bad_request(f"a part of a path has at most {path_part_bytes_max} bytes, in {path!r:.100}")
    return parts


def path_in(raw: bytes) -> str:
    """Return a percent-encoded path of a URL as text. Raises HadoopError if it is not UTF-8."""
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise bad_request(f"a path is UTF-8, got {raw!r:.100}") from error


def text_of(parts: Parts) -> str:
    return "/" + "/".join(parts)


class FileStatus(NamedTuple):
    """What a client may know of a file or directory. name: the last part of its path."""

    name: str
    is_dir: bool
    length: int
    mtime_ms: int
    id: int
    children: int

    def reply(self, suffix: str = "") -> dict[str, Any]:
        """Return Hadoop's FileStatus. suffix: its path below the directory that was asked for."""
        return {
            "accessTime": 0,
            "blockSize": 0 if self.is_dir else block_bytes,
            "childrenNum": self.children,
            "fileId": self.id,
            "group": "dos",
            "length": self.length,
            "modificationTime": self.mtime_ms,
            "owner": "dos",
            "pathSuffix": suffix,
            "permission": "755" if self.is_dir else "644",
            "replication": 0 if self.is_dir else 1,
            "storagePolicy": 0,
            "type": "DIRECTORY" if self.is_dir else "FILE",
        }


class Summary(NamedTuple):
    """How much lies below a path."""

    files: int
    directories: int
    length: int

    @property
    def reply(self) -> dict[str, Any]:
        return {
            "ContentSummary": {
                "directoryCount": self.directories,
                "fileCount": self.files,
                "length": self.length,
                "quota": -1,
                "spaceConsumed": self.length,
                "spaceQuota": -1,
            }
        }


SERVER_DEFAULTS: Final[dict[str, Any]] = {
    "FsServerDefaults": {
        "blockSize": block_bytes,
        "bytesPerChecksum": 512,
        "checksumType": 2,
        "defaultStoragePolicyId": 0,
        "encryptDataTransfer": False,
        "fileBufferSize": 64 << 10,
        "keyProviderUri": "",
        "replication": 1,
        "trashInterval": 0,
        "writePacketSize": 64 << 10,
    }
}


def block_locations(status: FileStatus) -> dict[str, Any]:
    """Return Hadoop's BlockLocations of a file: one block, of no particular host."""
    block = {
        "cachedHosts": [],
        "corrupt": False,
        "hosts": ["localhost"],
        "length": status.length,
        "names": ["localhost:0"],
        "offset": 0,
        "topologyPaths": ["/default-rack/localhost:0"],
    }
    return {"BlockLocations": {"BlockLocation": [block] if status.length else []}}


def ascii_target(head: bytes) -> bytes:
    """Return the head of a request with the bytes of its first line that are not ASCII percent-encoded: the
    JDK sends the UTF-8 of a path as it is, and HTTP parsers refuse it.
    """
    line, separator, rest = head.partition(b"\r\n")
    if line.isascii():
        return head
    return b"".join(_encoded(line)) + separator + rest


def _encoded(line: bytes) -> Iterator[bytes]:
    for byte in line:
        yield bytes((byte,)) if byte < 0x80 else b"%%%02X" % byte
