"""Prints what `dos output merged` reads: rows as they arrive, or the status of the streams."""

import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import trio

from dataflow.core.duplicate_filter import BEFORE_ALL, Missing
from dataflow.core.event_time import END
from dataflow.merged import MergedOutput, read_merged
from dataflow.merging.merge import StreamStatus
from dataflow.schema import parse_schema
from dataflow.sinks.files import check_text_columns, tsv_of
from dos_client.cli.kit import clock_text, print_json, print_table, warn
from dos_client.tasks import background_tasks
from dos_tls import replace_durably

_PATIENCE_S: Final = 3.0
"""So long the status reads; after that, the streams whose rows are not read are named."""


async def print_merged(
    places: dict[str, str],
    region: str,
    sink: str,
    schema: str,
    options: dict[str, Any],
    *,
    limit: int | None,
    after_file: Path | None,
    only_status: bool,
    as_json: bool,
) -> None:
    """Print the rows of a merged output until its end or the limit; with `only_status`, the streams. options,
    errors: of `read_merged`. after_file: where the token of the last printed batch is written.
    """
    if not (as_json or only_status):
        check_text_columns(parse_schema(schema))
    async with read_merged(places, region, sink, schema, **options) as output:
        if only_status:
            await _show_status(output, as_json=as_json)
        else:
            await _print_rows(output, limit, after_file, as_json=as_json)


async def _print_rows(
    output: MergedOutput, limit: int | None, after_file: Path | None, *, as_json: bool
) -> None:
    left = sys.maxsize if limit is None else limit
    async with background_tasks() as nursery:
        nursery.start_soon(_warn_of_streams, output)
        async for batch in output:
            if batch.table is not None:
                rows = batch.table if after_file else batch.table.slice(0, left)
                _print_batch(rows, as_json=as_json)
                left -= rows.num_rows
            if after_file is not None:
                replace_durably(after_file, batch.token)
            if left <= 0:
                return


def _print_batch(rows: pa.Table, *, as_json: bool) -> None:
    if as_json:
        for row in rows.to_pylist():
            sys.stdout.buffer.write(msgspec.json.encode(row) + b"\n")
    else:
        for batch in rows.to_batches():
            sys.stdout.buffer.write(tsv_of(batch))
    sys.stdout.buffer.flush()


async def _warn_of_streams(output: MergedOutput) -> None:
    """Name the streams that are not read, once they had time to begin, and what none of them has."""
    await trio.sleep(_PATIENCE_S)
    for one in output.status():
        if one.state != "reading":
            warn(f"{one.site} is {one.state}{f': {one.reason}' if one.reason else ''}")
    if (missing := output.missing()) is not None:
        warn(f"no replica that is read has all rows: {_range_text(missing)}; --accept-loss continues")


async def _show_status(output: MergedOutput, *, as_json: bool) -> None:
    with trio.move_on_after(_PATIENCE_S):
        async for _ in output:
            pass
        await trio.sleep_forever()  # another replica may be behind
    streams, missing = output.status(), output.missing()
    if as_json:
        shown = None if missing is None else {"aboveUs": _known(missing.above), "uptoUs": missing.upto}
        print_json({"streams": [_stream_json(one) for one in streams], "missing": shown})
        return
    print_table(
        ["site", "state", "#first", "whole", "mark", "reason"],
        [
            [one.site, one.state, one.first, "yes" if one.whole else "no", _mark_text(one.mark), one.reason]
            for one in streams
        ],
    )
    if missing is not None:
        print(f"no replica that is read has all rows: {_range_text(missing)}")


def _stream_json(one: StreamStatus) -> dict[str, Any]:
    return {
        "site": one.site,
        "state": one.state,
        "reason": one.reason,
        "markUs": _known(one.mark),
        "first": one.first,
        "whole": one.whole,
    }


def _known(mark: int) -> int | None:
    return None if mark == BEFORE_ALL else mark


def _mark_text(mark: int) -> str:
    if mark == END:
        return "end"
    return "" if mark == BEFORE_ALL else clock_text(mark // 1000)


def _range_text(missing: Missing) -> str:
    begin = _mark_text(missing.above) or "the beginning"
    return f"what follows {begin}, up to {_mark_text(missing.upto)}"
