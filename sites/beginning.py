"""Where a replica begins: with its own last checkpoint, or with its inputs, if everything after that is
retained. Otherwise with a checkpoint of a replica that runs, which is copied into the store of its site.

A replica may be new, or its site may have been away, or have lost its disks, for longer than the entry store
and other replicas retain rows. It cannot continue then with what it has.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from checkpoint import Checkpoint
from checkpoint.chains.manifest_log import read_manifest
from checkpoint.errors import NoRegionError
from checkpoint.maintenance.backup_restoring import copy_region
from checkpoint.maintenance.retention import InputRows, Retention
from dataflow.merging.merge import is_whole_above
from dataflow.merging.recording import passed_mark
from dataflow.sources.stored import InputSource, MergedLogSource, handle_of
from dos_client import Store, open_store
from dos_protocol.errors import DosError
from sites.core.site_work import ReplicaContext
from sites.errors import CannotBeginError

logger: Final = logging.getLogger("dos.sites")


async def prepare(
    store: Store,
    context: ReplicaContext,
    sources: Mapping[str, object],
    copies: Sequence[tuple[str, str]],
    *,
    begins_with_copy: bool,
    token: bytes,
) -> None:
    """Copy a checkpoint of another replica into the store of the site, if this one cannot begin without it.

    sources: name -> description. copies: (replica, URL of its store) of those that run; the first one that
    answers is copied. begins_with_copy: copy one too if this replica has no checkpoint. Raises
    CannotBeginError if none can be copied; then the replica is as it was, or has nothing.
    """
    checkpoint = await _last_checkpoint(store, context.name)
    gone = await _what_is_gone(store, context, sources, checkpoint, token)
    if gone is None and (checkpoint is not None or not begins_with_copy):
        return
    why = gone or "it has no checkpoint"
    reasons = []
    for replica, url in copies:
        try:
            await copy_region(url, context.store, context.name, f"{context.application}.copies", token=token)
        except DosError as error:
            reasons.append(f"{replica}: {error}")
        else:
            logger.info("%s begins with a checkpoint of %s: %s", context.replica, replica, why)
            return
    raise CannotBeginError(
        f"{context.replica} begins with a checkpoint of another replica ({why}), and none can be copied:"
        f" {'; '.join(reasons) or 'no other one is deployed'}"
    )


async def _last_checkpoint(store: Store, region: str) -> Checkpoint | None:
    try:
        return (await read_manifest(store, region)).last
    except NoRegionError:
        return None


async def _what_is_gone(
    store: Store,
    context: ReplicaContext,
    sources: Mapping[str, object],
    checkpoint: Checkpoint | None,
    token: bytes,
) -> str | None:
    """Return which rows the replica needs that are not retained; None if there are none."""
    for name, source in sources.items():
        found = None
        if isinstance(source, InputSource):
            found = await _input_that_is_gone(name, source, context, checkpoint, token)
        elif isinstance(source, MergedLogSource):
            found = await _rows_that_are_gone(store, name, source, context, token)
        if found is not None:
            return found
    return None


async def _input_that_is_gone(
    name: str, source: InputSource, context: ReplicaContext, checkpoint: Checkpoint | None, token: bytes
) -> str | None:
    application = source.application or context.name
    url = source.store_url or context.store
    try:
        async with open_store(url, token=token, client="dos sites") as entry:
            rows = InputRows(entry, application, source.name)
            for one in await Retention(entry, rows).trimmed_of(name, checkpoint):
                where = f"producer {one.split!r} of input {source.name!r}"
                return f"{where} is retained from {one.begin} on, and needed from {one.needs} on"
    except DosError as error:  # the region waits for it
        logger.info("what %s retains is not known now: %s", url, error)
    return None


async def _rows_that_are_gone(
    store: Store, name: str, source: MergedLogSource, context: ReplicaContext, token: bytes
) -> str | None:
    mark = await passed_mark(store, context.name, handle_of(name))
    found = []
    for place in source.order.places:
        try:
            async with open_store(place.url, token=token, client="dos sites") as sender:
                whole = await is_whole_above(sender, place, mark)
        except DosError as error:
            logger.info("what %s retains of %s is not known now: %s", place.site, place.region, error)
            continue
        if whole:
            return None
        found += [place.site] if whole is not None else []
    return f"none of {', '.join(found)} retains all rows of {source.region}" if found else None
