"""`dos region`: the group of commands, and `dos region status`.

A command writes a request into the region's store and reads the answers (`requests/client.py`), so it needs
neither Spark nor a connection to the driver. Commands that only send a request are rows of a table
(`requests.py`); the others are in files of their names.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import typer

from checkpoint import limits
from checkpoint.chains.manifest_reading import ManifestView
from checkpoint.cli import (
    backup,
    delete,
    fork,
    listing,
    replace,
    restore,
    restore_backup,
    savepoints,
    scale,
    trim,
)
from checkpoint.cli.arguments import RegionName, Timeout, in_store
from checkpoint.cli.requests import add_request_commands
from checkpoint.core.dropped import dropped_text
from checkpoint.core.progress import prometheus_targets, recovery_text, under_way_text
from checkpoint.core.request_records import Answer
from checkpoint.requests.reading import RegionReader, RegionReading
from checkpoint.runtime import wall_time_ms
from dos_client import Store
from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    AsJson,
    StoreUrl,
    TokenFile,
    ago_text,
    clock_text,
    count_text,
    fail,
    fill_help,
    print_json,
    print_table,
    print_text,
    seconds_text,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Control a running region: its status, a checkpoint, a reset, a pause, its number of workers or its"
    " end, from any machine that reaches its store."
    "\n\nExample: dos region status dos://h1,h2,h3 wordcount",
)


@app.command()
def status(
    url: StoreUrl,
    name: RegionName,
    ask: Annotated[
        bool, typer.Option(help="Ask the driver; --no-ask shows the manifest only, and writes nothing.")
    ] = True,
    timeout: Timeout = limits.request_patience_s,
    targets: Annotated[
        bool,
        typer.Option(
            "--prometheus-targets",
            help="Print only where its processes serve figures, as JSON for file_sd_configs of Prometheus.",
        ),
    ] = False,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Show the status of a region as its driver reports it, and the last checkpoint in its manifest.

    The request and the driver's answer are small records in the store. If no driver answers, the manifest
    still shows which checkpoint was committed last, when and by which driver, and the last report of a driver
    in which state it was, for example why it has FAILED.

    Example: dos region status dos://h1,h2,h3 wordcount

    Example: dos region status dos://h1,h2,h3 wordcount --no-ask --json

    Example: dos region status dos://h1,h2,h3 wordcount --prometheus-targets > targets.json

    Exit codes: 0 a driver answered (or --no-ask), 1 no such region, or no answer, 2 usage, 3 the store
    cannot be reached.
    """

    async def work(store: Store) -> RegionReading:
        return await RegionReader(store, name).read(ask=ask, patience_s=timeout)

    if targets and not ask:
        fail("--prometheus-targets asks the driver: leave out --no-ask", REFUSED)
    reading = in_store(url, token_file, work)
    view, reply = reading.view, reading.reply
    if targets:
        if reply is not None and reply.answer.verdict == "done":
            print_json(prometheus_targets(view.region, reply.answer.result))
    elif as_json:
        print_json(reading.as_json())
    else:
        _print_manifest(view)
        if reply is not None:
            _print_status(reply.answer, "reported")
        elif (last := reading.last_report) is not None:
            ago = ago_text(last.wall_time_ms, wall_time_ms())
            _print_status(last, f"last reported {ago} ({clock_text(last.wall_time_ms)})")
    if reading.silence:
        fail(f"{reading.silence}. {_hint(reading)}", NEGATIVE)
    if reply is not None and reply.answer.verdict != "done":
        fail(f"{reply.answer.verdict}: {reply.answer.reason}", NEGATIVE)


def _print_manifest(view: ManifestView) -> None:
    _print_last_checkpoint(view)
    if view.unproved:
        print_text(view.unproved)


def _print_last_checkpoint(view: ManifestView) -> None:
    last = view.last
    if last is None:
        none = "no checkpoint is proved committed" if view.unproved else "no checkpoint committed yet"
        print(f"region {view.region}: {none}; claimed with epoch {view.epoch}")
        return
    by = f" by {last.driver}" if last.driver else ""
    print_text(
        f"region {view.region}: last checkpoint {last.number}{' (final)' if last.final else ''} at step"
        f" {last.step},"
        f" {ago_text(last.wall_time_ms, wall_time_ms())} ({clock_text(last.wall_time_ms)}){by},"
        f" incarnation {last.incarnation}; claimed with epoch {view.epoch}"
    )


def _hint(reading: RegionReading) -> str:
    """Return what a missing answer may mean, and what to do."""
    last = reading.view.last
    if last is not None and last.final:
        return "Its last checkpoint is final: all input was read, and no driver needs to run"
    if reading.ended:
        return "Start it again with `run`: it continues from its last checkpoint, unless it fails again"
    if last is not None and wall_time_ms() - last.wall_time_ms < 1000 * limits.request_patience_s:
        return (
            "Its last checkpoint is recent, so a driver may be running that accepts no requests"
            " (answer_requests=False), is delayed, or has just ended"
        )
    return (
        "Start it again with `run`: it continues from its last checkpoint. If it ended as FAILED, the log of"
        " the driver has the reason and the remedy, without which it may fail again"
    )


def _notes(found: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each thing that is not always so."""
    if change := found.get("scaling"):
        yield _change_text(change, len(found.get("workers", [])))
    if policy := found.get("autoscale"):
        last = f"; last decision: {policy['lastDecision']}" if policy["lastDecision"] else ""
        yield f"autoscale {policy['minimum']} to {policy['maximum']} workers: {policy['reason']}{last}"
    if lost := dropped_text(found.get("rowsDropped", {})):
        yield lost
    yield from map(event_time_text, found.get("eventTimes", ()))
    if under_way := found.get("underWay"):
        yield under_way_text(under_way)
    if recovery := found.get("recovery"):
        yield recovery_text(recovery)
    if fell_back := found.get("fellBack"):
        yield fell_back
    if access := found.get("accessProblem"):
        yield f"the token or a certificate must be replaced: {access}"
    if standbys := found.get("standbys"):
        yield f"stand-bys that wait: {standbys}"
    if address := found.get("metrics"):
        yield f"figures: http://{address}/metrics; of the workers: --prometheus-targets"


def event_time_text(found: Mapping[str, Any]) -> str:
    """Return one line about how far an event time is, of its JSON."""
    time_us = found["watermarkMicroseconds"]
    at = "has not begun" if time_us is None else f"is at {_utc_text(time_us)}"
    held = f", held by worker {found['worker']}, {found['heldBy']}" if found["heldBy"] else ""
    return f"event time of {found['name']!r} {at}{held}"


def _utc_text(time_us: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=time_us)).isoformat()
    except OverflowError:  # outside of the years 1 to 9999
        return f"{time_us} us"


def _print_status(answer: Answer, reported: str) -> None:
    found = answer.result
    reason = f" ({found['reason']})" if found.get("reason") else ""
    print_text(
        f"{found.get('state')}{reason}, {reported} by driver {answer.driver}:"
        f" incarnation {answer.incarnation}, {found.get('checkpointsCommitted')} checkpoints,"
        f" {found.get('resetAttempts')} reset attempts spent"
    )
    for line in _notes(found):
        print_text(line)
    workers = found.get("workers", [])
    versions = {one.get("version", "") for one in workers}
    if len(versions) > 1:
        text = ", ".join(f"worker {one['worker']} {one['version']}" for one in workers)
        print_text(f"workers run different versions: {text}")
    print_table(
        (
            "#worker",
            "state",
            "#attempt",
            "host",
            "#pid",
            "#step",
            "#rows in",
            "#rows out",
            "#lag",
            "#backlog",
            "last error",
        ),
        [
            (
                one["worker"],
                one["state"],
                one["attempt"],
                one["host"],
                one["pid"],
                one["step"],
                one["rowsIn"],
                one["rowsOut"],
                count_text(one["lagBytes"]),
                "?" if one.get("backlogBytes") is None else count_text(one["backlogBytes"]),
                one["error"].splitlines()[-1] if one["error"] else "",
            )
            for one in workers
        ],
    )
    progress = found.get("lastProgress")
    if progress:
        rate = progress["inputRowsPerSecond"]
        print(
            f"checkpoint {progress['checkpoint']}: {progress['numInputRows']} rows in,"
            f" {progress['numOutputRows']} out{'' if rate is None else f', {rate:.0f} rows/s in'};"
            f" {1000 * progress['checkpointSeconds']:.0f} ms: {seconds_text(progress['phaseSeconds'])}"
        )
    for one in found.get("resets", [])[-3:]:
        how = f"in {one['seconds']:.1f} s, incarnation {one['incarnation']}: {one['reason']}"
        what = f"worker {one['worker']} was taken over from" if one.get("term") else "reset to"
        print_text(f"{what} checkpoint {one['checkpoint']} {how}")


def _change_text(change: dict[str, Any], workers: int) -> str:
    """Return one line about a change of the workers that is under way."""
    if change["replaces"] is not None:
        text = f"replacing worker {change['replaces']} for {change['seconds']:.1f} s: {change['phase']}"
    else:
        text = (
            f"going from {workers} to {change['workers']} workers for {change['seconds']:.1f} s:"
            f" {change['phase']}, {count_text(change['copiedBytes'])} of"
            f" {count_text(change['totalBytes'])} copied"
        )
    return f"{text}; it will pause for about {change['pauseSeconds'] or 0.0:.1f} s"


app.command("ls")(listing.ls_regions)
add_request_commands(app)
app.command()(savepoints.savepoint)
app.command("savepoints")(savepoints.list_savepoints)
app.command()(restore.restore)
app.command()(fork.fork)
app.command()(delete.delete)
app.command()(backup.backup)
app.command()(backup.backups)
app.command("restore-backup")(restore_backup.restore_from_backup)
app.command()(scale.scale)
app.command()(replace.replace)
app.command()(trim.trim)
fill_help(app)
