"""`dos input consumers`, `retain`, `forget` and `trim`: who needs the rows of an input, and what is deleted.

`maintenance/input_retention.py` reads and changes; this file has arguments and text. To add a command, write
a function of its name and add it to `COMMANDS`.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from checkpoint import limits
from checkpoint.cli.arguments import Application, Handle, Timeout, check_input_names, in_store
from checkpoint.core.consumers import RetentionRule
from checkpoint.maintenance.input_retention import InputRetention, InputStatus
from checkpoint.maintenance.trimming import UnneededObject
from checkpoint.runtime import wall_time_ms
from dos_client import Store
from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    AsJson,
    StoreUrl,
    TokenFile,
    ago_text,
    count_text,
    fail,
    print_json,
    print_result,
    print_table,
)

_BYTES_MAX: Final = 1 << 60
_AGE_S_MAX: Final = 100 * 366 * 86_400


def consumers(
    url: StoreUrl,
    application: Application,
    handle: Handle,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """List the regions that are registered as consumers of an input, how far each has read, and what it
    still needs; and the retention rule.

    A region registers when it reads the input for the first time, and stays registered when it is stopped.
    `needs` is the position of its oldest retained checkpoint or savepoint: a producer keeps everything from
    there on. `lag` is what its last checkpoint has not read.

    Example: dos input consumers dos://h1,h2,h3 shop orders

    Exit codes: 0 listed; 1 no such input; 2 usage; 3 the store cannot be reached.
    """
    check_input_names(application, handle)
    status = in_store(url, token_file, lambda store: InputRetention(store, application, handle).status())
    if as_json:
        print_json({"application": application, "handle": handle, **_status_json(status)})
    else:
        _print_status(status)


def retain(
    url: StoreUrl,
    application: Application,
    handle: Handle,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_BYTES_MAX,
            help="Of each producer, keep the newest BYTES, rounded up to whole segments.",
            metavar="BYTES",
        ),
    ] = None,
    max_age: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=_AGE_S_MAX,
            help="Keep rows that are younger, by the clock of their producer.",
            metavar="SECONDS",
        ),
    ] = None,
    no_limit: Annotated[
        bool, typer.Option("--no-limit", help="Remove the limits: only consumers decide.")
    ] = False,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Show or set the retention rule of an input. Without options, show it.

    Without a rule, rows are deleted once no registered consumer needs them, and never while none is
    registered. A limit deletes older rows, too, *even if a registered consumer still needs them*: a region
    that has fallen behind it fails, with an error that names the rows and this rule.

    Example: dos input retain dos://h1,h2,h3 shop orders --max-age 604800

    Exit codes: 0 shown, or set on a quorum; 1 no such input; 2 usage; 3 the store cannot be reached.
    """
    check_input_names(application, handle)
    limits_given = max_bytes is not None or max_age is not None
    if limits_given and no_limit:
        fail("--no-limit cannot be combined with a limit", REFUSED)

    async def work(store: Store) -> RetentionRule:
        retention = InputRetention(store, application, handle)
        rule = (await retention.status()).rule
        return await retention.set_rule(max_bytes, max_age) if limits_given or no_limit else rule

    rule = in_store(url, token_file, work)
    print_result(_rule_json(rule), _rule_text(rule), as_json=as_json)


def forget(
    url: StoreUrl,
    application: Application,
    handle: Handle,
    region: Annotated[str, typer.Argument(help="The region that is gone for ever.", metavar="REGION")],
    apply: Annotated[
        bool, typer.Option("--apply", help="Remove it; otherwise only show what would be freed.")
    ] = False,
    timeout: Timeout = limits.request_patience_s,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Remove a region that will never run again from the consumers of an input. What only that region needs
    is then deleted.

    Refused while a driver of the region answers. A region that is started again registers again; if rows that
    its checkpoint needs were deleted, it fails and names them.

    Example: dos input forget dos://h1,h2,h3 shop orders old-report --apply

    Exit codes: 0 removed, or shown; 1 not registered, or running; 2 usage; 3 the store cannot be reached.
    """
    check_input_names(application, handle)

    async def work(store: Store) -> InputStatus:
        retention = InputRetention(store, application, handle)
        status = await retention.status()
        await retention.forget(region, timeout, apply=apply)
        return status

    status = in_store(url, token_file, work)
    freed = sum(_needed_only_by(status, region).values())
    held = f"{count_text(freed)} that only it needs"
    done = f"region {region} is no longer a consumer: {held} will be deleted"
    dry = f"region {region} does not answer; it holds {held}; --apply removes it"
    value = {"region": region, "bytes": freed, "forgotten": apply}
    print_result(value, done if apply else dry, as_json=as_json)


def trim(
    url: StoreUrl,
    application: Application,
    handle: Handle,
    apply: Annotated[
        bool, typer.Option("--apply", help="Delete the segments; otherwise only list them.")
    ] = False,
    stopped: Annotated[
        bool,
        typer.Option(
            "--stopped",
            help="The producers of these segments do not run: act as each of them for a moment. A producer"
            " that still runs is fenced and ends.",
        ),
    ] = False,
    wait: Annotated[
        float, typer.Option(min=1, max=86_400, help="Seconds to wait for the deletion.", metavar="SECONDS")
    ] = limits.trim_wait_s,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """List the segments of an input that no consumer needs; with --apply --stopped, delete them.

    A running producer deletes them automatically, within about ten seconds. This command is for producers
    that do not run any more, and for inputs that are closed. Whole segments are deleted, and the last one
    with rows stays.

    Example: dos input trim dos://h1,h2,h3 shop orders

    Example: dos input trim dos://h1,h2,h3 shop orders --apply --stopped

    Exit codes: 0 listed, or deleted on all available members; 1 no such input, or not done in time; 2 usage;
    3 the store cannot be reached.
    """
    check_input_names(application, handle)
    if apply != stopped:
        fail("running producers delete automatically: pass --apply and --stopped, or neither", REFUSED)

    async def work(store: Store) -> tuple[list[UnneededObject], bool]:
        retention = InputRetention(store, application, handle)
        found = await retention.unneeded()
        return found, not apply or await retention.trim_stopped(found, wait)

    found, clean = in_store(url, token_file, work)
    size = sum(one.bytes * one.copies for one in found)
    if as_json:
        print_json(
            {
                "application": application,
                "handle": handle,
                "garbage": [
                    {"directory": one.directory, "object": one.name, "bytes": one.bytes, "copies": one.copies}
                    for one in found
                ],
                "bytes": size,
                "deleted": apply,
            }
        )
    else:
        print_table(
            ("directory", "object", "#bytes", "#copies"),
            [(one.directory, one.name, count_text(one.bytes), one.copies) for one in found],
        )
        what = f"{len(found)} segments, {count_text(size)} on all members"
        hint = "; --apply --stopped deletes them, if their producers do not run" if found else ""
        print(f"deleted {what}" if apply else (f"{what}{hint}" if found else "nothing to delete"))
    if not clean:
        fail("some segments are not deleted yet: a member is slow", NEGATIVE)


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "consumers": consumers,
    "retain": retain,
    "forget": forget,
    "trim": trim,
}
"""Name of the command -> its function."""


def add_retention_commands(app: typer.Typer) -> None:
    """Make the rows of `COMMANDS` commands of the app."""
    for name, command in COMMANDS.items():
        app.command(name)(command)


def _needed_only_by(status: InputStatus, region: str) -> dict[str, int]:
    """Return producer -> the bytes that this region keeps, and no other one does."""
    freed = {}
    for one in status.producers:
        needs = {consumer.region: consumer.needs[one.producer] for consumer in status.consumers}
        others = [need for name, need in needs.items() if name != region]
        upto = min(others) if others else one.begin
        freed[one.producer] = max(0, upto - max(needs.get(region, 0), one.begin))
    return freed


def _rule_json(rule: RetentionRule) -> dict[str, Any]:
    return {
        "maxBytes": rule.bytes_max,
        "maxAgeSeconds": rule.age_max_s,
        "setBy": rule.set_by,
        "setMs": rule.set_ms or None,
    }


def _rule_text(rule: RetentionRule) -> str:
    if not rule.limits_anything:
        return "no limit: rows are deleted once no registered consumer needs them"
    by = f", set by {rule.set_by} {ago_text(rule.set_ms, wall_time_ms())}" if rule.set_by else ""
    return f"limit: {rule}{by}; older rows are deleted even if a consumer needs them"


def _status_json(status: InputStatus) -> dict[str, Any]:
    return {
        "rule": _rule_json(status.rule),
        "producers": [
            {"producer": one.producer, "begin": one.begin, "end": one.end} for one in status.producers
        ],
        "consumers": [
            {
                "region": one.region,
                "sources": list(one.sources),
                "sinceMs": one.since_ms,
                "oldestCheckpoint": one.oldest,
                "lastCheckpoint": one.last,
                "positions": {
                    name: {"read": one.read[name], "needs": one.needs[name], "lagBytes": end - one.read[name]}
                    for name, end in _ends(status).items()
                },
            }
            for one in status.consumers
        ],
    }


def _ends(status: InputStatus) -> dict[str, int]:
    return {one.producer: one.end for one in status.producers}


def _print_status(status: InputStatus) -> None:
    print_table(
        ("consumer", "checkpoints", "producer", "#needs from", "#read to", "#lag"),
        [
            (
                one.region,
                f"{one.oldest} to {one.last}" if one.last else "none yet",
                name,
                one.needs[name],
                one.read[name],
                count_text(end - one.read[name]),
            )
            for one in status.consumers
            for name, end in _ends(status).items()
        ],
    )
    print_table(
        ("producer", "#stored from", "#to", "#bytes"),
        [(one.producer, one.begin, one.end, count_text(one.end - one.begin)) for one in status.producers],
    )
    if not status.consumers:
        print("no region is registered as a consumer")
    print(_rule_text(status.rule))
