"""A disk that is soon full: a tmpfs of a few MiB, mounted for one test. It can be made larger in use."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.needs import as_root, lacking


class SmallDisk:
    """A mounted tmpfs. `path` is where."""

    def __init__(self, path: Path, prefix: tuple[str, ...]) -> None:
        self.path = path
        self._prefix = prefix

    def resize(self, size_bytes: int) -> None:
        """Space appears or disappears while the disk is in use."""
        self._run("mount", "-o", f"remount,size={size_bytes}", str(self.path))

    def fill(self, leave_bytes: int = 0) -> Path:
        """A foreign file takes all but so much. Returns its path: remove it, and the space is free again."""
        ballast = self.path / "ballast"
        about = subprocess.run(
            ["stat", "--file-system", "--format=%a %S", str(self.path)],
            capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        with ballast.open("wb") as file:
            for _ in range((int(about[0]) * int(about[1]) - leave_bytes) // 4_096):
                file.write(bytes(4_096))
        return ballast

    def _run(self, *command: str) -> None:
        subprocess.run([*self._prefix, *command], check=True, capture_output=True, timeout=30)


@contextlib.contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mount one at a new folder. Skips where that is not allowed; fails there where CI is set."""
    prefix = as_root()
    if prefix is None:
        lacking("mounting a tmpfs needs root, or a sudo without password")
    path.mkdir()
    mount = [*prefix, "mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0777", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        lacking(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        yield SmallDisk(path, prefix)
    finally:
        # lazily: a test that failed may have left a file open, and no mount is to be left behind
        subprocess.run([*prefix, "umount", "--lazy", str(path)], check=True, capture_output=True, timeout=30)
