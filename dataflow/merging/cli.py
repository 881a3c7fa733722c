"""`dos output`: print the merged output of replicas at several sites.

What needs pyarrow is in `printing.py`, which is imported when the command runs.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from checkpoint.cli.retention import KINDS, add_drop_command, add_retention_commands
from dataflow.errors import NoMarksError, ReplicasDifferError
from dos_client.cli.kit import REFUSED, Call, Ends, command, fail

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Print the merged output of replicas at several sites. Show who reads the output log of a region,"
    " and set what is deleted of it."
    "\n\nExample: dos output consumers dos://h1,h2,h3 shop sold"
    "\n\nExample: dos output merged purdue=dos://p1,p2,p3 osu=dos://o1,o2,o3 --region shop.sold --sink out"
    " --schema 'at timestamp, n bigint'",
)


@command(app, "merged", progress=False, ends=Ends((ReplicasDifferError, NoMarksError)))
async def merged(
    call: Call,
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
    from dataflow.merging.printing import print_merged

    options: dict[str, Any] = {
        "time": [column.strip() for column in time.split(",")],
        "after": _token_in(after_file),
        "on_missing": "accept" if accept_loss else "wait",
        "token": call.token,
    }
    await print_merged(
        _places(sites), region, sink, schema, options,
        limit=limit, after_file=after_file, only_status=status, as_json=call.as_json,
    )  # fmt: skip


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


add_retention_commands(app, KINDS["output"])
add_drop_command(app)
