"""`dos input` and `dos output`: `consumers`, `retain`, `forget` and `trim`: who needs rows, and what is
deleted.

The commands exist once, and `KINDS` has a row for inputs and a row for outputs. `maintenance/retention.py`
reads and changes, `retention_text.py` prints; this file has the arguments.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from checkpoint import limits
from checkpoint.cli.arguments import DeletionWait, Timeout, in_store
from checkpoint.cli.retention_text import (
    needed_only_by,
    print_garbage,
    print_status,
    rule_json,
    rule_text,
    status_json,
)
from checkpoint.core.consumers import QUERY_PREFIX, RetentionRule
from checkpoint.maintenance.garbage import UnneededObject
from checkpoint.maintenance.retained_rows import InputRows, OutputRows, RetainedRows
from checkpoint.maintenance.retention import Retention, RetentionStatus
from dos_client import Store
from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    AsJson,
    StoreUrl,
    TokenFile,
    count_text,
    fail,
    print_json,
    print_result,
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

_Apply = Annotated[bool, typer.Option("--apply", help="Do it; otherwise only show what would be done.")]
_Owner = Annotated[str, typer.Argument(help="Of an input, the application; of an output, the region.")]
_Name = Annotated[str, typer.Argument(help="The name of the input, or of the sink.")]


def add_retention_commands(app: typer.Typer, kind: Kind) -> None:
    """Make the four commands of a kind commands of the app."""
    for make in (_consumers, _retain, _forget, _trim):
        command = make(kind)
        example = f"dos {kind.command} {{}} dos://h1,h2,h3 {kind.example}"
        text = (command.__doc__ or "").replace("EXAMPLE", example.format(make.__name__.strip("_")))
        command.__doc__ = text.replace("WRITERS", kind.writers).replace("DEFAULT", kind.default)
        app.command(make.__name__.strip("_"))(command)


def _open(kind: Kind, store: Store, owner: str, name: str) -> Retention:
    try:
        return Retention(store, kind.rows(store, owner, name))
    except BadNameError as error:
        fail(str(error), REFUSED)


def _consumers(kind: Kind) -> Callable[..., None]:
    def command(
        url: StoreUrl, owner: _Owner, name: _Name, as_json: AsJson = False, token_file: TokenFile = None
    ) -> None:
        """List the regions and the streaming queries that are registered as consumers, how far each has read,
        and what it still needs; and the retention rule.

        A consumer registers when it reads for the first time, and stays registered when it is stopped. `needs
        from`: everything from there on is kept for it. For a region, it is the position of its oldest
        retained checkpoint or savepoint, and `lag` is what its last checkpoint has not read. For a query
        (`query:NAME`), both follow from the positions that it published.

        Example: EXAMPLE

        Exit codes: 0 listed; 1 it does not exist; 2 usage; 3 the store cannot be reached.
        """
        status = in_store(url, token_file, lambda store: _open(kind, store, owner, name).status())
        if as_json:
            print_json({"owner": owner, "name": name, **status_json(status)})
        else:
            print_status(status, kind.rows.split_word, kind.default)  # type: ignore[attr-defined]

    return command


def _retain(kind: Kind) -> Callable[..., None]:
    def command(
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
        as_json: AsJson = False,
        token_file: TokenFile = None,
    ) -> None:
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

        async def work(store: Store) -> RetentionRule | None:
            retention = _open(kind, store, owner, name)
            rule = (await retention.status()).rule
            return await retention.set_rule(wanted if given else None) if given or default else rule

        rule = in_store(url, token_file, work)
        print_result(rule_json(rule), rule_text(rule, kind.default), as_json=as_json)

    return command


def _forget(kind: Kind) -> Callable[..., None]:
    def command(
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
        timeout: Timeout = limits.request_patience_s,
        as_json: AsJson = False,
        token_file: TokenFile = None,
    ) -> None:
        """Remove a region or a query that will never run again from the consumers. What only it needs is then
        deleted.

        Refused while a driver of the region answers, or if the query published a position within the last
        minute. A consumer that is started again registers again; if rows that its checkpoint needs were
        deleted, it fails and names them.

        Example: EXAMPLE old-report --apply

        Exit codes: 0 removed, or shown; 1 not registered, or running; 2 usage; 3 the store cannot be reached.
        """

        async def work(store: Store) -> RetentionStatus:
            retention = _open(kind, store, owner, name)
            status = await retention.status()
            await retention.forget(region, timeout, apply=apply)
            return status

        freed = needed_only_by(in_store(url, token_file, work), region)
        held = f"{count_text(freed)} that only it needs"
        what = region if region.startswith(QUERY_PREFIX) else f"region {region}"
        done = f"{what} is no longer a consumer; it held {held}"
        dry = f"{what} does not seem to run; it holds {held}; --apply removes it"
        value = {"region": region, "bytes": freed, "forgotten": apply}
        print_result(value, done if apply else dry, as_json=as_json)

    return command


def _trim(kind: Kind) -> Callable[..., None]:
    def command(
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
        wait: DeletionWait = limits.trim_wait_s,
        as_json: AsJson = False,
        token_file: TokenFile = None,
    ) -> None:
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

        async def work(store: Store) -> tuple[list[UnneededObject], bool]:
            retention = _open(kind, store, owner, name)
            found = await retention.unneeded()
            return found, not apply or await retention.trim_stopped(found, wait)

        found, clean = in_store(url, token_file, work)
        print_garbage(found, apply=apply, as_json=as_json)
        if not clean:
            fail("some segments are not deleted yet: a member is slow", NEGATIVE)

    return command
