"""What the commands on regions and inputs share: arguments with completion by the shell, and sending a
request.

Exit codes are those of `dos_client.cli.kit`. An error of `NEGATIVE_ANSWERS` is an answer, with exit code 1.

A command that only sends a request is a row of `VERBS` (`core/verbs.py`); the name of the command is the
name of the request. The region's driver decides what a request does; which answer counts, by
`requests/client.py`.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import trio
import typer

from checkpoint import limits
from checkpoint.chains.manifest_log import ManifestView, StoreHost, read_manifest, regions_of
from checkpoint.core.progress import under_way_text
from checkpoint.core.records.inputs import check_input_name
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.requests import Answer
from checkpoint.core.verbs import VERBS, Verb
from checkpoint.errors import (
    CheckpointReleasedError,
    ConsumerRefusedError,
    DeletionRefusedError,
    ForkRefusedError,
    ManifestError,
    NoAnswerError,
    NoInputError,
    NoRegionError,
    NoSinkError,
    RegionFencedError,
    ReleaseRefusedError,
    RestoreRefusedError,
    SavepointRefusedError,
)
from checkpoint.maintenance.stopped_region import act_stopped
from checkpoint.requests.client import Reply, RequestClient
from dos_client import Store, open_store
from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    Call,
    CommandFunction,
    Ends,
    Report,
    StoreUrl,
    command,
    count_text,
    fail,
    print_json,
    read_token,
    warn,
)
from dos_client.errors import QuorumUnavailableError
from dos_client.tasks import background_tasks
from dos_protocol.errors import BadNameError, DosError, FencedError
from dos_protocol.names import check_name

NEGATIVE_ANSWERS: Final = (
    NoRegionError,
    NoInputError,
    NoAnswerError,
    ManifestError,
    CheckpointReleasedError,
    ConsumerRefusedError,
    NoSinkError,
    DeletionRefusedError,
    ForkRefusedError,
    RegionFencedError,
    ReleaseRefusedError,
    RestoreRefusedError,
    SavepointRefusedError,
)
ANSWERS: Final = Ends(NEGATIVE_ANSWERS)
_COMPLETION_S: Final = 2.0
_STATUS_EVERY_S: Final = 1.0
"""A command that waits for a driver says on the terminal what that does; a status is a small record."""


def _completed(ctx: typer.Context, read: Callable[[Store], Awaitable[list[str]]], begun: str) -> list[str]:
    """Return the names that begin so, or none within two seconds. Completion reports no errors."""
    url, token_file = ctx.params.get("url"), ctx.params.get("token_file")
    if not isinstance(url, str):
        return []

    async def work() -> list[str]:
        with trio.move_on_after(_COMPLETION_S):
            async with open_store(url, token=read_token(Path(token_file) if token_file else None)) as store:
                return await read(store)
        return []

    logged = logging.root.manager.disable
    logging.disable()  # a warning would be printed into the line that the user types
    try:
        return [name for name in trio.run(work) if name.startswith(begun)]
    except (DosError, OSError, typer.Exit):
        return []
    finally:
        logging.disable(logged)


def complete_region(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names of the store's regions."""
    return _completed(ctx, regions_of, incomplete)


def complete_checkpoint(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return numbers of the region's checkpoints."""

    async def numbers(store: Store) -> list[str]:
        return [
            str(checkpoint.number)
            for checkpoint in (await read_manifest(store, str(ctx.params.get("name")))).checkpoints
        ]

    return _completed(ctx, numbers, incomplete)


def complete_savepoint(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names of the region's savepoints."""

    async def names(store: Store) -> list[str]:
        last = (await read_manifest(store, str(ctx.params.get("name")))).last
        return sorted(last.savepoints) if last is not None else []

    return _completed(ctx, names, incomplete)


def complete_target(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the checkpoints that the region can be restored to, by name or number."""

    async def targets(store: Store) -> list[str]:
        view = await read_manifest(store, str(ctx.params.get("name")))
        savepoints = sorted(view.last.savepoints) if view.last is not None else []
        return [*(f"savepoint:{name}" for name in savepoints), *(f"checkpoint:{n}" for n in view.retained)]

    return _completed(ctx, targets, incomplete)


def _checked_name(name: str) -> str:
    try:
        return check_name(name)
    except BadNameError as error:
        raise typer.BadParameter(str(error)) from error


RegionName = Annotated[
    str,
    typer.Argument(
        help="The region's name, as passed to `run`.",
        autocompletion=complete_region,
        callback=_checked_name,
        metavar="NAME",
    ),
]
Application = Annotated[
    str, typer.Argument(help="The application's name, as passed to `run`.", metavar="APPLICATION")
]
Handle = Annotated[
    str,
    typer.Argument(
        help="The input's name, as in InputSource(HANDLE, ...) or the option `input` of a Spark sink.",
        metavar="HANDLE",
    ),
]
Timeout = Annotated[
    float, typer.Option(min=0.1, max=86_400, help="Seconds to wait for a first answer.", metavar="SECONDS")
]
DeletionWait = Annotated[
    float, typer.Option(min=1, max=86_400, help="Seconds to wait for the deletion.", metavar="SECONDS")
]
Why = Annotated[
    str,
    typer.Option(
        help=f"A note for people: one line, at most {limits.savepoint_why_chars_max} characters.",
        metavar="TEXT",
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        min=0.1,
        max=604_800,
        help="Seconds to wait until an accepted request is done.",
        metavar="SECONDS",
    ),
]
Incarnation = Annotated[
    int,
    typer.Option(
        min=0,
        help="Refuse unless this incarnation is running, as `status` shows it; 0: any.",
        metavar="NUMBER",
    ),
]
Stopped = Annotated[
    bool,
    typer.Option(
        "--stopped",
        help="The region does not run: act as its driver for a moment. A driver that still runs is fenced"
        " and ends.",
    ),
]


def check_input_names(application: str, handle: str, producer: str = "") -> None:
    """End the command if a name is not valid."""
    try:
        check_name(application)
        check_input_name("an input handle", handle)
        if producer:
            check_input_name("an entry point", producer)
    except BadNameError as error:
        fail(str(error), REFUSED)


def checkpoint_of(view: ManifestView, number: int | None, *, back: int = 0) -> Checkpoint:
    """Return the checkpoint of that number, or the newest but `back`. End the command if there is none.

    Raises CheckpointReleasedError for a checkpoint that the manifest no longer lists.
    """
    numbers = [checkpoint.number for checkpoint in view.checkpoints]
    if number is None:
        if len(numbers) <= back:
            fail(
                f"the manifest of region {view.region} shows {len(numbers)} checkpoints, {back + 1} are"
                " needed",
                NEGATIVE,
            )
        return view.checkpoints[-1 - back]
    if view.last is not None and 0 < number < view.last.number and number not in numbers:
        return view.restorable(number)  # raises: a number below the last one was released and forgotten
    if number not in numbers:
        known = f"it shows {_range_text(numbers)}" if numbers else "it shows none"
        fail(f"the manifest of region {view.region} has no checkpoint {number}: {known}", NEGATIVE)
    return view.checkpoints[numbers.index(number)]


def _range_text(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def add_request_commands(app: typer.Typer) -> None:
    """Make the verbs whose command only sends the request commands of the app."""
    for verb in VERBS.values():
        if verb.help:
            add(app, verb.name, waits_s=verb.wait_s)(_command_of(verb))


def add(
    app: typer.Typer, name: str, *, asks: bool = False, waits_s: float = 0.0, wait: Any = Wait
) -> Callable[[CommandFunction], CommandFunction]:
    """Make an async function a command of the app, as `dos_client.cli.kit.command` does. Errors of
    `NEGATIVE_ANSWERS` are answers.

    asks: it has --timeout. waits_s: it has that, and --wait with this default and the type `wait`.
    """
    timeout = (Timeout, limits.request_patience_s) if asks or waits_s else None
    return command(app, name, timeout=timeout, wait=(wait, waits_s) if waits_s else None, ends=ANSWERS)


def _command_of(verb: Verb) -> Callable[..., Awaitable[Report]]:
    async def send(call: Call, url: StoreUrl, name: RegionName, incarnation: Incarnation = 0) -> Report:
        async with call.store(url) as store:
            reply = await send_request(call, store, name, verb.name, incarnation=incarnation)
            if verb.in_manifest and reply.answer.verdict == "done":
                last = (await read_manifest(store, name)).last
                if last is None or last.number < reply.answer.result.get("checkpoint", 0):
                    fail("the driver reports that checkpoint, but the manifest does not show it", NEGATIVE)
        return answered(call, reply, verb.name)

    send.__doc__ = (
        f"{verb.help}\n\nExample: dos region {verb.name} dos://h1,h2,h3 wordcount\n\nExit codes: 0"
        f" {verb.exit_0}; 1 refused, or not done in time; 2 usage; 3 the store cannot be reached."
    )
    return send


async def send_request(
    call: Call,
    store: Store,
    name: str,
    what: str,
    fields: Mapping[str, Any] | None = None,
    *,
    incarnation: int = 0,
    may_be_stopped: bool = False,
) -> Reply:
    """Send a request to a region and wait for the final answer. An accepted request is reported on standard
    error, unless JSON is printed. fields: what else the `Request` says. may_be_stopped: the command has
    --stopped, which the error names if no driver answers.

    Raises NoRegionError before anything is written, and as `RequestClient.send`.
    """
    await read_manifest(store, name)

    def accepted(answer: Answer) -> None:
        if not call.as_json:
            warn(f"accepted by {answer.driver}: {answer.reason}")
        call.display.say(f"waits for region {name}: {what}")
        if call.display.is_seen:
            nursery.start_soon(_say_status, call, store, name)

    call.display.say(f"waits at most {call.timeout_s:g} s for an answer of a driver of region {name}")
    try:
        async with background_tasks() as nursery:
            return await RequestClient(store, name).send(
                what,
                incarnation=incarnation,
                patience_s=call.timeout_s,
                wait_s=call.wait_s,
                accepted=accepted,
                **(fields or {}),
            )
    except NoAnswerError as silence:
        if may_be_stopped:
            fail(f"{silence}. If the region does not run, pass --stopped", NEGATIVE)
        raise


async def _say_status(call: Call, store: Store, name: str) -> None:
    """Say on the terminal what the driver does, until cancelled: for example, whose votes it waits for."""
    client = RequestClient(store, name)
    while True:
        await trio.sleep(_STATUS_EVERY_S)
        try:
            found = (await client.send("status")).answer.result
        except (NoAnswerError, QuorumUnavailableError) as silence:
            call.display.say(f"waits for region {name}: {silence}")
        else:
            call.display.say(f"waits for region {name}: {doing_text(found)}")


def doing_text(found: Mapping[str, Any]) -> str:
    """Return in one line what the driver of a region does, of its status in JSON."""
    text = str(found.get("state", "no status"))
    if change := found.get("scaling"):
        return f"{text}, {change_text(change, len(found.get('workers', [])))}"
    if under_way := found.get("underWay"):
        return f"{text}, {under_way_text(under_way)}"
    return text


def change_text(change: dict[str, Any], workers: int) -> str:
    """Return one line about a change of the workers that is under way."""
    if (heir := change.get("handsTo")) is not None:
        lent = change["phase"] == "handing over"
        waits = (
            f"lent, at most {limits.lease_s:g} s, until that driver claims it" if lent else "pausing for it"
        )
        return f"handing over to the driver of {heir or '?'} for {change['seconds']:.1f} s: {waits}"
    if change["replaces"] is not None:
        text = f"replacing worker {change['replaces']} for {change['seconds']:.1f} s: {change['phase']}"
    else:
        text = (
            f"going from {workers} to {change['workers']} workers for {change['seconds']:.1f} s:"
            f" {change['phase']}, {count_text(change['copiedBytes'])} of"
            f" {count_text(change['totalBytes'])} copied"
        )
    return f"{text}; it will pause for about {change['pauseSeconds'] or 0.0:.1f} s"


async def request_or_act(
    call: Call, store: Store, name: str, what: str, fields: Mapping[str, Any], *, stopped: bool
) -> Report:
    """Send a request, or, if the region is `stopped`, act as its driver for at most --wait seconds. Return
    the report. A refusal ends the command.
    """
    if not stopped:
        return answered(call, await send_request(call, store, name, what, fields, may_be_stopped=True), what)
    await read_manifest(store, name)
    call.display.say(f"acts as the driver of region {name}, at most {call.wait_s:g} s")
    try:
        with trio.fail_after(call.wait_s):
            result = await act_stopped(StoreHost(store), name, what, fields)
    except FencedError as error:
        fail(str(error), NEGATIVE)
    except trio.TooSlowError:
        fail(
            f"not done within {call.wait_s:g} s, but it may have been done since: {VERBS[what].shown_by},"
            " `dos store status` shows the members that are unavailable",
            NEGATIVE,
        )
    savepoint = {"savepoint": result["name"]} if "name" in result else {}
    return Report({**result, **savepoint, "name": name, "stopped": True}, done_text(what, result))


def done_text(what: str, result: Mapping[str, Any]) -> str:
    """Return in words that a request was done."""
    shown: dict[str, Any] = {
        name: ", ".join(map(str, value)) if isinstance(value, list) else value
        for name, value in result.items()
    }
    if "bytes" in shown:
        shown["bytes"] = count_text(shown["bytes"])
    return VERBS[what].done.format_map(shown)


def answered(call: Call, reply: Reply, what: str) -> Report:
    """Return the report of a final answer. End the command if the request was not done."""
    answer = reply.answer
    value = _answer_json(answer) | {"supersededBy": reply.superseded_by or None}
    if answer.verdict != "done" and call.as_json:
        print_json(value)
    fail_unless_done(answer)
    since = f"since then the manifest was claimed with epoch {reply.superseded_by}"
    text = done_text(what, answer.result)
    return Report(value, f"{text}\n{since}" if reply.superseded_by else text)


def fail_unless_done(answer: Answer) -> None:
    """End the command with the reason if the request was not done."""
    if answer.verdict != "done":
        fail(f"{answer.verdict} by {answer.driver}: {answer.reason}", NEGATIVE)


def _answer_json(answer: Answer) -> dict[str, Any]:
    return {
        "name": answer.region,
        "verdict": answer.verdict,
        "reason": answer.reason,
        "driver": answer.driver,
        "incarnation": answer.incarnation,
        "timeMs": answer.wall_time_ms,
        "result": answer.result,
    }
