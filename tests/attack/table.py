"""The table of attacks: the data directory before the attack, the actions of the attackers, the options of
the server.

`crowds.pumps` implements what the connections send.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from dos_protocol.limits import entries_max, payload_bytes_max
from tests.attack import ground

Lay = Callable[[Path, float], None]
"""Fill a data directory for an attack of that scale."""


class Attack(NamedTuple):
    """`what`: for people. `token`: the server asks for one. `knows`: and the attackers have it."""

    what: str
    lay: Lay | None = None
    token: bool = False
    knows: bool = True


def _many_directories(data: Path, scale: float) -> None:
    ground.directories(data, int(100_000 * scale))


def _full(count: int) -> Lay:
    def lay(data: Path, scale: float) -> None:
        for number in range(max(2, int(count * scale))):
            ground.objects(data, f"full{number}", entries_max)

    return lay


def _few(data: Path, scale: float) -> None:
    del scale
    ground.objects(data, "few", 10)


def _large(data: Path, scale: float) -> None:
    del scale
    large = bytes(256 << 10)
    ground.objects(data, "large", 1, large)


def _tiny(extents: int) -> Lay:
    return lambda data, scale: ground.tiny_extents(data, "tiny", "o", max(100_000, int(extents * scale)))


ATTACKS: Final[dict[str, Attack]] = {
    "frames-begun": Attack("300 connections announce frames of up to 1 MiB and send nothing more"),
    "frames-begun-many": Attack("1,000 connections do the same"),
    "frames-half": Attack("300 connections send 600 KB of a frame of 1 MiB and stop"),
    "frames-unauthenticated": Attack(
        "300 connections without the token announce frames of 1 MiB", token=True, knows=False
    ),
    "hello-wrong": Attack("100 connections with a wrong token, made again at once", token=True, knows=False),
    "ping": Attack("50 connections send PINGs of 4 KiB without pause"),
    "list-directories": Attack("20 connections LIST 100,000 directories without pause", _many_directories),
    "list-objects": Attack("20 connections LIST a directory of 6,000 objects without pause", _full(1)),
    "list-none": Attack("50 connections LIST a prefix that nothing has, of 100,000", _many_directories),
    "cwd": Attack("20 connections open a directory of 6,000 objects again and again", _full(1)),
    "first-open": Attack("20 connections open a directory of 6,000 objects each, and stay", _full(20)),
    "first-open-tiny": Attack(
        "the first open of an object of 1,000,000 extents of one byte", _tiny(1_000_000)
    ),
    "stat": Attack("50 connections STAT without pause", _few),
    "stat-digest": Attack("20 connections STAT a digest among extents of one byte", _tiny(200_000)),
    "get-tiny-extents": Attack(
        "8 connections with 16 GETs of 1 MiB in extents of one byte", _tiny(1_200_000)
    ),
    "get-waiting": Attack("1,200 connections with 1,024 waiting GETs each", _few),
    "get-never-read": Attack("400 connections GET and never read an answer", _large),
    "cwd-never-read": Attack("400 connections open directories of 6,000 objects, and never read", _full(2)),
    "append-pipelined": Attack("16 writers append 100 bytes at a time without waiting"),
    "delete": Attack("two connections remove 6,000 objects each, as fast as they can", _full(2)),
    "garbage": Attack("400 connections send garbage of every kind", _large),
    "v0-list": Attack("version 0: 20 connections list a directory of 6,000 files without pause", _full(1)),
    "v0-use": Attack("version 0: 20 connections open a directory of 6,000 files again and again", _full(1)),
    "v0-get": Attack("version 0: 20 connections get a file of extents of one byte", _tiny(200_000)),
    "v0-append-bytes": Attack("version 0: 50 streams of 64 bytes at a time"),
    "v0-begun": Attack("version 0: 300 connections begin a request and send nothing more"),
}
assert payload_bytes_max == 1 << 20, "the words above say 1 MiB"
