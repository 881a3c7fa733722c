"""`dos bench`: measures a store, and prints a table.

| exit code | meaning |
|---|---|
| 0 | measured, everything compared, everything deleted |
| 1 | wrong bytes were read (no figures are printed), or something that was written is left |
| 2 | wrong usage, or refused: the store is in use |
| 3 | the store cannot be reached, or writers waited for it too long |
| 130 | interrupted: what was written is deleted |
"""

import os
import platform
import shlex
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated, Any, Final

import trio
import typer

from dos_bench import BenchRefusedError
from dos_bench.core.figures import LINK_BYTES, P99_SAMPLES_MIN, SAMPLES_MIN, BenchRow
from dos_bench.measuring import WATCH_S, Bench, BenchRequest, BenchResult
from dos_bench.visiting import PREFIX, clean, directory_of, refuse_if_in_use, refuse_without_rights, visited
from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    Call,
    ProgressDisplay,
    Report,
    StoreUrl,
    check_store_url,
    command,
    count_text,
    fail,
    leaves,
    parsed_option,
    parsed_url,
    print_table,
    warn,
)
from dos_client.urls import DosUrl
from dos_protocol.arguments import parse_bytes
from dos_protocol.errors import CorruptDataError, CorruptError, DosError
from dos_protocol.limits import MIB

SECONDS_MIN: Final = 0.5
SECONDS_MAX: Final = 3_600.0
BYTES_MIN: Final = 4 * MIB
RECORD_BYTES_MAX: Final = 16 * MIB
WRITERS_MAX: Final = 1_000
COLUMNS: Final = (
    "what",
    "#record",
    "#writers",
    "#samples",
    "#p50 ms",
    "#p99 ms",
    "#max ms",
    "#per s",
    "#MB/s",
)

app = typer.Typer(pretty_exceptions_enable=False)


@command(app, "bench")
async def bench(
    call: Call,
    url: StoreUrl,
    seconds: Annotated[
        float,
        typer.Option(
            min=SECONDS_MIN,
            max=SECONDS_MAX,
            help="Time of all measurements together. Reading everything back, and deleting it, follow.",
        ),
    ] = 30.0,
    size: Annotated[
        str, typer.Option("--bytes", metavar="SIZE", help="Append at most this much, on each member.")
    ] = "256MiB",
    sizes: Annotated[
        str, typer.Option(metavar="SIZE,...", help="Sizes of the appends that are waited for.")
    ] = "100B,1KiB,64KiB",
    writers: Annotated[
        str, typer.Option(metavar="N,...", help="How many writers append at the same time.")
    ] = "1,16,64",
    prefix: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Write only in directories NAME.*: for tokens and quotas of a prefix."
        ),
    ] = PREFIX,
    in_use: Annotated[
        bool, typer.Option("--in-use", help="Measure even if the store is in use; its programs get slower.")
    ] = False,
    only_clean: Annotated[
        bool, typer.Option("--clean", help="Measure nothing: delete what an earlier bench left.")
    ] = False,
) -> Report:
    """Measure a store: the latency of appends by size and number of writers, throughput, reads, and the
    recovery of a journal. Everything that was written is read back, compared, and deleted.

    Each append is on stable storage of a quorum before it counts. One process has all writers, so many small
    appends measure its processor, too. What is read was just written: servers have it in memory.

    A store in use is refused: figures would include the work of its programs, and slow them down. The bench
    writes in directories dos-bench.* only, which stay, empty. Wrong bytes end it without any figure, and are
    kept.

    Example: dos bench dos://h1,h2,h3

    Example: dos bench dos://h1,h2,h3 --seconds 120 --bytes 4GiB --sizes 1KiB --writers 1,100

    Example: dos bench dos://h1,h2,h3 --json | jq '.rows[] | {what, p99_ms}'

    Exit codes: 0 measured, compared and deleted; 1 wrong bytes, or something that was written is left; 2
    usage, or the store is in use; 3 the store cannot be reached, or stalls; 130 interrupted, and deleted.
    """
    check_store_url(url)
    request = _request(prefix, seconds, size, sizes, writers)
    again = shlex.join(
        ["dos", "bench", url, "--clean"]
        + (["--prefix", prefix] if prefix != PREFIX else [])
        + (["--token-file", str(call.token_file)] if call.token_file is not None else [])
    )
    parsed, token, display = parsed_url(url), call.token, call.progress()
    if only_clean:
        display.say("deleting what an earlier bench left")
        left = await clean(parsed, token, prefix)
        return Report({"left": left}, "" if left else "nothing of a bench is left", *_end(left, again))
    display.say(f"waits for the store {url}")
    begun = False
    try:
        async with visited(parsed, token) as store:
            if not in_use:
                display.say("watching whether the store is in use")
                await refuse_if_in_use(store)
            await refuse_without_rights(store, prefix)
            if left := await clean(parsed, token, prefix):
                raise BenchRefusedError(_left_text(left, again))
            begun = True
            result = await _measured(Bench(store, request), display)
    except BaseException as error:
        if any(isinstance(one, CorruptDataError | CorruptError) for one in leaves(error)):
            warn(f"what was written stays in {prefix}.* as evidence, until the next bench or: {again}")
        elif begun:
            warn(f"deleting what was written; if that is interrupted, run: {again}")
            if left := await _cleaned(parsed, token, prefix):
                warn(_left_text(left, again))
        raise
    display.say("deleting what was written")
    left = await _cleaned(parsed, token, prefix)
    value = {**result.as_json(), "url": url, "client": _client(), "left": left}
    return Report(value, lambda: _print(value, result), *_end(left, again))


async def _cleaned(parsed: DosUrl, token: bytes, prefix: str) -> list[str]:
    """Delete what was written, also after an interrupt. Returns what is left."""
    with trio.CancelScope(shield=True):
        return await clean(parsed, token, prefix)
    raise AssertionError("unreachable: nothing cancels the scope")


def _request(prefix: str, seconds: float, size: str, sizes: str, writers: str) -> BenchRequest:
    """Return the request of these options. Ends the command for one that is not valid."""
    total = int(parsed_option(parse_bytes, size))
    records = [int(parsed_option(parse_bytes, one)) for one in sizes.split(",")]
    counts = [int(one) if one.isascii() and one.isdigit() else 0 for one in writers.split(",")]
    if total < BYTES_MIN:
        fail(f"--bytes {size} is too little to measure: pass at least {count_text(BYTES_MIN)}", REFUSED)
    if not all(LINK_BYTES <= one <= RECORD_BYTES_MAX for one in records):
        most = count_text(RECORD_BYTES_MAX)
        fail(
            f"--sizes {sizes}: a record has {LINK_BYTES} B to {most}, as its first bytes are a digest",
            REFUSED,
        )
    if not all(1 <= one <= WRITERS_MAX for one in counts):
        fail(f"--writers {writers}: pass numbers from 1 to {WRITERS_MAX}, such as 1,16", REFUSED)
    try:
        directory_of(prefix, None)
    except DosError as error:
        fail(f"--prefix: {error}", REFUSED)
    return BenchRequest(prefix, sorted(set(records)), sorted(set(counts)), seconds, total)


async def _measured(bench: Bench, display: ProgressDisplay) -> BenchResult:
    results = list[BenchResult]()

    async def show() -> None:
        while True:
            display.show(bench.phase, bench.done, bench.total, bench.phase)
            await trio.sleep(WATCH_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(show)
        results.append(await bench.run())
        nursery.cancel_scope.cancel()
    return results[0]


def _client() -> dict[str, Any]:
    return {
        "host": platform.node(),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "dos": metadata.version("dos-journal"),
    }


def _left_text(left: Sequence[str], again: str) -> str:
    return f"not everything of a bench is deleted: {'; '.join(left)}. When that is corrected, run: {again}"


def _end(left: Sequence[str], again: str) -> tuple[int, str]:
    """Return the exit code, and the problem that is its reason."""
    return (NEGATIVE, _left_text(left, again)) if left else (0, "")


def _print(value: dict[str, Any], result: BenchResult) -> None:
    conditions, client = value["conditions"], value["client"]
    members = conditions["members"]
    for one in members:
        print(
            f"{one['address']}: round trip {one['round_trip_p50_ms']:.2f} ms"
            f" (median of {one['round_trips']}; minimum {one['round_trip_min_ms']:.2f})"
        )
    secure = "TLS" if conditions["tls"] else "no TLS"
    print(
        f"an append is durable when it is synced on {conditions['acknowledging']} of {len(members)};"
        f" {secure}; client {client['host']}, {client['processors']} processors, dos {client['dos']},"
        f" Python {client['python']}"
    )
    if away := conditions["unavailable_meanwhile"]:
        print(f"unavailable for a time: {', '.join(away)}: the figures include that")
    print(f"the journal that is recovered has {count_text(conditions['journal_bytes'])} of records")
    print_table(COLUMNS, [_cells(row) for row in result.rows])
    print(
        f"read back and compared: {result.records:,} records, {count_text(result.bytes)}: no difference\n"
        f"digest of them all: {result.digest}\n"
        "each row has a warm-up before it, which does not count; a rate is of all writers of the row together"
    )
    if any(row.writers and row.samples < SAMPLES_MIN for row in result.rows):
        print(
            f"-: fewer than {SAMPLES_MIN} samples, for p99 {P99_SAMPLES_MIN}: pass more --seconds or --bytes"
        )


def _cells(row: BenchRow) -> list[str | None]:
    size = None if row.record_bytes is None else count_text(row.record_bytes).replace(".0 ", " ")
    rate = (
        None if row.bytes_per_s is None else f"{row.bytes_per_s / 1e6:,.{2 if row.bytes_per_s < 1e7 else 0}f}"
    )
    per_s = None if row.per_s is None else f"{row.per_s:,.0f}"
    times = [None if one is None else f"{one:,.2f}" for one in (row.p50_ms, row.p99_ms, row.max_ms)]
    writers = None if row.writers is None else str(row.writers)
    return [row.what, size, writers, str(row.samples), *times, per_s, rate]
