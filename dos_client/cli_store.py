"""`dos store init | status | replace`.

Rules of this file: arguments in, text or JSON out. Exit codes are in `cli_support`.
"""

import sys
from typing import Annotated, Any

import typer

from dos_client.cli_progress import Shown
from dos_client.cli_support import (
    NEGATIVE,
    UNREACHABLE,
    AsJson,
    TokenFile,
    print_json,
    read_token,
    run,
)
from dos_client.core.membership import Membership
from dos_client.core.quorum import Quorums
from dos_client.discovery import Survey, find_membership
from dos_client.filling import ReplaceProgress
from dos_client.founding import init_store
from dos_client.replacing import replace_member
from dos_client.urls import parse_url
from dos_protocol.names import id_text
from dos_protocol.store_record import StoreRecord

StoreUrl = Annotated[str, typer.Argument(help="dos://HOST:PORT,HOST2:PORT,HOST3:PORT", metavar="URL")]

store_app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Make a store of several servers, show it, replace a server in it.\n\n"
    "Example: dos store init dos://127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003",
)


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


def replace_text(now: ReplaceProgress) -> str:
    """The progress of filling a member, in words."""
    return f"{now.phase}, {now.directories_done} of {now.directories} directories"


@store_app.command()
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
    if as_json:
        print_json(record_json(record))
    else:
        print(
            f"store {id_text(record.store_id)} of {len(record.members)} servers, acknowledged by"
            f" {record.ack_quorum}, generation {record.generation}"
        )


@store_app.command()
def status(url: StoreUrl, as_json: AsJson = False, token_file: TokenFile = None) -> None:
    """Show the store that the servers of the URL belong to, and how each member is.

    Exit code 0 when all members are there, 1 when some are not, 3 when too few are to go on.

    Example: dos store status dos://127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003
    """

    async def work() -> tuple[Membership, Survey]:
        return await find_membership(
            parse_url(url).servers, token=read_token(token_file), client="dos store status"
        )

    membership, seen = run(work)
    record = membership.record
    problems = seen.problems(membership)
    if record is None:
        if as_json:
            print_json({"store": None, "problems": problems})
        for line in [] if as_json else ["no store record is confirmed", *problems]:
            print(f"dos: {line}", file=sys.stderr)
        raise typer.Exit(UNREACHABLE)
    present = {
        answer.server_id: answer.record.generation
        for answer in seen.answers
        if answer.record is not None and answer.record.store_id == record.store_id
    }
    enough = Quorums(record).can_take_over(list(present))
    if as_json:
        members = [
            {**one, "present": bytes.fromhex(one["server_id"]) in present}
            for one in record_json(record)["members"]
        ]
        print_json(
            {"store": {**record_json(record), "members": members}, "usable": enough, "problems": problems}
        )
    else:
        _print_status(record, present, problems, usable=enough)
    if not enough:
        raise typer.Exit(UNREACHABLE)
    if len(present) < len(record.members):
        raise typer.Exit(NEGATIVE)


def _print_status(
    record: StoreRecord, present: dict[bytes, int], problems: list[str], *, usable: bool
) -> None:
    print(
        f"store {id_text(record.store_id)}, generation {record.generation}, acknowledged by"
        f" {record.ack_quorum} of {len(record.voters)}: {'usable' if usable else 'too few members'}"
    )
    for member in record.members:
        there = f"generation {present[member.server_id]}" if member.server_id in present else "away"
        print(f"  {member.address:<24} {member.state:<8} {there:<14} {id_text(member.server_id)}")
    for line in problems:
        print(f"  {line}")


@store_app.command()
def replace(
    url: StoreUrl,
    old: Annotated[str, typer.Argument(help="Member to replace: host:port, or its identity in hex.")],
    new: Annotated[str, typer.Argument(help="Server to put in its place: host:port, empty, in no store.")],
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Put a new, empty server in the place of a member, and fill it. Writers go on meanwhile.

    The old member may be dead. Interrupted, run the same command again: it goes on where it was.

    Example: dos store replace dos://h1,h2,h3 h3:9999 h4:9999
    """

    async def work() -> StoreRecord:
        with Shown(quiet=as_json) as shown:
            return await replace_member(
                url,
                old=old,
                new=new,
                progress=lambda now: shown.tell(
                    replace_text(now), now.bytes_done, now.bytes_total, now.phase
                ),
                token=read_token(token_file),
                client="dos store replace",
            )

    record = run(work)
    if as_json:
        print_json(record_json(record))
    else:
        print(f"{new} is in, in the place of {old}: generation {record.generation}")
