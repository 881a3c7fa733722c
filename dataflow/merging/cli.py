"""`dos output`: print the merged output of replicas at several sites; show who reads an output, and what is
deleted.

The commands on retention are in `checkpoint/cli/retention.py`.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
import trio
import typer

from checkpoint.cli.retention import KINDS, add_retention_commands
from dataflow.core.duplicate_filter import BEFORE_ALL, Missing
from dataflow.core.event_time import END
from dataflow.errors import NoMarksError, ReplicasDifferError
from dataflow.merged import MergedOutput, read_merged
from dataflow.merging.merge import StreamStatus
from dataflow.schema import parse_schema
from dataflow.sinks.tsv import check_columns, tsv_of
from dos_client.cli.kit import (
    REFUSED,
    AsJson,
    TokenFile,
    clock_text,
    fail,
    fill_help,
    print_json,
    print_table,
    read_token,
    run,
    warn,
)
from dos_client.tasks import background_tasks

_NEGATIVE: Final = (ReplicasDifferError, NoMarksError)
_PATIENCE_S: Final = 3.0
"""So long the status reads; after that, the streams whose rows are not read are named."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Print the merged output of replicas at several sites. Show who reads the output log of a region,"
    " and set what is deleted of it."
    "\n\nExample: dos output consumers dos://h1,h2,h3 shop sold"
    "\n\nExample: dos output merged purdue=dos://p1,p2,p3 osu=dos://o1,o2,o3 --region shop.sold --sink out"
    " --schema 'at timestamp, n bigint'",
)


@app.command()
def merged(
    sites: Annotated[
        list[str],
        typer.Argument(help="Each site with its store: SITE=dos://HOST:PORT,...", metavar="SITE=URL..."),
    ],
    region: Annotated[str, typer.Option(help="The region; it has this name at each site.", metavar="REGION")],
    sink: Annotated[str, typer.Option(help="Its LogSink, which has a time.", metavar="SINK")],
    schema: Annotated[
        str, typer.Option(help="Columns and types, such as 'at timestamp, n bigint'.", metavar="COLUMNS")
    ],
    time: Annotated[
        str,
        typer.Option(
            help="The time column of the sink; several, separated by commas, of which the latest counts."
        ),
    ] = "at",
    after_file: Annotated[
        Path | None,
        typer.Option(
            help="Continue after the token in FILE, if FILE exists, and write the new token to it after each"
            " batch that was printed.",
            metavar="FILE",
            dir_okay=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="End after N rows. With --after-file: after the batch with the Nth row. Default: end when"
            " all replicas have ended.",
            metavar="N",
        ),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Continue if no replica that can be reached has all rows."),
    ] = False,
    status: Annotated[
        bool,
        typer.Option("--status", help="Print no rows: read for three seconds, then show each stream."),
    ] = False,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Print the rows of an output that replicas of a region write at several sites: each row once, from the
    replica that is first, as it arrives.

    A line for each row, with the columns separated by tabs, or as JSON. If the command is killed after it
    printed a batch and before it wrote the token, the batch is printed again: a program that needs each row
    exactly once uses dataflow.read_merged.

    Example: dos output merged purdue=dos://p1,p2,p3 osu=dos://o1,o2,o3 --region shop.sold --sink out --schema
    'at timestamp, n bigint'

    Example: dos output merged purdue=dos://p1 osu=dos://o1 --region shop.sold --sink out --schema 'at
    timestamp, n bigint' --status

    Exit codes: 0 all rows were printed, or N, or the status; 1 the replicas differ, the sink has no time, or
    the token is damaged; 2 usage, or the token is of another output; 130 interrupted.
    """
    options: dict[str, Any] = {
        "time": [column.strip() for column in time.split(",")],
        "after": _token_in(after_file),
        "on_missing": "accept" if accept_loss else "wait",
        "token": read_token(token_file),
    }
    places = _places(sites)

    async def work() -> None:
        if not (as_json or status):
            check_columns(parse_schema(schema))
        async with read_merged(places, region, sink, schema, **options) as output:
            if status:
                await _show_status(output, as_json=as_json)
            else:
                await _print_rows(output, limit, after_file, as_json=as_json)

    run(work, negative=_NEGATIVE)


def _places(sites: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in sites:
        site, equals, url = one.partition("=")
        if not equals or not site or site in found:
            fail(f"pass each site once, as SITE=URL, for example osu=dos://o1,o2,o3; not {one!r}", REFUSED)
        found[site] = url
    return found


def _token_in(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except FileNotFoundError:
        return None


def _write_token(path: Path, token: bytes) -> None:
    """Replace the file: a crash leaves the old token or the new one."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(token)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


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
                _write_token(after_file, batch.token)
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


add_retention_commands(app, KINDS["output"])
fill_help(app)
