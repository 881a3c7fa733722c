"""`dos region pin` and `unpin`: cuts that stay restorable until somebody lets them go.

Rules of this file: arguments in, text or JSON out. What a pin is, is in `core/pinning.py`.
"""

from typing import Annotated, Any

import typer

from checkpoint import limits
from checkpoint.cli.asking import Timeout, Wait, accepted, end
from checkpoint.cli.support import RegionName, StoreUrl, complete_cut, in_store
from checkpoint.core.manifest import pin_name_problem
from checkpoint.manifest_reading import read_manifest
from checkpoint.requesting import Asking, Reply
from dos_client import Store
from dos_client.cli.support import REFUSED, AsJson, TokenFile, fail

PinName = Annotated[
    str, typer.Argument(help="Name of the pin: letters, digits, '.', '_' and '-'.", metavar="PIN")
]


def pin(
    url: StoreUrl,
    name: RegionName,
    pin_name: PinName,
    cut: Annotated[
        int,
        typer.Option(
            min=0,
            help="Which cut; 0: the last one. It must be retained still: see `dos cuts ls`.",
            autocompletion=complete_cut,
            metavar="CUT",
        ),
    ] = 0,
    timeout: Timeout = limits.request_patience_s,
    wait: Wait = limits.drain_timeout_s,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Keep a cut restorable until its pin is let go, however many cuts follow and whoever drives the region.

    The pin is in the cut that is committed for it. While it holds, the store keeps what that cut needs. Only
    a running region can be asked; while none runs, nothing is released.

    Example: dos region pin dos://h1,h2,h3 wordcount before-the-migration

    Example: dos region pin dos://h1,h2,h3 wordcount good --cut 41

    Exit codes: 0 pinned, and committed; 1 refused, or not done in time; 2 usage; 3 the store cannot be
    reached.
    """
    reply = _pinned(url, token_file, name, "pin", pin_name, cut, timeout, wait, as_json=as_json)
    end(reply, as_json, lambda done: f"cut {done.get('cut')} stays restorable, as {pin_name}")


def unpin(
    url: StoreUrl,
    name: RegionName,
    pin_name: PinName,
    timeout: Timeout = limits.request_patience_s,
    wait: Wait = limits.drain_timeout_s,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Let a pin go: its cut is released, unless it is one of the last ones or has another pin.

    What only that cut needed is deleted then, for good.

    Example: dos region unpin dos://h1,h2,h3 wordcount before-the-migration

    Exit codes: 0 let go, and committed; 1 refused, or not done in time; 2 usage; 3 the store cannot be
    reached.
    """
    reply = _pinned(url, token_file, name, "unpin", pin_name, 0, timeout, wait, as_json=as_json)
    end(reply, as_json, lambda done: f"pin {pin_name} of cut {done.get('cut')} is let go")


def _pinned(
    url: str,
    token_file: Any,
    name: str,
    what: str,
    pin_name: str,
    cut: int,
    timeout: float,
    wait: float,
    *,
    as_json: bool,
) -> Reply:
    if problem := pin_name_problem(pin_name):
        fail(problem, REFUSED)

    async def work(store: Store) -> Reply:
        await read_manifest(store, name)
        return await Asking(store, name).ask(
            what,
            patience_s=timeout,
            wait_s=wait,
            accepted=accepted(as_json),
            name=pin_name,
            cut=cut,
        )

    return in_store(url, token_file, work)


def add_commands(app: typer.Typer) -> None:
    """Make them commands of that app."""
    for command in (pin, unpin):
        app.command()(command)
