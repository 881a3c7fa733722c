"""What is stored: directories, objects, the records of journals, the state of regions."""

import json
from contextlib import aclosing
from typing import Any, Final

import trio

from checkpoint import Checkpoint
from checkpoint.chains.manifest_reading import read_manifest
from dos_client import Store
from dos_client.cli.objects import object_rows
from dos_protocol.errors import LocalProtocolError
from dos_ui.core.directories import directory_row
from journal import parse_segment_name
from journal.inspecting import inspect_url
from journal.showing import json_page

RECORDS_MAX: Final = 200
ROWS_MAX: Final = 500
Row = dict[str, Any]


async def directory_rows(store: Store) -> list[Row]:
    """Return each directory of a store with what it belongs to. Raises QuorumUnavailableError."""
    return [directory_row(name) for name in sorted(await store.list_directories())]


async def objects_of(store: Store, directory: str) -> list[Row]:
    """Return the objects of a directory, as `dos ls --json` prints them, each with the chain of which it is a
    segment ("" for other objects). Raises QuorumUnavailableError.
    """
    return [row | {"chain": _chain_of(row["name"])} for row in await object_rows(store, directory)]


def _chain_of(name: str) -> str:
    segment = parse_segment_name(name)
    return "" if segment is None else segment.chain


async def records_of(
    url: str, token: bytes, *, pattern: str = "", begin: int = 0, whole: bool = False
) -> Row:
    """Return the first records of a chain or an object that match a regular expression, as `dos journal grep
    --json` prints them, from a logical offset on. `next`: from where to continue, None at the end. whole:
    only one record, with its strings in full.

    Raises LocalProtocolError for an invalid pattern, and what `inspect_url` raises.
    """
    count_max = 1 if whole else RECORDS_MAX
    try:
        consume, found = json_page(pattern, begin=begin, count_max=count_max, full=whole)
    except ValueError as error:
        raise LocalProtocolError(str(error), remedy="correct the regular expression") from error
    outcome = await inspect_url(url, token, consume, lambda *_: None, history=True)
    records = [json.loads(line) for line in found]
    return {
        "kind": outcome.kind,
        "records": records,
        "next": records[-1]["end"] if len(records) == count_max else None,
        "fault": "" if outcome.fault is None else str(outcome.fault),
        "notes": [text for text in (outcome.gone, *outcome.not_verified) if text],
    }


async def state_of(
    store: Store, region: str, *, checkpoint: int = 0, table: str = "", search: str = ""
) -> Row:
    """Return the tables of a region's state at a checkpoint (0: the last), and rows of one of them that
    contain a text.

    Needs the extra `dataflow`. Raises CheckpointReleasedError, MissingExtraError, and what reading raises.
    """
    from checkpoint.chains.state_blocks import StateFold  # needs the extra `dataflow`, for this page only

    view = await read_manifest(store, region)
    found = view.restorable(checkpoint) if checkpoint else view.last
    if found is None:
        return {"checkpoint": 0, "tables": [], "columns": [], "rows": [], "more": False}
    tables = dict[str, int]()
    columns, rows = list[str](), list[list[str]]()
    for worker in sorted(found.workers):
        fold = await _folded(store, region, worker, found, StateFold())
        for name in fold.operators():
            block = fold.take(name)
            tables[name] = tables.get(name, 0) + (0 if block is None else block.num_rows)
            if name == table and block is not None:
                columns = ["worker", *(one for one in block.schema.names if one not in _HIDDEN)]
                rows += await trio.to_thread.run_sync(_matching, block, worker, search)
    return {
        "checkpoint": found.number,
        "tables": [{"table": name, "rows": count} for name, count in sorted(tables.items())],
        "columns": columns,
        "rows": rows[:ROWS_MAX],
        "more": len(rows) > ROWS_MAX,
    }


_HIDDEN: Final = ("_hash", "_deleted")


async def _folded(store: Store, region: str, worker: int, checkpoint: Checkpoint, fold: Any) -> Any:
    from checkpoint.chains.state_reading import blocks_at

    async with aclosing(blocks_at(store, region, worker, checkpoint.workers[worker].state)) as blocks:
        async for block in blocks:
            fold.add(block.operator, await trio.to_thread.run_sync(block.decoded))
    return fold


def _matching(block: Any, worker: int, search: str) -> list[list[str]]:
    """Return the rows of a block that contain a text in any column, as text; one more than are shown."""
    shown = [str(name) for name in block.schema.names if name not in _HIDDEN]
    found = list[list[str]]()
    for row in block.to_pylist():
        texts = [_text(row[name]) for name in shown]
        if any(search in text for text in texts):
            found.append([str(worker), *texts])
        if len(found) > ROWS_MAX:
            break
    return found


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
