"""`dos region scale`: the number of workers of a running region. `core/rescaling.py` has the rules."""

from typing import Annotated, Any

import typer

from checkpoint import limits
from checkpoint.cli.arguments import Incarnation, RegionName, Timeout, Wait, in_store
from checkpoint.cli.requests import end, send_request
from checkpoint.requests.client import Reply
from dos_client import Store
from dos_client.cli.kit import REFUSED, AsJson, StoreUrl, TokenFile, fail


def scale(
    url: StoreUrl,
    name: RegionName,
    workers: Annotated[
        int, typer.Option(min=0, max=limits.workers_max, help="The number of workers to go to.")
    ] = 0,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Give up a change that is under way, instead.")
    ] = False,
    incarnation: Incarnation = 0,
    timeout: Timeout = limits.request_patience_s,
    wait: Wait = limits.start_timeout_s + limits.reset_timeout_s,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
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

    async def send(store: Store) -> Reply:
        what = "unscale" if cancel else "scale"
        return await send_request(
            store,
            name,
            what,
            incarnation=incarnation,
            timeout=timeout,
            wait=wait,
            as_json=as_json,
            workers=workers,
        )

    def text(done: dict[str, Any]) -> str:
        if cancel:
            return f"given up: the region keeps {done.get('workers')} workers"
        return (
            f"the region has {done.get('workers')} workers, after {done.get('seconds', 0.0):.1f} s;"
            f" no input was taken for {done.get('pauseSeconds', 0.0):.1f} s of them"
        )

    end(in_store(url, token_file, send), as_json, text)
