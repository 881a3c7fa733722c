"""The directories on the user's disks in which a run works: what may be in them, and how much it takes.

A run creates only the names of `OWN` in such a directory, and deletes only these. A marker file identifies
the directory as a run's; it is locked while the run lasts.
"""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dos_chaos.errors import RunRefusedError
from dos_protocol.limits import MIB

MARKER: Final = "dos-chaos.json"
EVIDENCE: Final = "evidence"
LOAD: Final = "load"
SERVERS_MAX: Final = 3
OWN: Final = frozenset(
    [MARKER, EVIDENCE, LOAD]
    + [f"s{number}{suffix}" for number in range(1, SERVERS_MAX + 1) for suffix in ("", ".log")]
)
RUNNING: Final = "running"
KEPT: Final = "kept"
FREE_BYTES_MIN: Final = 256 * MIB
"""Stays free on every file system, beyond the budget, for the programs that share the disk."""
PROBES: Final = 30


@dataclass(frozen=True, slots=True)
class PlaceInfo:
    """A directory as the report describes it. `sync_ms`: median and maximum of small synced writes."""

    path: str
    file_system: str
    device: str
    options: str
    free_bytes: int
    sync_ms: tuple[float, float]


class Place:
    """One directory, locked for one run. Raises RunRefusedError, with nothing changed, if it is unfit."""

    def __init__(self, path: Path, *, discard: bool) -> None:
        self.path = path.absolute()
        self._created = not self.path.exists()
        self._lock = -1
        self.state = ""
        found = self._found()
        if found and MARKER not in found:
            raise RunRefusedError(
                f"{self.path} is not empty: it has {', '.join(sorted(found)[:3])}; pass an empty directory"
            )
        if foreign := sorted(found - OWN):
            raise RunRefusedError(
                f"{self.path} is a run's, but also has {', '.join(foreign[:3])}; move that away, nothing of"
                " it is deleted"
            )
        try:
            if self._created:
                self.path.mkdir()
            self._take_lock()
        except OSError as error:
            raise RunRefusedError(f"{self.path} cannot be used: {error.strerror}") from error
        try:
            if found:
                self._take_over(discard=discard)
        except BaseException:
            os.close(self._lock)
            raise

    def _found(self) -> set[str]:
        try:
            return {path.name for path in self.path.iterdir()}
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise RunRefusedError(f"{self.path} cannot be used: {error.strerror}") from error

    def _take_lock(self) -> None:
        self._lock = os.open(self.path / MARKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise RunRefusedError(f"{self.path} is in use by another run of dos chaos") from None

    def _take_over(self, *, discard: bool) -> None:
        """Delete what an earlier run left. Raises RunRefusedError if that is evidence, or not a run's."""
        marker = self._read()
        if marker.get("program") != "dos chaos":
            raise RunRefusedError(f"{self.path / MARKER} is not the marker of a run; pass an empty directory")
        if marker.get("state") == KEPT and not discard:
            raise RunRefusedError(
                f"{self.path} has the evidence of an earlier run (seed {marker.get('seed')}); pass --discard"
                " to delete it, or another directory"
            )
        if pids := servers_in(self.path):
            raise RunRefusedError(
                f"servers of an earlier run still use {self.path}: end them with"
                f"  kill -9 {' '.join(map(str, pids))}  and run the command again"
            )
        self._delete_contents()

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(os.pread(self._lock, 10_000, 0))
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    def mark(self, state: str, seed: int) -> None:
        """Write into the marker what the directory holds: a run in progress, or evidence."""
        self.state = state
        content = json.dumps({"program": "dos chaos", "state": state, "seed": seed, "pid": os.getpid()})
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, content.encode(), 0)
        os.fsync(self._lock)

    def used_bytes(self) -> int:
        """Return the disk space that the run takes here."""
        return sum(_used(self.path))

    def free_bytes(self) -> int:
        """Return the free space of the file system."""
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def info(self) -> PlaceInfo:
        """Describe the directory, and measure its sync latency, which takes some small writes."""
        device, kind, options = mount_of(self.path)
        return PlaceInfo(str(self.path), kind, device, options, self.free_bytes(), self._sync_ms())

    def _sync_ms(self) -> tuple[float, float]:
        path, times = self.path / LOAD, list[float]()
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            for _ in range(PROBES):
                begun = time.monotonic()
                os.write(handle, bytes(4_096))
                os.fdatasync(handle)
                times.append(1_000 * (time.monotonic() - begun))
        finally:
            os.close(handle)
            path.unlink()
        times.sort()
        return times[len(times) // 2], times[-1]

    def remove(self) -> None:
        """Delete everything of the run, and the directory if the run created it."""
        self._delete_contents()
        (self.path / MARKER).unlink(missing_ok=True)
        self.close()
        if self._created:
            self.path.rmdir()

    def _delete_contents(self) -> None:
        for name in OWN - {MARKER}:
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock; what is there stays."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def take_places(paths: Sequence[Path], *, space_bytes: int, discard: bool) -> list[Place]:
    """Lock the directories. Raises RunRefusedError with all of them as they were, except for what earlier
    runs left in those that were accepted.
    """
    resolved = [path.resolve() for path in paths]
    for path, other in ((one, two) for one in resolved for two in resolved if one is not two):
        if path.is_relative_to(other):
            raise RunRefusedError(
                f"{path} is named twice, or is inside of {other}; pass separate directories"
            )
    places: list[Place] = []
    try:
        for path in resolved:
            places.append(Place(path, discard=discard))
            free = places[-1].free_bytes()
            if free < space_bytes + FREE_BYTES_MIN:
                raise RunRefusedError(
                    f"{path} has {free // MIB} MiB free; needed are the {space_bytes // MIB} MiB of"
                    f" --space-mib and {FREE_BYTES_MIN // MIB} MiB that stay free for other programs"
                )
    except RunRefusedError:
        for place in places:
            place.remove()
        raise
    return places


def _used(path: Path) -> Iterator[int]:
    """Yield the disk space of everything in a directory; files may vanish meanwhile."""
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _used(Path(entry.path))
                yield entry.stat(follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return


def servers_in(path: Path) -> list[int]:
    """Return the process ids of servers whose data directory is in `path`."""
    found, prefix = [], os.fsencode(path) + b"/"
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = command.read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if b"serve" in words and any(word.startswith(prefix) for word in words):
            found.append(int(command.parent.name))
    return sorted(found)


def mount_of(path: Path) -> tuple[str, str, str]:
    """Return device, type and mount options of the file system of a path, from `/proc/self/mountinfo`."""
    best, found = -1, ("unknown", "unknown", "unknown")
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        before, _, after = line.partition(" - ")
        point, options = before.split()[4:6]
        kind, device = after.split()[:2]
        point = point.encode().decode("unicode_escape")  # spaces are written as \040
        if path.is_relative_to(point) and len(point) >= best:
            best, found = len(point), (device, kind, options)
    return found
