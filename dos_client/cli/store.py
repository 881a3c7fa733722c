"""`dos store init | add | replace`; the other commands of the group are in `status` and `repairing`.

Rules of this file: arguments in, text or JSON out. Exit codes are in `kit`.
"""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from dos_client.cli.kit import AsJson, StoreUrl, TokenFile, print_result, read_token, run
from dos_client.cli.progress import ProgressShown
from dos_client.membership.filling import ReplaceProgress
from dos_client.membership.founding import init_store
from dos_client.membership.replacing import add_member, replace_member
from dos_protocol.names import id_text
from dos_protocol.store_record import StoreRecord


def record_json(record: StoreRecord) -> dict[str, Any]:
    """A store record for programs."""
    return {
        "store_id": id_text(record.store_id),
        "generation": record.generation,
        "ack_quorum": record.ack_quorum,
        "members": [
            {"address": one.address, "server_id": id_text(one.server_id), "state": one.state}
            for one in record.members
        ],
    }


def add(
    url: StoreUrl,
    new: Annotated[str, typer.Argument(help="Server to add: host:port, empty, in no store.")],
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Make a store one larger by a new, empty server, and fill it. Every member is needed while that lasts.

    Interrupted, run the same command again: it goes on where it was.

    Example: dos store add dos://h1,h2 h3:9999
    """

    async def work() -> StoreRecord:
        with ProgressShown(quiet=as_json) as shown:
            return await add_member(
                url,
                new=new,
                progress=filling_shown(shown),
                token=read_token(token_file),
                client="dos store add",
            )

    record = run(work)
    text = f"{new} is in: {len(record.members)} members, generation {record.generation}"
    print_result(record_json(record), text, as_json=as_json)


def filling_shown(shown: ProgressShown) -> Callable[[ReplaceProgress], None]:
    """Shows how far the filling of a member is."""

    def tell(now: ReplaceProgress) -> None:
        text = now.phase
        if now.directories:
            text += f", {now.directories_done} of {now.directories} directories"
        shown.tell(text, now.bytes_done, now.bytes_total, now.phase)

    return tell


def init(
    url: StoreUrl,
    ack_quorum: Annotated[
        int | None,
        typer.Option(min=1, help="Members that must hold a byte. Default: 1 of 1, 2 of 2, 2 of 3."),
    ] = None,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Make the servers of the URL a store. They must all answer and be empty; doing it twice changes nothing.

    Example: dos store init dos://127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003
    """

    async def work() -> StoreRecord:
        return await init_store(
            url, ack_quorum=ack_quorum, token=read_token(token_file), client="dos store init"
        )

    record = run(work)
    text = (
        f"store {id_text(record.store_id)} of {len(record.members)} servers, acknowledged by"
        f" {record.ack_quorum}, generation {record.generation}"
    )
    print_result(record_json(record), text, as_json=as_json)


def replace(
    url: StoreUrl,
    old: Annotated[str, typer.Argument(help="Member to replace: host:port, or its identity in hex.")],
    new: Annotated[str, typer.Argument(help="Server to put in its place: host:port, empty, in no store.")],
    other_is_gone: Annotated[
        bool,
        typer.Option(
            "--other-is-gone",
            help="Your word that OLD is gone for good, and that nobody goes on with it elsewhere. Needed, and"
            " taken, only when too few members are there to agree: of two, one is dead; or one is dead"
            " while another was being added, which is given up by it.",
        ),
    ] = False,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Put a new, empty server in the place of a member, and fill it. Writers go on meanwhile.

    The old member may be dead, or wiped; the new one may stand at its address. One replacement at a time.
    Interrupted, run the same command again: it goes on where it was.

    Of two members both are needed. When one is dead, --other-is-gone goes on with the other alone: nothing
    acknowledged is lost, because it is on both. But should somebody do the same with the dead one, there are
    two stores that know nothing of each other. It is written down in the store, see `dos store status --log`.

    Example: dos store replace dos://h1,h2,h3 h3:9999 h4:9999
    """

    async def work() -> StoreRecord:
        with ProgressShown(quiet=as_json) as shown:
            return await replace_member(
                url,
                old=old,
                new=new,
                other_is_gone=other_is_gone,
                progress=filling_shown(shown),
                token=read_token(token_file),
                client="dos store replace",
            )

    record = run(work)
    text = f"{new} is in, in the place of {old}: generation {record.generation}"
    print_result(record_json(record), text, as_json=as_json)
