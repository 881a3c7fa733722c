"""Replay the files of the target of a command: a journal file, an object of a store, or a chain.

A fault of a file or an object is returned in the outcome. A fault of a chain is raised.
"""

import functools
from collections.abc import Callable

from dos_client.cli.kit import run_interruptible
from journal.cli_arguments import journal_file
from journal.core.inspection import Located
from journal.files.damage import OnDamaged, WholeState, newest_whole
from journal.files.replaying import FilesReplay
from journal.files.restoring import replay_chain
from journal.inspecting import (
    InspectionOutcome,
    Progress,
    inspect_object,
    is_url,
    open_target,
    replay_file,
)


def replay_target(
    target: str, replay: FilesReplay, token: bytes, progress: Progress, *, on_damaged: OnDamaged = "fail"
) -> InspectionOutcome:
    """Pass the records of a FILE or URL to `replay`, up to its stop. on_damaged: as of `restore`.

    Returns the outcome; that of a chain has no fault, because its records are all verified. Raises OSError;
    NotFoundError, LocalProtocolError; the errors of `replay`, of the client and of reading a chain.
    """
    if not is_url(target):
        found = replay_file(journal_file(target), replay.take, progress)
        return _finished(found, replay, on_damaged)
    return run_interruptible(functools.partial(_replay_url, target, replay, token, progress, on_damaged))


async def _replay_url(
    url: str, replay: FilesReplay, token: bytes, progress: Progress, on_damaged: OnDamaged
) -> InspectionOutcome:
    async with open_target(url, token) as (store, directory, name, size):
        if size is not None:
            found = await inspect_object(store, directory, name, size, _taking(replay), progress)
            return _finished(found, replay, on_damaged)
        whole = WholeState(None)
        if on_damaged == "previous":
            whole = await newest_whole(store, directory, name, generation=store.record.generation)
        await replay_chain(replay, store, directory, name, at=whole.position, progress=progress)
        return InspectionOutcome(url, "chain", left_out=whole.damage)


def _finished(outcome: InspectionOutcome, replay: FilesReplay, on_damaged: OnDamaged) -> InspectionOutcome:
    """Return the outcome. Raises StopNotFoundError if there is no fault and the stop was not found."""
    if outcome.fault is None:
        replay.finish()
    elif on_damaged == "previous":
        outcome.left_out = f"the bytes from offset {replay.end} on are left out because of damage"
    return outcome


def _taking(replay: FilesReplay) -> Callable[[list[Located]], bool]:
    return lambda located: replay.take((one.end, one.record) for one in located)
