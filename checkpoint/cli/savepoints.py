"""`dos region savepoint` and `drop_savepoint`: cuts that stay restorable until somebody lets them go.

Rules of this file: arguments in, text or JSON out. What a pin is, is in `core/savepoints.py`.
"""

from collections.abc import Callable
from typing import Annotated, Any

import trio
import typer

from checkpoint import limits
from checkpoint.chains.manifest_reading import read_manifest
from checkpoint.cli.requests import Timeout, Wait, accepted, end
from checkpoint.cli.support import NEGATIVE, RegionName, StoreUrl, complete_cut, in_store
from checkpoint.coordinator.manifest_host import StoreHost
from checkpoint.core.manifest import savepoint_name_problem
from checkpoint.errors import NoAnswerError, RegionFencedError, SavepointRefusedError
from checkpoint.maintenance.stand_in import savepoint_stopped
from checkpoint.requests.client import Reply, RequestClient
from dos_client import Store
from dos_client.cli.support import REFUSED, AsJson, TokenFile, fail, print_json
from dos_protocol.errors import FencedError

Stopped = Annotated[
    bool,
    typer.Option(
        "--stopped",
        help="The region does not run: take its driver's place for a moment. A driver that is alive after all"
        " is fenced, and ends.",
    ),
]
SavepointName = Annotated[
    str, typer.Argument(help="Name of the pin: letters, digits, '.', '_' and '-'.", metavar="PIN")
]


def savepoint(
    url: StoreUrl,
    name: RegionName,
    savepoint_name: SavepointName,
    cut: Annotated[
        int,
        typer.Option(
            min=0,
            help="Which cut; 0: the last one. It must be retained still: see `dos checkpoint ls`.",
            autocompletion=complete_cut,
            metavar="CUT",
        ),
    ] = 0,
    stopped: Stopped = False,
    timeout: Timeout = limits.request_patience_s,
    wait: Wait = limits.drain_timeout_s,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Keep a cut restorable until its pin is let go, however many cuts follow and whoever drives the region.

    The pin is in the cut that is committed for it. While it holds, the store keeps what that cut needs. A
    region that runs is asked for it; of one that is stopped the last cut is recorded once more, with the pin:
    say --stopped. It goes on from there as from the cut itself.

    Example: dos region pin dos://h1,h2,h3 wordcount before-the-migration

    Example: dos region pin dos://h1,h2,h3 wordcount good --cut 41

    Example: dos region pin dos://h1,h2,h3 wordcount the-end --stopped

    Exit codes: 0 pinned, and committed; 1 refused, or not done in time; 2 usage; 3 the store cannot be
    reached.
    """
    words = f"cut {{}} stays restorable, as {savepoint_name}".format
    if stopped:
        _stand_in(url, token_file, name, savepoint_name, cut, wait, words, on=True, as_json=as_json)
        return
    reply = _savepoint(url, token_file, name, "pin", savepoint_name, cut, timeout, wait, as_json=as_json)
    end(reply, as_json, lambda done: words(done.get("cut")))


def drop_savepoint(
    url: StoreUrl,
    name: RegionName,
    savepoint_name: SavepointName,
    stopped: Stopped = False,
    timeout: Timeout = limits.request_patience_s,
    wait: Wait = limits.drain_timeout_s,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Let a pin go: its cut is released, unless it is one of the last ones or has another pin.

    What only that cut needed is deleted then, for good. Of a stopped region, with --stopped, it is the next
    driver's cuts that release it.

    Example: dos region unpin dos://h1,h2,h3 wordcount before-the-migration

    Example: dos region unpin dos://h1,h2,h3 wordcount the-end --stopped

    Exit codes: 0 let go, and committed; 1 refused, or not done in time; 2 usage; 3 the store cannot be
    reached.
    """
    words = f"pin {savepoint_name} of cut {{}} is let go".format
    if stopped:
        _stand_in(url, token_file, name, savepoint_name, 0, wait, words, on=False, as_json=as_json)
        return
    reply = _savepoint(url, token_file, name, "unpin", savepoint_name, 0, timeout, wait, as_json=as_json)
    end(reply, as_json, lambda done: words(done.get("cut")))


def _savepoint(
    url: str,
    token_file: Any,
    name: str,
    what: str,
    savepoint_name: str,
    cut: int,
    timeout: float,
    wait: float,
    *,
    as_json: bool,
) -> Reply:
    if problem := savepoint_name_problem(savepoint_name):
        fail(problem, REFUSED)

    async def work(store: Store) -> Reply:
        await read_manifest(store, name)
        try:
            return await RequestClient(store, name).ask(
                what,
                patience_s=timeout,
                wait_s=wait,
                accepted=accepted(as_json),
                name=savepoint_name,
                cut=cut,
            )
        except NoAnswerError as silence:
            fail(f"{silence}. If the region does not run, say --stopped", NEGATIVE)

    return in_store(url, token_file, work)


def _stand_in(
    url: str,
    token_file: Any,
    name: str,
    savepoint_name: str,
    cut: int,
    wait: float,
    words: Callable[[int], str],
    *,
    on: bool,
    as_json: bool,
) -> None:
    """Do it where no driver runs. What is refused, or not done in time, ends the command."""
    if problem := savepoint_name_problem(savepoint_name):
        fail(problem, REFUSED)

    async def work(store: Store) -> int:
        await read_manifest(store, name)
        try:
            with trio.fail_after(wait):
                return await savepoint_stopped(StoreHost(store), name, savepoint_name, cut, on=on)
        except (SavepointRefusedError, RegionFencedError, FencedError) as error:
            fail(str(error), NEGATIVE)
        except trio.TooSlowError:
            fail(
                f"not done in {wait:g} s, and perhaps it was: `dos checkpoint ls` says what is pinned, `dos store"
                " status` who is away",
                NEGATIVE,
            )

    done = in_store(url, token_file, work)
    if as_json:
        print_json({"name": name, "pin": savepoint_name, "cut": done, "stopped": True})
    else:
        print(words(done))


def add_commands(app: typer.Typer) -> None:
    """Make them commands of that app."""
    for command in (savepoint, drop_savepoint):
        app.command()(command)
