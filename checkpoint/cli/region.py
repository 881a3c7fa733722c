"""`dos region`: the group of commands, and those on a region as it is: status, workers, deletion, garbage.

A command writes a request into the region's store and reads the answers (`requests/client.py`), so it needs
neither Spark nor a connection to the driver. Commands that only send a request are rows of a table
(`arguments.py`). While a region runs, only its workers can delete garbage, because they hold the claims; a
checkpoint sends them the floors. So `dos region trim --apply` requests a checkpoint.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import trio
import typer

from checkpoint import limits
from checkpoint.chains.manifest_log import ManifestView, StoreHost, last_checkpoints_of, read_manifest
from checkpoint.cli import backup, listing, savepoints
from checkpoint.cli.arguments import (
    DeletionWait,
    Incarnation,
    RegionName,
    Stopped,
    add,
    add_request_commands,
    answered,
    change_text,
    fail_unless_done,
    send_request,
)
from checkpoint.cli.retention import bytes_of, garbage_json, print_objects
from checkpoint.core.graph_change import GraphOptions
from checkpoint.core.progress import dropped_text, prometheus_targets, recovery_text, under_way_text
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.records.views import batch_json
from checkpoint.core.region import RegionSpec, RegionState
from checkpoint.core.requests import Answer
from checkpoint.core.upgrades import RegionUpgrade, plan_upgrade
from checkpoint.core.verbs import VERBS
from checkpoint.maintenance.deleting import Deletion, delete_region, plan_deletion
from checkpoint.maintenance.garbage import UnneededObject, collect_stopped, garbage_of
from checkpoint.maintenance.retention import unread_bytes
from checkpoint.maintenance.stopped_region import release_stopped
from checkpoint.requests.client import RegionReader, RegionReading
from checkpoint.runtime import wall_time_ms
from dos_client import Store
from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    Call,
    Report,
    StoreUrl,
    ago_text,
    clock_text,
    count_text,
    fail,
    print_json,
    print_table,
    print_text,
    seconds_text,
)
from dos_protocol.errors import FencedError

_FINISHED: Final = "its last checkpoint is final: all input was read, and no driver needs to run"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Control a running region: its status, a checkpoint, a reset, a pause, its number of workers or its"
    " end, from any machine that reaches its store."
    "\n\nExample: dos region status dos://h1,h2,h3 wordcount",
)


async def status(
    call: Call,
    url: StoreUrl,
    name: RegionName,
    ask: Annotated[
        bool, typer.Option(help="Ask the driver; --no-ask shows the manifest only, and writes nothing.")
    ] = True,
    targets: Annotated[
        bool,
        typer.Option(
            "--prometheus-targets",
            help="Print only where its processes serve figures, as JSON for file_sd_configs of Prometheus.",
        ),
    ] = False,
) -> Report:
    """Show the status of a region as its driver reports it, and the last checkpoint in its manifest.

    The request and the driver's answer are small records in the store. If no driver answers, the manifest
    still shows which checkpoint was committed last, when and by which driver, and the last report of a driver
    in which state it was, for example why it has FAILED.

    Example: dos region status dos://h1,h2,h3 wordcount

    Example: dos region status dos://h1,h2,h3 wordcount --no-ask --json

    Example: dos region status dos://h1,h2,h3 wordcount --prometheus-targets > targets.json

    Exit codes: 0 a driver answered (or --no-ask), or the region has finished, so that no driver needs to run;
    1 no such region, or no answer, or it was stopped or has failed; 2 usage; 3 the store cannot be reached.
    """
    if targets and not ask:
        fail("--prometheus-targets asks the driver: leave out --no-ask", REFUSED)
    async with call.store(url) as store:
        reading = await RegionReader(store, name).read(ask=ask, patience_s=call.timeout_s)
    view, reply = reading.view, reading.reply

    def show() -> None:
        _print_manifest(view)
        if reply is not None:
            _print_status(reply.answer, "reported")
        elif (last := reading.last_report) is not None:
            ago = ago_text(last.wall_time_ms, wall_time_ms())
            _print_status(last, f"last reported {ago} ({clock_text(last.wall_time_ms)})")
        if reading.finished:
            print(_FINISHED)

    problem = f"{reading.silence}. {_hint(reading)}" if reading.silence else ""
    if reply is not None and reply.answer.verdict != "done":
        problem = f"{reply.answer.verdict}: {reply.answer.reason}"
    if not targets:
        if reading.finished:  # no driver needs to answer: nothing is wrong
            return Report(reading.as_json(), show)
        return Report(reading.as_json(), show, NEGATIVE if problem else 0, problem)
    if reply is None or problem:
        fail(problem, NEGATIVE)
    found = prometheus_targets(view.region, reply.answer.result)
    return Report(found, lambda: print_json(found))


def _print_manifest(view: ManifestView) -> None:
    last = view.last
    if last is None:
        none = "no checkpoint is proved committed" if view.unproved else "no checkpoint committed yet"
        print(f"region {view.region}: {none}; claimed with epoch {view.epoch}")
    else:
        by = f" by {last.driver}" if last.driver else ""
        print_text(
            f"region {view.region}: last checkpoint {last.number}{' (final)' if last.final else ''} at step"
            f" {last.step}, {ago_text(last.wall_time_ms, wall_time_ms())} ({clock_text(last.wall_time_ms)})"
            f"{by}, incarnation {last.incarnation}; claimed with epoch {view.epoch}"
        )
    if view.unproved:
        print_text(view.unproved)


def _hint(reading: RegionReading) -> str:
    """Return what a missing answer may mean, and what to do."""
    last = reading.view.last
    if reading.finished:
        return _FINISHED
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
        yield change_text(change, len(found.get("workers", [])))
    if policy := found.get("autoscale"):
        last = f"; last decision: {policy['lastDecision']}" if policy["lastDecision"] else ""
        yield f"autoscale {policy['minimum']} to {policy['maximum']} workers: {policy['reason']}{last}"
    if lost := dropped_text(found.get("rowsDropped", {})):
        yield lost
    yield from map(event_time_text, found.get("eventTimes", ()))
    if query := found.get("query"):
        yield query_text(query)
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


def query_text(found: Mapping[str, Any]) -> str:
    """Return one line about the query that drives a region, of its JSON."""
    last = "no batch so far"
    if (number := found["lastBatch"]) is not None:
        planned = clock_text(found["plannedMicroseconds"] // 1000)
        last = f"last batch {number}, planned {planned}, {found['rows']} rows"
    waits = f"; {found['waits']}" if found["waits"] else ""
    return f"driven by query {found['query']}: {last}{waits}"


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
    # Workers of a region that ended on purpose ended, or were killed, with it: that is no error.
    done = found.get("state") in (RegionState.STOPPED.value, RegionState.FINISHED.value)
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
                "ended" if done else one["state"],
                one["attempt"],
                one["host"],
                one["pid"],
                one["step"],
                one["rowsIn"],
                one["rowsOut"],
                count_text(one["lagBytes"]),
                "?" if one.get("backlogBytes") is None else count_text(one["backlogBytes"]),
                one["error"].splitlines()[-1] if one["error"] and not done else "",
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


async def scale(
    call: Call,
    url: StoreUrl,
    name: RegionName,
    workers: Annotated[
        int, typer.Option(min=0, max=limits.workers_max, help="The number of workers to go to.")
    ] = 0,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Give up a change that is under way, instead.")
    ] = False,
    incarnation: Incarnation = 0,
) -> Report:
    """Change the number of workers of a running region. Their state moves with the keys that they own.

    The new workers are launched first, while the region runs. Then it pauses, and continues with all of them.
    Until then --cancel gives the change up; whatever fails meanwhile leaves the region with the workers that
    it had. Each worker needs a task slot. `dos region status` shows how far the change is.

    Example: dos region scale dos://h1,h2,h3 wordcount --workers 5

    Example: dos region scale dos://h1,h2,h3 wordcount --cancel

    Exit codes: 0 the region runs with that number, or the change is given up; 1 refused, given up, or not
    done in time; 2 usage; 3 the store cannot be reached.
    """
    if bool(workers) == cancel:
        fail("pass either --workers with a number above 0, or --cancel", REFUSED)
    what = "unscale" if cancel else "scale"
    async with call.store(url) as store:
        reply = await send_request(call, store, name, what, {"workers": workers}, incarnation=incarnation)
    return answered(call, reply, what)


async def replace(
    call: Call,
    url: StoreUrl,
    name: RegionName,
    worker: Annotated[
        list[int] | None,
        typer.Option(min=0, max=limits.workers_max - 1, metavar="NUMBER", help="A worker; may be repeated."),
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="All workers, one after the other.")] = False,
    incarnation: Incarnation = 0,
) -> Report:
    """Replace workers of a running region by new processes, one after the other.

    For a rolling upgrade: install the other version where workers run, then replace them. Each new process
    joins before the region pauses, and continues with the state of its predecessor. A process with a
    version that does not fit is refused by name, and the region keeps its present process. This needs one
    task slot more than the region has. `dos region scale --cancel` gives up a replacement that is under way.

    Example: dos region replace dos://h1,h2,h3 wordcount --all

    Example: dos region replace dos://h1,h2,h3 wordcount --worker 3 --worker 4

    Exit codes: 0 all are replaced; 1 refused, or one is not replaced, or not done in time; 2 usage; 3 the
    store cannot be reached.
    """
    if bool(worker) == everyone:
        fail("pass either --worker with a number, or --all", REFUSED)
    replaces = tuple(worker or ())
    async with call.store(url) as store:
        reply = await send_request(
            call, store, name, "replace", {"replaces": replaces}, incarnation=incarnation
        )
    return answered(call, reply, "replace")


async def delete(
    call: Call,
    url: StoreUrl,
    name: RegionName,
    apply: Annotated[bool, typer.Option("--apply", help="Delete it; otherwise only list.")] = False,
    breaks: Annotated[
        list[str] | None,
        typer.Option("--break", help="A fork or a reader of its output that may break.", metavar="NAME"),
    ] = None,
    stopped: Annotated[
        bool,
        typer.Option(
            "--stopped",
            help="The original of a fork does not run: act as its driver for a moment. A driver that still"
            " runs is fenced and ends.",
        ),
    ] = False,
) -> Report:
    """List what a region has in the store, and what depends on it; with --apply, delete it permanently.

    Its journals, checkpoints, savepoints and output logs are deleted, and it is no consumer of its inputs any
    more. The inputs stay, and so does output outside of the store. A region is not deleted while it runs,
    while a member of the store is unavailable, or while a fork has its state here or another region or query
    reads its output: --break names those that may break.

    A fork that was deleted frees what only it needed of the original. The driver of the original is asked; if
    none runs, pass --stopped.

    Example: dos region delete dos://h1,h2,h3 wordcount-test

    Example: dos region delete dos://h1,h2,h3 wordcount-test --apply

    Exit codes: 0 listed, or deleted on all members; 1 refused, or not done in time; 2 usage; 3 the store
    cannot be reached.
    """
    async with call.store(url) as store:
        found, done = await plan_deletion(store, name), None
        if apply:
            call.display.say(f"deletes {len(found.objects)} objects on all members")
            broken, patience_s = breaks or (), call.timeout_s
            done = await delete_region(
                store, name, broken=broken, stopped=stopped, patience_s=patience_s, wait_s=call.wait_s
            )
    problem = "a member has not deleted everything yet: repeat the command" if done is False else ""
    return Report(
        _deletion_json(found, done),
        lambda: _print_deletion(found, done),
        NEGATIVE if problem else 0,
        problem,
    )


async def release(call: Call, url: StoreUrl, name: RegionName) -> Report:
    """Release a region that does not run from the Spark query that has driven it.

    A region is driven by one query: its checkpoint states the last micro-batch. If that query is gone for
    good (its checkpointLocation is lost, or its sources have changed so that Spark refuses it), this appends
    a checkpoint without a batch. The state stays, and the next query begins with its batch 0: its sources
    must begin after what the state contains. A fork of the region begins so, without this command.

    Example: dos region release dos://h1,h2,h3 wordcount

    Exit codes: 0 released; 1 refused: it runs, or no query drives it; 2 usage; 3 the store cannot be reached.
    """
    async with call.store(url) as store:
        last = await release_stopped(store, name, patience_s=call.timeout_s)
    return Report(
        {"name": name, "released": batch_json(last)},
        lambda: print(
            f"region {name} is released from query {last.query}: its state is that after batch {last.number},"
            f" planned {clock_text(last.time_us // 1000)}"
        ),
    )


def _of_directories(found: Deletion) -> dict[str, tuple[int, int]]:
    """Return directory -> its objects, and their bytes on all members."""
    sizes: dict[str, tuple[int, int]] = {}
    for one in found.objects:
        count, size = sizes.get(one.directory, (0, 0))
        sizes[one.directory] = count + 1, size + one.bytes * one.copies
    return sizes


def _deletion_json(found: Deletion, done: bool | None) -> dict[str, Any]:
    original, savepoint = found.savepoint or (None, None)
    return {
        "name": found.region,
        "directories": [
            {"directory": name, "objects": count, "bytes": size}
            for name, (count, size) in _of_directories(found).items()
        ],
        "bytes": bytes_of(found.objects),
        "dependents": [one._asdict() for one in found.dependents],
        "original": original,
        "savepoint": savepoint,
        "deleted": done,
    }


def _print_deletion(found: Deletion, done: bool | None) -> None:
    print_table(
        ("directory", "#objects", "#bytes"),
        [(name, count, count_text(size)) for name, (count, size) in _of_directories(found).items()],
    )
    total = count_text(bytes_of(found.objects))
    if done is not None:
        print(f"region {found.region}: {'deleted' if done else 'partly deleted'}, {total} on all members")
        return
    for one in found.dependents:
        print(f"{one.name} depends on it: {one.what}")
    if found.savepoint is not None:
        print(f"it is a fork: savepoint {found.savepoint[1]} of {found.savepoint[0]} is dropped with it")
    print(f"{len(found.objects)} objects, {total} on all members; --apply deletes them")


async def trim(
    call: Call,
    url: StoreUrl,
    name: RegionName,
    apply: Annotated[
        bool, typer.Option("--apply", help="Delete the objects; otherwise only list them.")
    ] = False,
    stopped: Stopped = False,
) -> Report:
    """List the segments of the region's journals that neither a retained checkpoint nor a savepoint needs;
    with --apply, delete them.

    A running region deletes them automatically, with every checkpoint. --apply then requests a checkpoint and
    waits until the workers have deleted the segments. A segment is deleted only if the manifest proves that
    nothing needs it: it lies below the floor of the oldest checkpoint that is retained or held by a
    savepoint. Whole segments are deleted.

    Example: dos region trim dos://h1,h2,h3 wordcount

    Example: dos region trim dos://h1,h2,h3 wordcount --apply --stopped

    Exit codes: 0 listed, or deleted on all available members; 1 no such region, no answer, or not done in
    time; 2 usage; 3 the store cannot be reached.
    """
    if stopped and not apply:
        fail("--stopped needs --apply", REFUSED)
    async with call.store(url) as store:
        view, left = await read_manifest(store, name), None
        garbage = await garbage_of(store, view)
        if apply and stopped:
            await _collect_stopped(store, name, call.wait_s)
        elif apply:
            fail_unless_done(
                (await send_request(call, store, name, "checkpoint", may_be_stopped=True)).answer
            )
        if apply:
            left = await _left(call, store, view, garbage)
    slow = f"{len(left or ())} of {len(garbage)} objects are not deleted yet"
    slow += ": a member may be unavailable or slow"
    return Report(
        _trimmed_json(view, garbage, left),
        lambda: _print_trimmed(view, garbage, left),
        NEGATIVE if left else 0,
        slow if left else "",
    )


async def _left(
    call: Call, store: Store, view: ManifestView, garbage: list[UnneededObject]
) -> list[UnneededObject]:
    """Wait at most --wait seconds until the garbage is deleted. Return the part that is left."""
    deadline = trio.current_time() + call.wait_s
    left = garbage
    while left and trio.current_time() < deadline:
        call.display.say(f"waits until {len(left)} of {len(garbage)} objects are deleted on all members")
        names = {(one.directory, one.name) for one in await garbage_of(store, view)}
        left = [one for one in garbage if (one.directory, one.name) in names]
        await trio.sleep(limits.answers_poll_s)
    return left


async def _collect_stopped(store: Store, name: str, wait: float) -> None:
    try:
        await collect_stopped(StoreHost(store), name, wait_s=wait)
    except FencedError as error:
        fail(f"a newer driver has taken over the region: {error}", NEGATIVE)


def _trimmed_json(
    view: ManifestView, garbage: list[UnneededObject], left: list[UnneededObject] | None
) -> dict[str, Any]:
    savepoints = view.last.savepoints if view.last is not None else {}
    return {
        "name": view.region,
        "retained": list(view.retained),
        "savepoints": savepoints,
        "garbage": garbage_json(garbage),
        "bytes": bytes_of(garbage),
        "deleted": None if left is None else len(garbage) - len(left),
    }


def _print_trimmed(
    view: ManifestView, garbage: list[UnneededObject], left: list[UnneededObject] | None
) -> None:
    kept = view.kept
    numbers = ", ".join(str(checkpoint.number) for checkpoint in kept) or "none"
    savepoints = view.last.savepoints if view.last is not None else {}
    named = ", ".join(f"{name} (checkpoint {checkpoint})" for name, checkpoint in sorted(savepoints.items()))
    print(f"region {view.region} retains checkpoints {numbers}" + (f"; savepoints: {named}" if named else ""))
    print_objects(garbage)
    held = count_text(bytes_of(garbage))
    if left is None:
        what = "nothing to delete" if not garbage else f"{len(garbage)} objects, {held} on all members"
        print(f"{what}{'; --apply deletes them' if garbage else ''}")
    elif not left:
        print(f"deleted {len(garbage)} objects, {held} on all members")


LoadProgram = Callable[[str, str, Mapping[str, Checkpoint], GraphOptions], RegionSpec]
"""Returns the specification of a region of the graph MODULE:GRAPH, with the others beside it. (graph, name of
the application, last checkpoints of its regions, options of the program.) `checkpoint` does not import
`dataflow`: the program that runs the commands passes it in.
"""
_loaders: list[LoadProgram] = []


def load_programs_with(loader: LoadProgram) -> None:
    _loaders[:] = [loader]


def _pair(option: str, form: str, pair: str) -> tuple[str, str]:
    one, equals, other = pair.partition("=")
    if not (one and equals and other):
        fail(f"{option} is {form}, got {pair!r}", REFUSED)
    return one, other


def _report_of(found: list[RegionUpgrade]) -> Report:
    refused = [one.region for one in found if not one.fits]
    return Report(
        [one.as_json() for one in found],
        "\n".join(line for one in found for line in (str(one), *_late_lines(one))),
        NEGATIVE if refused else 0,
        f"refused: {', '.join(refused)}" if refused else "",
    )


def _late_lines(found: RegionUpgrade) -> list[str]:
    times = {name: datetime.fromtimestamp(us / 1_000_000, UTC) for name, us in found.late_us.items()}
    return [f"Rows of source {name!r} up to {time.isoformat(' ')} are late." for name, time in times.items()]


async def upgrade(
    call: Call,
    url: StoreUrl,
    name: RegionName,
    graph: Annotated[
        str,
        typer.Argument(
            help="The graph, or a function that returns it, in a module that Python finds from here.",
            metavar="MODULE:GRAPH",
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would change. Required: a program upgrades.")
    ] = False,
    drop_state: Annotated[
        list[str] | None,
        typer.Option(help="Operator whose state may be dropped, as in `run`.", metavar="OPERATOR"),
    ] = None,
    new_aggregates: Annotated[
        list[str] | None,
        typer.Option(help="Result that an aggregation gains, as in `run`.", metavar="OPERATOR:RESULT"),
    ] = None,
    renamed: Annotated[
        list[str] | None,
        typer.Option(help="Operator that has another name now, as in `run`.", metavar="OLD=NEW"),
    ] = None,
    rewired: Annotated[
        list[str] | None,
        typer.Option(
            help="Operator that keeps its state below other sources, as in `run`.", metavar="OPERATOR"
        ),
    ] = None,
    removed: Annotated[
        list[str] | None,
        typer.Option(help="Source or sink that is removed, as in `run`, without value.", metavar="OPERATOR"),
    ] = None,
    begins: Annotated[
        list[str] | None,
        typer.Option(help="Where a new source begins, as in `run`: first or latest.", metavar="SOURCE=WHERE"),
    ] = None,
    removed_regions: Annotated[
        list[str] | None,
        typer.Option("--removed-region", help="Region that no part continues.", metavar="REGION"),
    ] = None,
) -> Report:
    """Show what a program with another graph would change in a region, and claim nothing.

    For each region of the application: the checkpoint from which it would continue, whether steps may be
    shown after it, the graph before and after, and the operators that are kept, new and gone. Operators that
    do not fit are refused with the reason. The module is imported, and no function of an operator is called.

    The upgrade itself is a start of the program: after the region was stopped, or while it runs, with
    hand_over=True.

    Example: dos region upgrade --dry-run dos://h1,h2,h3 shop jobs.shop:graph

    Example: dos region upgrade --dry-run dos://h1,h2,h3 shop jobs.shop:make_graph --drop-state longest --json

    Exit codes: 0 the region can continue; 1 refused; 2 usage; 3 the store cannot be reached.
    """
    async with call.store(url) as store:
        regions = await last_checkpoints_of(store, name)
        unread = {one: await unread_bytes(store, one, last) for one, last in regions.items() if removed}
    if not dry_run:
        fail(
            "pass --dry-run; to upgrade the region, start the program, with hand_over=True if it runs",
            REFUSED,
        )
    given = {
        "drop_state": drop_state,
        "new_aggregates": new_aggregates,
        "renamed": dict(_pair("--renamed", "OLD=NEW", one) for one in renamed or ()),
        "rewired": rewired,
        "removed": dict.fromkeys(removed or ()),
        "removed_regions": removed_regions,
        "begins": dict(_pair("--begins", "SOURCE=WHERE", one) for one in begins or ()),
        "without_specs": True,
    }
    try:
        options = GraphOptions.of(given)
        found = plan_upgrade(_loaders[0](graph, name, regions, options), regions, options, unread)
    except (TypeError, ValueError) as error:
        fail(str(error), REFUSED)
    return _report_of(found)


add(app, "status", asks=True)(status)
add(app, "ls")(listing.ls_regions)
add_request_commands(app)
add(app, "savepoint", waits_s=VERBS["savepoint"].wait_s)(savepoints.savepoint)
add(app, "savepoints")(savepoints.list_savepoints)
add(app, "restore", waits_s=VERBS["restore"].wait_s)(savepoints.restore)
add(app, "fork", asks=True)(savepoints.fork)
add(app, "release", asks=True)(release)
add(app, "delete", waits_s=limits.trim_wait_s, wait=DeletionWait)(delete)
backup.add_backup_commands(app)
add(app, "scale", waits_s=VERBS["scale"].wait_s)(scale)
add(app, "replace", waits_s=VERBS["replace"].wait_s)(replace)
add(app, "upgrade")(upgrade)
add(app, "trim", waits_s=limits.trim_wait_s, wait=DeletionWait)(trim)
