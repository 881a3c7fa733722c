"""Backups one after the other, with a stated loss window. `backup.py` makes each."""

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

import trio

from checkpoint.errors import BackupDamagedError, BackupRefusedError, NoRegionError
from checkpoint.maintenance.backup import BackupDone
from dos_protocol.errors import DosError


@dataclass(frozen=True, slots=True)
class BackupStatus:
    """One round. done: the backup, None if it failed because of `error`.

    loss_window_s: how much is lost at most if the store is lost before the next backup is complete: the age
    of the checkpoint when its copy began, the time to copy, and the interval. Infinite before the first
    backup; after a failure it is larger by the time since the last backup.
    """

    done: BackupDone | None
    error: str
    every_s: float
    loss_window_s: float


async def keep_backing_up(
    once: Callable[[], Awaitable[BackupDone]], every_s: float
) -> AsyncGenerator[BackupStatus]:
    """Make backups until it is closed, and yield the status after each. A failed one is reported, and the
    next one begins after the interval.

    Raises what another try would find again: BackupRefusedError, BackupDamagedError and NoRegionError of the
    first round; later rounds report them too.
    """
    first, window, since = True, math.inf, trio.current_time()
    while True:
        try:
            done = await once()
        except DosError as error:
            if first and isinstance(error, BackupRefusedError | BackupDamagedError | NoRegionError):
                raise
            now = trio.current_time()
            window, since = window + (now - since), now
            yield BackupStatus(None, str(error), every_s, window)
        else:
            window, since = loss_window(done, every_s), trio.current_time()
            yield BackupStatus(done, "", every_s, window)
        first = False
        await trio.sleep(every_s)


def loss_window(done: BackupDone, every_s: float) -> float:
    """Return the loss window after a backup, if the next one takes as long as this one."""
    age_s = max(done.wall_time_ms - done.checkpoint_ms, 0) / 1000
    return age_s + every_s + done.seconds
