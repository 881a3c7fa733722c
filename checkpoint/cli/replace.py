"""`dos region replace`: other processes for workers of a running region. `core/rescaling.py` decides."""

from typing import Annotated, Any

import typer

from checkpoint import limits
from checkpoint.cli.arguments import Incarnation, RegionName, Timeout, Wait, in_store
from checkpoint.cli.requests import end, send_request
from checkpoint.requests.client import Reply
from dos_client import Store
from dos_client.cli.kit import REFUSED, AsJson, StoreUrl, TokenFile, fail


def replace(
    url: StoreUrl,
    name: RegionName,
    worker: Annotated[
        list[int] | None,
        typer.Option(min=0, max=limits.workers_max - 1, metavar="NUMBER", help="A worker; may be repeated."),
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="All workers, one after the other.")] = False,
    incarnation: Incarnation = 0,
    timeout: Timeout = limits.request_patience_s,
    wait: Wait = limits.start_timeout_s + limits.reset_timeout_s,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Replace workers of a running region by new processes, one after the other.

    For a rolling upgrade: install the other version where workers run, then replace them. Each new process
    joins before the region pauses, and continues with the state of its predecessor. A process whose version
    does not fit is refused by name, and the region keeps the one that it has. This needs one task slot more
    than the region has. `dos region scale --cancel` gives up a replacement that is under way.

    Example: dos region replace dos://h1,h2,h3 wordcount --all

    Example: dos region replace dos://h1,h2,h3 wordcount --worker 3 --worker 4

    Exit codes: 0 all are replaced; 1 refused, or one is not replaced, or not done in time; 2 usage; 3 the
    store cannot be reached.
    """
    if bool(worker) == everyone:
        fail("pass either --worker with a number, or --all", REFUSED)

    async def send(store: Store) -> Reply:
        return await send_request(
            store,
            name,
            "replace",
            incarnation=incarnation,
            timeout=timeout,
            wait=wait,
            as_json=as_json,
            replaces=tuple(worker or ()),
        )

    def text(done: dict[str, Any]) -> str:
        return (
            f"replaced: {', '.join(map(str, done.get('replaced', [])))}, in {done.get('seconds', 0.0):.1f} s;"
            f" no input was taken for {done.get('pauseSeconds', 0.0):.1f} s at a time"
        )

    end(in_store(url, token_file, send), as_json, text)
