"""The content of a copy as text: `1:0 up to 275 (a1 a2 a3)`.

A segment is called by its epoch and its base, as positions are: 2:275 was opened by epoch 2 where the chain
had 275 bytes.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping

from dos_protocol.errors import DosError
from dos_protocol.messages import ObjectInfo
from journal.core.chain import parse_segment_name

_SEGMENT = re.compile(r"\b[A-Za-z0-9_-]+\.[0-9a-f]{16}\.[0-9a-f]{16}\b")
_NAMES_MAX = 6


def short(name: str) -> str:
    """A segment by its epoch and base; any other object by its name."""
    parsed = parse_segment_name(name)
    return name if parsed is None else f"{parsed.epoch}:{parsed.base}"


def listed(names: Iterable[str]) -> str:
    """`a1 a2 a3`, or `a1 .. a9`, or `no record`."""
    found = list(names)
    if not found:
        return "no record"
    return " ".join(found) if len(found) <= _NAMES_MAX else f"{found[0]} .. {found[-1]}"


def in_words(names: Iterable[str]) -> str:
    """`s1`, `s1 and s2`, `s1, s2 and s3`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def words_of(error: DosError) -> str:
    """An error's class and text, without the remedy."""
    return f"{type(error).__name__}: {error.args[0]}"


class Book:
    """What was appended where, and who is who. `calls`: identities in hexadecimal, and what stories call
    them."""

    def __init__(self) -> None:
        self.calls: dict[str, str] = {}
        self._ends: dict[str, list[int]] = {}
        self._names: dict[str, list[str]] = {}

    def wrote(self, segment: str, record: str, end: int) -> None:
        """That record ends there. ('' is one that needs no name: a start, a snapshot's marks.)"""
        self._ends.setdefault(segment, []).append(end)
        self._names.setdefault(segment, []).append(record)

    def part(self, segment: str, size: int) -> str:
        """The first `size` bytes of a segment."""
        parsed = parse_segment_name(segment)
        if parsed is None or size == 0:
            return f"{short(segment)}, {size} bytes"
        ends = self._ends.get(segment, [])
        whole = bisect_right(ends, size)
        names = [name for name in self._names.get(segment, [])[:whole] if name]
        said = listed(names) if names else "its start"
        torn = " and a part" if not whole or ends[whole - 1] != size else ""
        return f"{short(segment)} up to {parsed.base + size} ({said}{torn})"

    def in_plain_words(self, text: str) -> str:
        """The same text, with servers, writers and segments called as stories call them."""
        for identity, name in self.calls.items():
            text = text.replace(identity, name).replace(f" ({identity[:8]})", "")
        return _SEGMENT.sub(lambda match: short(match[0]), text.replace(":9999", ""))

    def told(self, infos: Mapping[str, ObjectInfo]) -> str:
        """What a server says it holds."""
        said = [self._info(infos[name]) for name in sorted(infos)]
        return ", ".join(said) if said else "nothing"

    def _info(self, info: ObjectInfo) -> str:
        if info.received and not info.synced:
            return f"{short(info.name)} with {info.received} bytes unsynced"
        text = self.part(info.name, info.synced)
        if info.received > info.synced:
            text += f" and {info.received - info.synced} bytes unsynced"
        if info.poisoned:
            return text + ", POISONED"
        return text + ", DAMAGED" if info.corrupt else text
