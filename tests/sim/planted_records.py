"""Planted bugs in the records of regions, and traits that runs of both tiers have."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, TypeAlias
from unittest import mock

from msgspec.structs import replace

from checkpoint.core.coordination import checkpoints
from checkpoint.core.records.lines import forked
from checkpoint.core.records.manifest import Checkpoint, ForkOrigin

Planted: TypeAlias = AbstractContextManager[Any]


def restore_with(**fields: Any) -> Callable[[], Planted]:
    """The record of a restore has other fields."""
    original = checkpoints.restored

    def restored(kept: Sequence[Checkpoint], target: Checkpoint, *args: Any, **more: Any) -> Checkpoint:
        record = original(kept, target, *args, **more)
        return replace(record, **{name: make(record, kept, target) for name, make in fields.items()})

    return lambda: mock.patch.object(checkpoints, "restored", restored)


def fork_with(module: ModuleType, **fields: Callable[[Checkpoint, Checkpoint], Any]) -> Callable[[], Planted]:
    """The first record of a fork has other fields, where this module makes it."""

    def other(source: Checkpoint, origin: ForkOrigin, incarnation: int) -> Checkpoint:
        record = forked(source, origin, incarnation)
        return replace(record, **{name: make(record, source) for name, make in fields.items()})

    return lambda: mock.patch.object(module, "forked", other)


def some_traits(seed: int) -> dict[str, bool | float]:
    """Return what some regions do besides, by their seed."""
    return {
        "goes_back": seed % 3 == 0,
        "scales": seed % 2 == 0,
        "makes_savepoints": seed % 3 == 0,
        "trims": True,
    }
