"""A disk with a fate: the fake disk of the tests (which keeps, loses, tears and zeroes what was not synced),
and what can happen to it in a run.

Rules of this file: faults of the medium. When they come is planned in `nemesis`.
"""

import errno
from random import Random

from tests.support.fake_disk import ENDLESS, FakeDisk


class PowerCutError(BaseException):
    """The power goes in the middle of something. Nothing catches it but the machine."""


class SimDisk(FakeDisk):
    """See the module. `cut_in`: so many calls from now the power goes; `failing`: methods that fail with that
    error for as long as they are here."""

    def __init__(self) -> None:
        super().__init__()
        self.cut_in: int | None = None
        self.failing: dict[str, int] = {}

    def _called(self, method: str, what: str) -> None:
        self.calls.clear()
        if self.cut_in is not None:
            self.cut_in -= 1
            if self.cut_in <= 0:
                self.cut_in = None
                raise PowerCutError
        if method in self.failing:
            raise OSError(self.failing[method], f"injected into {method}", what)
        super()._called(method, what)

    def fill(self, room: int) -> None:
        """From now on there is room for so many bytes more."""
        self.space = self.used + room

    def free(self) -> None:
        """There is room again."""
        self.space = ENDLESS

    def heal(self) -> None:
        """Whatever failed works again; what is damaged stays damaged."""
        self.cut_in = None
        self.failing.clear()
        self.free()

    def flip(self, path: str, rng: Random) -> int:
        """One bit of a file, on the platters; where."""
        handle = self.open(path, create=False)
        node, _ = self._node(handle)
        place = rng.randrange(max(len(node.stable), 1))
        if node.stable:
            node.stable[place] ^= 1 << rng.randrange(8)
            node.seen[place : place + 1] = node.stable[place : place + 1]
        self.close(handle)
        return place

    def content(self, path: str) -> bytes | None:
        """A whole file as programs see it; None when there is none."""
        try:
            handle = self.open(path, create=False)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            return None
        try:
            return self.read(handle, 0, self.size(handle))
        finally:
            self.close(handle)
