"""`dos input` and `dos output`: `consumers`, `retain`, `forget`, `trim`, and `dos input sweep`: who needs
rows, and what is deleted. The four commands exist once; `KINDS` has a row for inputs and a row for outputs.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from checkpoint import limits
from checkpoint.cli.arguments import (
    ANSWERS,
    Application,
    DeletionWait,
    Handle,
    Timeout,
    check_input_names,
)
from checkpoint.core.records.consumers import QUERY_PREFIX, RetentionRule
from checkpoint.core.records.staged import StagedState, parse_staged
from checkpoint.maintenance.deleting import drop_log, plan_drop
from checkpoint.maintenance.garbage import StagedObject, Sweep, UnneededObject
from checkpoint.maintenance.retention import (
    ConsumerStatus,
    InputRows,
    OutputRows,
    QueryStatus,
    RetainedRows,
    Retention,
    RetentionStatus,
    output_rows,
)
from checkpoint.runtime import wall_time_ms
from dos_client import Store
from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    Call,
    Report,
    StoreUrl,
    ago_text,
    command,
    count_text,
    fail,
    print_table,
)
from dos_protocol.errors import BadNameError

_BYTES_MAX: Final = 1 << 60
_AGE_S_MAX: Final = 100 * 366 * 86_400


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of rows. The words are those of the help and of the text."""

    command: str
    rows: Callable[[Store, str, str], RetainedRows]
    owner: str
    name: str
    example: str
    writers: str
    default: str


KINDS: Final = {
    "input": Kind(
        "input",
        InputRows,
        "APPLICATION",
        "HANDLE",
        "shop orders",
        "producers",
        "what every registered consumer has read is deleted; nothing while none is registered",
    ),
    "output": Kind(
        "output",
        OutputRows,
        "REGION",
        "SINK",
        "shop sold",
        "drivers",
        "what LogSink(retain=, max_bytes=, max_age=) says; without them, nothing is deleted",
    ),
}

SweepWait = Annotated[
    float,
    typer.Option(
        min=1, max=86_400, help="Seconds to wait for the deletion in each directory.", metavar="SECONDS"
    ),
]
_Command = Callable[..., Awaitable[Report]]
_Apply = Annotated[bool, typer.Option("--apply", help="Do it; otherwise only show what would be done.")]
_Owner = Annotated[str, typer.Argument(help="Of an input, the application; of an output, the region.")]
_Name = Annotated[str, typer.Argument(help="The name of the input, or of the sink.")]


def add_retention_commands(app: typer.Typer, kind: Kind) -> None:
    """Make the four commands of a kind commands of the app."""
    timeout, wait = (Timeout, limits.request_patience_s), (DeletionWait, limits.trim_wait_s)
    for make, asked, waited in (
        (_consumers, None, None),
        (_retain, None, None),
        (_forget, timeout, None),
        (_trim, None, wait),
    ):
        function, name = make(kind), make.__name__.strip("_")
        text = (function.__doc__ or "").replace(
            "EXAMPLE", f"dos {kind.command} {name} dos://h1,h2,h3 {kind.example}"
        )
        function.__doc__ = text.replace("WRITERS", kind.writers).replace("DEFAULT", kind.default)
        command(app, name, timeout=asked, wait=waited, ends=ANSWERS)(function)


async def _open(kind: Kind, store: Store, owner: str, name: str) -> Retention:
    try:
        if kind.rows is OutputRows:
            return Retention(store, await output_rows(store, owner, name))
        return Retention(store, kind.rows(store, owner, name))
    except BadNameError as error:
        fail(str(error), REFUSED)


def _consumers(kind: Kind) -> _Command:
    async def consumers(call: Call, url: StoreUrl, owner: _Owner, name: _Name) -> Report:
        """List the regions and the streaming queries that are registered as consumers, how far each has read,
        and what it still needs; and the retention rule.

        A consumer registers when it reads for the first time, and stays registered when it is stopped. `needs
        from`: everything from there on is kept for it. For a region, it is the position of its oldest
        retained checkpoint or savepoint, and `lag` is what its last checkpoint has not read. For a query
        (`query:NAME`), both follow from the positions that it published.

        Example: EXAMPLE

        Exit codes: 0 listed; 1 it does not exist; 2 usage; 3 the store cannot be reached.
        """
        async with call.store(url) as store:
            status = await (await _open(kind, store, owner, name)).status()
        word = kind.rows.split_word  # type: ignore[attr-defined]
        return Report(
            {"owner": owner, "name": name, **status_json(status)},
            lambda: print_status(status, word, kind.default),
        )

    return consumers


def _retain(kind: Kind) -> _Command:
    async def retain(
        call: Call,
        url: StoreUrl,
        owner: _Owner,
        name: _Name,
        keep: Annotated[
            str | None,
            typer.Option(
                help="`unread`: delete what every registered consumer has read. `all`: delete nothing, except"
                " what exceeds a limit. With a limit alone: unread.",
                metavar="WHAT",
            ),
        ] = None,
        max_bytes: Annotated[
            int | None,
            typer.Option(
                min=1,
                max=_BYTES_MAX,
                help="Of each chain, keep the newest BYTES, rounded up to whole segments.",
                metavar="BYTES",
            ),
        ] = None,
        max_age: Annotated[
            float | None,
            typer.Option(
                min=1,
                max=_AGE_S_MAX,
                help="Keep rows that are younger, by their writer's clock.",
                metavar="SECONDS",
            ),
        ] = None,
        default: Annotated[bool, typer.Option("--default", help="Remove the rule that was set.")] = False,
    ) -> Report:
        """Show or set the retention rule. Without options, show it.

        The default: DEFAULT. A limit deletes older rows, too, *even if a registered consumer still needs
        them*: a region that has fallen behind it fails, with an error that names the rows and this rule.

        Example: EXAMPLE --max-age 604800

        Exit codes: 0 shown, or set on a quorum; 1 it does not exist; 2 usage; 3 the store cannot be reached.
        """
        given = keep is not None or max_bytes is not None or max_age is not None
        if given and default:
            fail("--default cannot be combined with a rule", REFUSED)
        if keep not in (None, "unread", "all"):
            fail(f"--keep is `unread` or `all`, not {keep}", REFUSED)
        wanted = RetentionRule(by_consumers=keep != "all", bytes_max=max_bytes, age_max_s=max_age)

        async with call.store(url) as store:
            retention = await _open(kind, store, owner, name)
            rule = (await retention.status()).rule
            if given or default:
                rule = await retention.set_rule(wanted if given else None)
        return Report(rule_json(rule), rule_text(rule, kind.default))

    return retain


def _forget(kind: Kind) -> _Command:
    async def forget(
        call: Call,
        url: StoreUrl,
        owner: _Owner,
        name: _Name,
        region: Annotated[
            str,
            typer.Argument(
                help="The region that is gone for ever, or query:NAME for a query.", metavar="CONSUMER"
            ),
        ],
        apply: _Apply = False,
    ) -> Report:
        """Remove a region or a query that will never run again from the consumers. Data that only it needs is
        then deleted.

        Refused while a driver of the region answers, or if the query published a position within the last
        minute. A consumer that is started again registers again; if rows that its checkpoint needs were
        deleted, it fails and names them.

        Example: EXAMPLE old-report --apply

        Exit codes: 0 removed, or shown; 1 not registered, or running; 2 usage; 3 the store cannot be reached.
        """
        async with call.store(url) as store:
            retention = await _open(kind, store, owner, name)
            status = await retention.status()
            await retention.forget(region, call.timeout_s, apply=apply)
        freed = needed_only_by(status, region)
        held = f"{count_text(freed)} that only it needs"
        what = region if region.startswith(QUERY_PREFIX) else f"region {region}"
        done = f"{what} is no longer a consumer; it held {held}"
        dry = f"{what} does not seem to run; it holds {held}; --apply removes it"
        value = {"region": region, "bytes": freed, "forgotten": apply}
        return Report(value, done if apply else dry)

    return forget


def _trim(kind: Kind) -> _Command:
    async def trim(
        call: Call,
        url: StoreUrl,
        owner: _Owner,
        name: _Name,
        apply: _Apply = False,
        stopped: Annotated[
            bool,
            typer.Option(
                "--stopped",
                help="The writers of these segments do not run: act as each of them for a moment. One that"
                " still runs is fenced and ends.",
            ),
        ] = False,
    ) -> Report:
        """List the segments that no consumer needs; with --apply --stopped, delete them.

        Running WRITERS delete them automatically, within seconds. This command is for those that do not run
        any more. Whole segments are deleted, and the last one with rows stays.

        Example: EXAMPLE

        Example: EXAMPLE --apply --stopped

        Exit codes: 0 listed, or deleted on all available members; 1 it does not exist, or not done in time; 2
        usage; 3 the store cannot be reached.
        """
        if apply != stopped:
            fail(
                f"running {kind.writers} delete automatically: pass --apply and --stopped, or neither",
                REFUSED,
            )

        async with call.store(url) as store:
            retention = await _open(kind, store, owner, name)
            found = await retention.unneeded()
            if apply:
                call.display.say(f"deletes {len(found)} segments on all members")
            clean = not apply or await retention.trim_stopped(found, call.wait_s)
        slow = "" if clean else "some segments are not deleted yet: a member is slow"
        return Report(
            {"garbage": garbage_json(found), "bytes": bytes_of(found), "deleted": apply},
            lambda: _print_garbage(found, apply=apply),
            NEGATIVE if slow else 0,
            slow,
        )

    return trim


def garbage_json(found: Iterable[UnneededObject]) -> list[dict[str, Any]]:
    return [
        {"directory": one.directory, "object": one.name, "bytes": one.bytes, "copies": one.copies}
        for one in found
    ]


def print_objects(found: Iterable[UnneededObject]) -> None:
    rows = [(one.directory, one.name, count_text(one.bytes), one.copies) for one in found]
    print_table(("directory", "object", "#bytes", "#copies"), rows)


def bytes_of(found: Iterable[UnneededObject | StagedObject]) -> int:
    """Return the bytes of these objects on all members."""
    return sum(one.bytes * one.copies for one in found)


def _print_garbage(found: list[UnneededObject], *, apply: bool) -> None:
    print_objects(found)
    what = f"{len(found)} segments, {count_text(bytes_of(found))} on all members"
    hint = f"{what}; --apply --stopped deletes them, if their writers do not run"
    print(f"deleted {what}" if apply else (hint if found else "nothing to delete"))


def needed_only_by(status: RetentionStatus, region: str) -> int:
    """Return the bytes that this region keeps, and no other one does."""
    freed = 0
    for one in status.splits:
        needs = status.needs(one.split)
        others = [need for name, need in needs.items() if name != region]
        upto = min(others) if others else one.begin
        freed += max(0, upto - max(needs.get(region, 0), one.begin))
    return freed


def rule_json(rule: RetentionRule | None) -> dict[str, Any]:
    """Return a rule for programs; null in each field if nobody has set one."""
    if rule is None:
        return {"keep": None, "maxBytes": None, "maxAgeSeconds": None, "setBy": None, "setMs": None}
    return {
        "keep": "unread" if rule.by_consumers else "all",
        "maxBytes": rule.bytes_max,
        "maxAgeSeconds": rule.age_max_s,
        "setBy": rule.set_by,
        "setMs": rule.set_ms,
    }


def rule_text(rule: RetentionRule | None, default: str) -> str:
    """Return a rule for people. default: the text of the default rule."""
    if rule is None:
        return f"rule: the default: {default}"
    kept = "keeps what a consumer has not read" if rule.by_consumers else "keeps everything"
    limit = f"; limit: {rule}, even if a consumer needs more" if rule.limits_anything else ""
    return f"rule: {kept}{limit}; set by {rule.set_by} {ago_text(rule.set_ms, wall_time_ms())}"


def status_json(status: RetentionStatus) -> dict[str, Any]:
    """Return the status for programs."""
    return {
        "rule": rule_json(status.rule),
        "splits": [{"split": one.split, "begin": one.begin, "end": one.end} for one in status.splits],
        "consumers": [
            {
                "region": one.region,
                "sources": list(one.sources),
                "sinceMs": one.since_ms,
                "oldestCheckpoint": one.oldest,
                "lastCheckpoint": one.last,
                "positions": _positions_json(one, status),
            }
            for one in status.consumers
        ],
        "queries": [
            {
                "name": one.name,
                "sinceMs": one.since_ms,
                "publishedMs": one.published_ms,
                "positions": _positions_json(one, status),
            }
            for one in status.queries
        ],
    }


def _positions_json(one: ConsumerStatus | QueryStatus, status: RetentionStatus) -> dict[str, Any]:
    return {
        of.split: {
            "read": one.read[of.split],
            "needs": one.needs[of.split],
            "lagBytes": of.end - one.read[of.split],
        }
        for of in status.splits
    }


def print_status(status: RetentionStatus, word: str, default: str) -> None:
    """Print the tables. word: what a split is. default: the text of the default rule."""
    now_ms = wall_time_ms()
    consumers: list[tuple[str, str, ConsumerStatus | QueryStatus]] = [
        (one.region, f"checkpoints {one.oldest} to {one.last}" if one.last else "no checkpoint yet", one)
        for one in status.consumers
    ]
    consumers += [
        (QUERY_PREFIX + one.name, f"published {ago_text(one.published_ms, now_ms)}", one)
        for one in status.queries
    ]
    print_table(
        ("consumer", "as of", word, "#needs from", "#read to", "#lag"),
        [
            (
                name,
                as_of,
                of.split,
                one.needs[of.split],
                one.read[of.split],
                count_text(of.end - one.read[of.split]),
            )
            for name, as_of, one in consumers
            for of in status.splits
        ],
    )
    print_table(
        (word, "#stored from", "#to", "#bytes"),
        [(one.split, one.begin, one.end, count_text(one.end - one.begin)) for one in status.splits],
    )
    if not status.consumers and not status.queries:
        print("no region is registered as a consumer")
    print(rule_text(status.rule, default))


async def sweep(
    call: Call,
    url: StoreUrl,
    application: Application,
    handle: Handle,
    apply: Annotated[
        bool, typer.Option("--apply", help="Delete the garbage; otherwise only list it.")
    ] = False,
    older_than: Annotated[
        float | None,
        typer.Option(
            "--undecided-older-than",
            min=0,
            max=_AGE_S_MAX,
            help="Also delete undecided rows that were begun longer ago than this, by the clocks of their"
            " writer and of this machine. A query or write that is still running is fenced, and fails with"
            " an error that names the reason.",
            metavar="SECONDS",
        ),
    ] = None,
) -> Report:
    """List the rows that Spark's writers have staged for an input; with --apply, delete those that cannot be
    recorded any more.

    A query deletes such rows automatically, with its commits. This command is for a query that was killed and
    is never started again. Staged rows are garbage if their batch or a later one is recorded, or if the input
    is closed. Undecided rows may still be committed, by a driver that runs or by the query when it is started
    again: they are kept, with everything in their directory, unless --undecided-older-than gives them up.
    Recorded rows are never deleted. A query that finds its rows deleted fails, and writes them again when it
    is started again; a batch write fails without having recorded anything.

    Example: dos input sweep dos://h1,h2,h3 shop orders

    Example: dos input sweep dos://h1,h2,h3 shop orders --undecided-older-than 604800 --apply

    Exit codes: 0 listed, or deleted on all available members; 1 no such input, or some rows are left because
    a writer is running or a member was not done in time; 2 usage; 3 the store cannot be reached.
    """
    check_input_names(application, handle)
    left: list[StagedObject] | None = None
    async with call.store(url) as store:
        sweeping = Sweep(store, application, handle, older_than)
        found = await sweeping.inspect()
        if apply:
            call.display.say(f"deletes {_swept(found)} objects on all members")
            await sweeping.apply(found, call.wait_s)
            there = {(one.directory, one.name) for one in await sweeping.inspect()}
            left = [one for one in found if one.swept and (one.directory, one.name) in there]
    problem = ""
    if left:
        problem = (
            f"{len(left)} of {_swept(found)} objects are not deleted yet, the first in {left[0].directory}:"
            " a writer is running there, or a member is slow"
        )
    return Report(
        _staged_json(application, handle, found, left),
        lambda: _print_staged(found, left),
        NEGATIVE if left else 0,
        problem,
    )


async def drop(
    call: Call,
    url: StoreUrl,
    region: Annotated[str, typer.Argument(help="The region.", metavar="REGION")],
    sink: Annotated[
        str, typer.Argument(help="The last name of the removed sink, or its uid.", metavar="SINK")
    ],
    apply: _Apply = False,
    breaks: Annotated[
        list[str] | None,
        typer.Option("--break", help="A registered reader of the log that may break.", metavar="NAME"),
    ] = None,
) -> Report:
    """Show the log of a sink that was removed from the graph of a region; with --apply, drop it permanently.

    Such a log stays readable to its end until it is dropped. Its bytes are deleted when no retained
    checkpoint or savepoint has it: a restore of one from before continues it. It is not dropped while the
    region runs, or while another region or a query is registered as its reader: --break names those that may
    break. A reader that has not read it to its end then fails, with an error that names who dropped it.

    Example: dos output drop dos://h1,h2,h3 shop audit

    Example: dos output drop dos://h1,h2,h3 shop audit --apply

    Exit codes: 0 shown, or dropped; 1 refused: no such removed sink, it has readers, or the region runs; 2
    usage; 3 the store cannot be reached.
    """
    async with call.store(url) as store:
        if apply:
            found = await drop_log(store, region, sink, broken=breaks or (), patience_s=call.timeout_s)
        else:
            found = await plan_drop(store, region, sink)
    readers = ", ".join(found.readers) or "none"
    size = f"{count_text(found.retained_bytes)} on {len(found.log.ends)} workers"
    of = f"log {found.uid} of sink {found.log.sink}, removed at checkpoint {found.log.checkpoint}: {size}"
    done = f"dropped {of}; the bytes are deleted when no retained checkpoint has it"
    value = {
        "region": region,
        "sink": found.log.sink,
        "uid": found.uid,
        "checkpoint": found.log.checkpoint,
        "bytes": found.retained_bytes,
        "readers": list(found.readers),
        "dropped": apply,
    }
    return Report(value, done if apply else f"{of}; readers: {readers}; --apply drops it")


def add_drop_command(app: typer.Typer) -> None:
    """Add `drop` to the app."""
    command(app, "drop", timeout=(Timeout, limits.request_patience_s), ends=ANSWERS)(drop)


def add_sweep_command(app: typer.Typer) -> None:
    """Add `sweep` to the app."""
    command(app, "sweep", wait=(SweepWait, limits.trim_wait_s), ends=ANSWERS)(sweep)


def _swept(found: Sequence[StagedObject]) -> int:
    return sum(one.swept for one in found)


def _staged_json(
    application: str, handle: str, found: Sequence[StagedObject], left: Sequence[StagedObject] | None
) -> dict[str, Any]:
    return {
        "application": application,
        "handle": handle,
        "staged": [
            {
                "producer": one.producer,
                "directory": one.directory,
                "object": one.name,
                "batch": None if (unit := parse_staged(one.name)) is None else unit.number,
                "bytes": one.bytes,
                "copies": one.copies,
                "sinceMs": one.since_ms,
                "state": str(one.staged_state),
                "garbage": one.swept,
            }
            for one in found
        ],
        "bytes": bytes_of(one for one in found if one.swept),
        "deleted": None if left is None else _swept(found) - len(left),
    }


def _print_staged(found: Sequence[StagedObject], left: Sequence[StagedObject] | None) -> None:
    now = wall_time_ms()
    print_table(
        ("directory", "rows of", "#bytes", "#copies", "begun", "state", ""),
        [
            (
                one.directory,
                _unit(one.name),
                count_text(one.bytes),
                one.copies,
                "" if one.since_ms is None else ago_text(one.since_ms, now),
                one.staged_state,
                "garbage" if one.swept else "kept",
            )
            for one in found
        ],
    )
    count = _swept(found)
    held = count_text(bytes_of(one for one in found if one.swept))
    if left is None:
        what = (
            f"{count} objects, {held} on all members; --apply deletes them" if count else "nothing to delete"
        )
        print(what)
    elif not left:
        print(f"deleted {count} objects, {held} on all members")
    if undecided := sum(one.staged_state is StagedState.PENDING for one in found):
        print(
            f"{undecided} undecided: a writer may still record them; --undecided-older-than SECONDS also"
            " deletes those that are older"
        )


def _unit(name: str) -> str:
    unit = parse_staged(name)
    if unit is None:
        return name
    return f"write {unit.key}" if unit.number is None else f"batch {unit.number}"
