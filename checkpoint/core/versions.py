"""Versions of what the processes of a region send to each other. Pure.

The processes may run different versions of this package, for a rolling upgrade. Messages, frames, blocks and
routing have a version of their own, `VERSIONS`:

- A field that a reader may ignore is added with a default, and changes no version: readers skip what they do
  not know.
- Any other change raises the newest version. The older ones stay as long as this package can send them to a
  process that speaks nothing newer.

Two ends whose versions do not overlap refuse the link by name (`handshake.py`).
"""

from typing import Final, TypeAlias

Versions: TypeAlias = tuple[int, int]
"""The oldest and the newest version that a process speaks."""

VERSIONS: Final[Versions] = (1, 2)
LOCAL_RECOVERY: Final = 2
"""The first version with local recovery. Regions with global recovery use nothing above version 1."""


def versions_text(speaks: Versions) -> str:
    """Return the versions in words."""
    oldest, newest = speaks
    return f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"


def overlap(one: Versions, other: Versions) -> bool:
    """Return whether there is a version that both speak."""
    return max(one[0], other[0]) <= min(one[1], other[1])
