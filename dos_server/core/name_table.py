"""Names in byte order, for LIST: a page costs what is on it, however many names there are.

Rules of this file: order and pages. What the names stand for is the caller's.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dos_server.core.object_state import ObjectState


class Page(NamedTuple):
    """`more`: there are others after these."""

    names: list[str]
    more: bool


def page_of(ordered: list[str], prefix: str, after: str, count: int) -> Page:
    """The names that begin with the prefix and come after `after`, at most `count` of them."""
    start = max(bisect_right(ordered, after), bisect_left(ordered, prefix))
    names = ordered[start : start + count]
    good = bisect_left(names, 1, key=lambda name: int(not name.startswith(prefix)))
    beyond = start + good
    more = good == count and beyond < len(ordered) and ordered[beyond].startswith(prefix)
    return Page(names[:good], more)


class NameTable:
    """Names that are added and never taken away, as those of directories."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._ordered = sorted(set(names))
        self._known = set(self._ordered)

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __len__(self) -> int:
        return len(self._ordered)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ordered)

    def add(self, name: str) -> None:
        """Take a name in; nothing changes if it is there."""
        if name not in self._known:
            self._known.add(name)
            insort(self._ordered, name)

    def page(self, prefix: str, after: str, count: int) -> Page:
        """See `page_of`."""
        return page_of(self._ordered, prefix, after, count)


class ObjectTable(dict[str, ObjectState]):
    """The objects of a directory. Their order is kept once it was asked for."""

    _ordered: list[str] | None = None

    def __setitem__(self, name: str, state: ObjectState) -> None:
        if self._ordered is not None and name not in self:
            insort(self._ordered, name)
        super().__setitem__(name, state)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        if self._ordered is not None:
            del self._ordered[bisect_left(self._ordered, name)]

    def ordered(self) -> list[str]:
        """All names in order. Do not change the list."""
        if self._ordered is None:
            self._ordered = sorted(self)
        return self._ordered

    def page(self, prefix: str, after: str, count: int) -> Page:
        """Of the objects that exist: one that has no byte in its file yet is skipped."""
        found: list[str] = []
        more = True
        while more and len(found) <= count:
            names, more = page_of(self.ordered(), prefix, after, count + 1 - len(found))
            found += [name for name in names if self[name].exists]
            after = names[-1] if names else after
        return Page(found[:count], len(found) > count)
