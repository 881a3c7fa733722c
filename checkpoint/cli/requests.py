"""The commands of `dos region` that send one request and print its result, as one table.

To add such a command, add a row to `REQUESTS`; the name of the command is the name of the request. What a
request does is decided by the region's driver (`core/request_handling.py`); which answer counts, by
`requests/client.py`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import trio
import typer

from checkpoint import limits
from checkpoint.chains.manifest_reading import read_manifest
from checkpoint.cli.arguments import Incarnation, RegionName, Timeout, Wait, in_store
from checkpoint.core.request_records import Answer
from checkpoint.errors import (
    NoAnswerError,
    RegionFencedError,
    RestoreRefusedError,
    SavepointRefusedError,
)
from checkpoint.requests.client import Reply, RequestClient
from dos_client import Store
from dos_client.cli.kit import NEGATIVE, AsJson, StoreUrl, TokenFile, count_text, fail, print_json, warn
from dos_protocol.errors import FencedError

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RequestCommand:
    """One command. Every command takes the store, the region, --incarnation, --timeout, --wait and --json."""

    name: str
    help: str
    done: str
    """The meaning of exit code 0."""
    wait_s: float
    """Default of --wait: seconds from the first answer to the final one."""
    text: Callable[[Result], str]
    """Returns the text to print for the result of a request that was done."""
    in_manifest: bool = False
    """Whether the manifest must also show the checkpoint of the result: an answer alone is not enough."""


REQUESTS: Final = (
    RequestCommand(
        "checkpoint",
        "Commit a checkpoint now, and wait for it. It contains everything read before the request.",
        "committed, and the manifest shows it",
        limits.drain_timeout_s,
        lambda done: f"checkpoint {done.get('checkpoint')} at step {done.get('step')} is committed",
        in_manifest=True,
    ),
    RequestCommand(
        "reset",
        "Reset the region to its last committed checkpoint, as after the loss of a worker, and wait until it"
        " runs.\n\nThe reset does not count as one of the region's reset attempts. Input read since that"
        " checkpoint is read again.",
        "done",
        limits.reset_timeout_s,
        lambda done: (
            f"back at checkpoint {done.get('checkpoint')} in {done.get('seconds', 0.0):.1f} s,"
            f" {count_text(done.get('bytes', 0))} replayed; incarnation {done.get('incarnation')}"
        ),
    ),
    RequestCommand(
        "pause",
        "Pause the region: it reads no more input. Wait until everything it has read is in a checkpoint."
        "\n\nThe workers keep running and keep their state; `dos region resume` continues. A region that is"
        " started again is not paused.",
        "paused",
        limits.drain_timeout_s,
        lambda done: f"PAUSED at checkpoint {done.get('checkpoint')}, step {done.get('step')}",
    ),
    RequestCommand(
        "resume",
        "Resume a paused region.",
        "resumed",
        limits.request_patience_s,
        lambda done: f"resumed from checkpoint {done.get('checkpoint')}: {done.get('state')}",
    ),
    RequestCommand(
        "stop",
        "Stop the region: it commits a last checkpoint, then its workers end. The next `run` of that name"
        " continues from the checkpoint.",
        "stopped",
        limits.stop_checkpoint_timeout_s + 2 * limits.stop_grace_s + limits.last_answers_s,
        lambda done: (
            f"{done.get('state')}: {done.get('reason')}; the last checkpoint is {done.get('lastCheckpoint')}"
        ),
    ),
)


def add_request_commands(app: typer.Typer) -> None:
    """Make the rows of `REQUESTS` commands of the app."""
    for row in REQUESTS:
        app.command(row.name)(_command_of(row))


def _command_of(row: RequestCommand) -> Callable[..., None]:
    def command(
        url: StoreUrl,
        name: RegionName,
        incarnation: Incarnation = 0,
        timeout: Timeout = limits.request_patience_s,
        wait: Wait = row.wait_s,
        as_json: AsJson = False,
        token_file: TokenFile = None,
    ) -> None:
        async def work(store: Store) -> tuple[Reply, bool]:
            reply = await send_request(
                store, name, row.name, incarnation=incarnation, timeout=timeout, wait=wait, as_json=as_json
            )
            if not row.in_manifest:
                return reply, True
            last = (await read_manifest(store, name)).last
            return reply, last is not None and last.number >= reply.answer.result.get("checkpoint", 0)

        reply, in_manifest = in_store(url, token_file, work)
        end(reply, as_json, row.text)
        if not in_manifest:
            fail("the driver reports that checkpoint, but the manifest does not show it", NEGATIVE)

    command.__doc__ = (
        f"{row.help}\n\nExample: dos region {row.name} dos://h1,h2,h3 wordcount\n\nExit codes: 0 {row.done};"
        " 1 refused, or not done in time; 2 usage; 3 the store cannot be reached."
    )
    return command


def accepted(as_json: bool) -> Callable[[Answer], None]:
    """Return a function that reports an accepted request on standard error, unless JSON is printed."""
    return lambda answer: None if as_json else warn(f"accepted by {answer.driver}: {answer.reason}")


async def send_request(
    store: Store,
    name: str,
    what: str,
    *,
    incarnation: int,
    timeout: float,
    wait: float,
    as_json: bool,
    **fields: Any,
) -> Reply:
    """Send a request to a region and wait for the final answer. fields: what else the `Request` says.

    Raises NoRegionError before anything is written, and as `RequestClient.send`.
    """
    await read_manifest(store, name)
    return await RequestClient(store, name).send(
        what,
        incarnation=incarnation,
        patience_s=timeout,
        wait_s=wait,
        accepted=accepted(as_json),
        **fields,
    )


async def send_to_running(
    client: RequestClient, what: str, *, timeout: float, wait: float, as_json: bool, **more: Any
) -> Reply:
    """Send a request of a command that has --stopped. End the command if no driver answers."""
    try:
        return await client.send(what, patience_s=timeout, wait_s=wait, accepted=accepted(as_json), **more)
    except NoAnswerError as silence:
        fail(f"{silence}. If the region does not run, pass --stopped", NEGATIVE)


def end(reply: Reply, as_json: bool, text: Callable[[Result], str]) -> None:
    """Print the final answer. End the command if the request was not done."""
    answer = reply.answer
    if as_json:
        print_json(_answer_json(answer) | {"supersededBy": reply.superseded_by or None})
    elif answer.verdict == "done":
        print(text(answer.result))
        if reply.superseded_by:
            print(f"since then the manifest was claimed with epoch {reply.superseded_by}")
    fail_unless_done(answer)


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


@contextmanager
def as_driver_of_stopped(wait_s: float, shown_by: str) -> Iterator[None]:
    """Act as the driver of a stopped region in the context, for at most `wait_s` seconds. A refusal ends the
    command. shown_by: the command that shows whether it was done.
    """
    try:
        with trio.fail_after(wait_s):
            yield
    except (SavepointRefusedError, RestoreRefusedError, RegionFencedError, FencedError) as error:
        fail(str(error), NEGATIVE)
    except trio.TooSlowError:
        fail(
            f"not done within {wait_s:g} s, but it may have been done since: {shown_by}, `dos store status`"
            " shows the members that are unavailable",
            NEGATIVE,
        )
