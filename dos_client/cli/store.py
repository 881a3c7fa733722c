"""`dos store init | add | replace`: the commands that change the members of a store."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from dos_client.cli.kit import AsJson, StoreUrl, TokenFile, print_result, read_token, run
from dos_client.cli.progress import ProgressDisplay
from dos_client.membership.filling import ReplaceProgress
from dos_client.membership.founding import init_store
from dos_client.membership.replacing import add_member, replace_member
from dos_protocol.names import id_text
from dos_protocol.store_record import StoreRecord


def record_json(record: StoreRecord) -> dict[str, Any]:
    """Return a store record for --json."""
    return {
        "store_id": id_text(record.store_id),
        "generation": record.generation,
        "ack_quorum": record.ack_quorum,
        "members": [
            {"address": one.address, "server_id": id_text(one.server_id), "state": one.state}
            for one in record.members
        ],
        "spares": [{"address": one.address, "server_id": id_text(one.server_id)} for one in record.spares],
    }


def add(
    url: StoreUrl,
    new: Annotated[str, typer.Argument(help="Server to add, as host:port; empty, and not in a store.")],
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Add a new, empty server to a store, and fill it. Every member must be available until that is done.

    If it is interrupted, run the same command again: it continues where it stopped.

    Example: dos store add dos://h1,h2 h3:9999
    """

    async def work() -> StoreRecord:
        with ProgressDisplay(quiet=as_json) as display:
            return await add_member(
                url,
                new=new,
                progress=filling_progress(display),
                token=read_token(token_file),
                client="dos store add",
            )

    record = run(work)
    text = f"{new} is a member: {len(record.members)} members, generation {record.generation}"
    print_result(record_json(record), text, as_json=as_json)


def filling_progress(display: ProgressDisplay) -> Callable[[ReplaceProgress], None]:
    """Return a function that shows the progress of filling a member."""

    def show(now: ReplaceProgress) -> None:
        text = now.phase
        if now.directories:
            text += f", {now.directories_done} of {now.directories} directories"
        display.show(text, now.bytes_done, now.bytes_total, now.phase)

    return show


def init(
    url: StoreUrl,
    ack_quorum: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Members that must hold a byte before it is acknowledged. Default: 1 of 1, 2 of 2, 2 of 3.",
        ),
    ] = None,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Make the servers of the URL a store. All must answer and be empty. Running it again changes nothing.

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
    old: Annotated[str, typer.Argument(help="Member to replace, as host:port or by its identity in hex.")],
    new: Annotated[str, typer.Argument(help="Its replacement, as host:port; empty, and not in a store.")],
    other_is_gone: Annotated[
        bool,
        typer.Option(
            "--other-is-gone",
            help="Confirm that OLD is gone for good and is not used by any other store. Needed, and accepted,"
            " only if too few members are available to agree: one of two is dead, or one is dead while"
            " another was being added; the addition is then given up.",
        ),
    ] = False,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Replace a member by a new, empty server, and fill it. Writers continue meanwhile.

    The old member may be dead or wiped; the new one may have its address. Only one replacement can run at a
    time. If it is interrupted, run the same command again: it continues where it stopped.

    A store of two members needs both. If one is dead, --other-is-gone continues with the other alone: no
    acknowledged byte is lost, because both members hold it. If the same is done with the dead member, two
    stores exist that do not know of each other. The store records it: see `dos store status --log`.

    Example: dos store replace dos://h1,h2,h3 h3:9999 h4:9999
    """

    async def work() -> StoreRecord:
        with ProgressDisplay(quiet=as_json) as display:
            return await replace_member(
                url,
                old=old,
                new=new,
                other_is_gone=other_is_gone,
                progress=filling_progress(display),
                token=read_token(token_file),
                client="dos store replace",
            )

    record = run(work)
    text = f"{new} has replaced {old}: generation {record.generation}"
    print_result(record_json(record), text, as_json=as_json)
