"""Names in byte order, for LIST. The cost of a page depends on its entries, not on the number of names."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from dos_server.core.object_state import ObjectState


class Page(NamedTuple):
    """A page of names. `more`: further names match after these."""

    names: list[str]
    more: bool


def page_of(ordered: list[str], prefix: str, after: str, count: int) -> Page:
    """Return the names that begin with the prefix and sort after `after`, at most `count` of them."""
    start = max(bisect_right(ordered, after), bisect_left(ordered, prefix))
    names = ordered[start : start + count]
    matching = bisect_left(names, 1, key=lambda name: int(not name.startswith(prefix)))
    beyond = start + matching
    more = matching == count and beyond < len(ordered) and ordered[beyond].startswith(prefix)
    return Page(names[:matching], more)


class NameTable:
    """A growing set of names, in order. Used for directories, which are never removed."""

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
        """Add a name, if it is not there yet."""
        if name not in self._known:
            self._known.add(name)
            insort(self._ordered, name)

    def page(self, prefix: str, after: str, count: int, seen: Callable[[str], bool] | None = None) -> Page:
        """Return a page of the names. seen: of those for which it is true; this looks at every name."""
        ordered = self._ordered if seen is None else [*filter(seen, self._ordered)]
        return page_of(ordered, prefix, after, count)


class ObjectTable(dict[str, ObjectState]):
    """The objects of a directory by name. Their order is computed on first use and then maintained."""

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
        """Return all names in order. The caller must not change the list."""
        if self._ordered is None:
            self._ordered = sorted(self)
        return self._ordered

    def page(self, prefix: str, after: str, count: int) -> Page:
        """Return a page of the objects that exist. An object whose file has no byte yet is skipped."""
        found: list[str] = []
        more = True
        while more and len(found) <= count:
            names, more = page_of(self.ordered(), prefix, after, count + 1 - len(found))
            found += [name for name in names if self[name].exists]
            after = names[-1] if names else after
        return Page(found[:count], len(found) > count)
