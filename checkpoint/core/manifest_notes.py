"""Notes for people in the records of checkpoints: who made a savepoint, and who edited the state. Pure.

No restore depends on them, and programs that do not know them ignore them.
"""

from typing import Final

import msgspec


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """A person wrote rows into the state (`editing.py`)."""

    by: str = ""
    """user@host"""
    wall_time_ms: int = 0
    why: str = ""
    tables: dict[str, dict[str, int]] = {}
    """Operator -> how many keys were added, changed and deleted."""


class SavepointNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who made a savepoint, when and why. For people; a program that does not know it drops it."""

    by: str = ""
    """user@host, or host:pid of the driver whose program made it."""
    wall_time_ms: int = 0
    why: str = ""
    fork: str = ""
    """The region that began as a fork of this checkpoint. The savepoint is dropped when it needs it no more.
    """


NO_NOTE: Final = SavepointNote()
