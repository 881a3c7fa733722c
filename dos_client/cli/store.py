"""`dos store init | add | replace | status | verify | scrub | repair | recover | ls`."""

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

import typer

from dos_client.cli.kit import (
    NEGATIVE,
    Call,
    Report,
    StoreUrl,
    code_of_store,
    command,
    count_text,
    parsed_option,
    print_table,
    warn,
)
from dos_client.core.comparing import CopyState
from dos_client.core.logs import Change, Override
from dos_client.core.membership import MemberView
from dos_client.live_store import Store
from dos_client.membership.filling import ReplaceProgress
from dos_client.membership.founding import init_store
from dos_client.membership.recovering import recover_store
from dos_client.membership.replacing import add_member, replace_member
from dos_client.membership.status import StoreStatus, store_status
from dos_client.repair.repairing import RepairOutcome, RepairProgress, RepairReport, repair_store
from dos_client.repair.verifying import (
    CopyDifference,
    MemberHolding,
    VerifyProgress,
    VerifyReport,
    blocked_text,
    damage_text,
    verify_store,
)
from dos_client.repair.walking import MemberScrub, ScrubReport, scrub_store
from dos_client.store import open_store
from dos_client.tasks import read_each
from dos_client.urls import parse_url
from dos_protocol.arguments import parse_rate
from dos_protocol.names import has_one_writer, id_text
from dos_protocol.store_record import StoreRecord

store_app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Create a store of several servers, show it, change its members, compare and repair the copies.\n\n"
    "Example: dos store init dos://127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003",
)


def named_json(found: object, names: str) -> dict[str, Any]:
    """Return these attributes, whose names are those in JSON. An identity is hexadecimal there."""
    values = {name: getattr(found, name) for name in names.split()}
    return {name: id_text(value) if isinstance(value, bytes) else value for name, value in values.items()}


def record_json(record: StoreRecord) -> dict[str, Any]:
    return {
        **named_json(record, "store_id generation ack_quorum"),
        "members": [named_json(one, "address server_id state") for one in record.members],
        "spares": [named_json(one, "address server_id") for one in record.spares],
    }


@command(store_app, "add")
async def add(
    call: Call,
    url: StoreUrl,
    new: Annotated[str, typer.Argument(help="Server to add, as host:port; empty, and not in a store.")],
) -> Report:
    """Add a new, empty server to a store, and fill it. Every member must be available until that is done.

    If it is interrupted, run the same command again: it continues where it stopped.

    Example: dos store add dos://h1,h2 h3:9999
    """
    record = await add_member(url, new=new, progress=filling_progress(call), token=call.token)
    text = f"{new} is a member: {len(record.members)} members, generation {record.generation}"
    return Report(record_json(record), text)


def filling_progress(call: Call) -> Callable[[ReplaceProgress], None]:
    display = call.progress()

    def show(now: ReplaceProgress) -> None:
        text = now.phase
        if now.directories:
            text += f", {now.directories_done} of {now.directories} directories"
        display.show(text, now.bytes_done, now.bytes_total, now.phase)

    return show


@command(store_app, "init")
async def init(
    call: Call,
    url: StoreUrl,
    ack_quorum: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Members that must hold a byte before it is acknowledged. Default: 1 of 1, 2 of 2, 2 of 3.",
        ),
    ] = None,
) -> Report:
    """Make the servers of the URL a store. All must answer and be empty. Running it again changes nothing.

    Example: dos store init dos://127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003
    """
    record = await init_store(url, ack_quorum=ack_quorum, token=call.token, client="dos store init")
    text = (
        f"store {id_text(record.store_id)} of {len(record.members)} servers, acknowledged by"
        f" {record.ack_quorum}, generation {record.generation}"
    )
    return Report(record_json(record), text)


@command(store_app, "replace")
async def replace(
    call: Call,
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
) -> Report:
    """Replace a member by a new, empty server, and fill it. Writers continue meanwhile.

    The old member may be dead or wiped; the new one may have its address. Only one replacement can run at a
    time. If it is interrupted, run the same command again: it continues where it stopped.

    A store of two members needs both. If one is dead, --other-is-gone continues with the other alone: no
    acknowledged byte is lost, because both members hold it. If the same is done with the dead member, two
    stores exist that do not know of each other. The store records it: see `dos store status --log`.

    Example: dos store replace dos://h1,h2,h3 h3:9999 h4:9999
    """
    record = await replace_member(
        url,
        old=old,
        new=new,
        other_is_gone=other_is_gone,
        progress=filling_progress(call),
        token=call.token,
    )
    return Report(record_json(record), f"{new} has replaced {old}: generation {record.generation}")


@command(store_app, "status")
async def status(
    call: Call,
    url: StoreUrl,
    quick: Annotated[
        bool, typer.Option("--quick", help="Do not read the directories: faster, without lag and damage.")
    ] = False,
    log: Annotated[
        bool,
        typer.Option(
            "--log", help="Show what was forced on the store (--other-is-gone, ...), by whom, when."
        ),
    ] = False,
    history: Annotated[
        bool,
        typer.Option(
            "--history",
            help="Show every change of the store: what, when, by whom or by which watcher, and why.",
        ),
    ] = False,
) -> Report:
    """Show the store that the servers of the URL belong to, and the state of each member.

    A member is available if its server answers at its address, with its identity and the current store
    record. All copies are compared by digest. "behind" is the number of bytes that the longest copies hold
    and the member lacks; "being written" those of them that a writer has just appended. Exit code 0 if all
    members are available and have room, and all copies are equal, or only behind an active writer; 1 if not;
    3 if writers wait, or would wait after a start: too few members are available, have room, or are undamaged
    in a directory.

    Bytes that were read long ago may have rotted since: `dos store verify` reads all of them. A server that
    does not answer within a second counts as unavailable.

    Example: dos store status dos://127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003 --log
    """
    state = await store_status(parse_url(url).servers, holdings=not quick, token=call.token)

    def show() -> None:
        if state.record is None:
            for line in [state.verdict, *state.problems]:
                print(f"dos: {line}", file=sys.stderr)
            return
        _print_status(state, log=log)
        if history:
            _print_history(state.history)

    code = code_of_store(whole=state.whole, writers_wait=state.writers_wait)
    return Report(status_json(state), show, code)


def status_json(state: StoreStatus) -> dict[str, Any]:
    if state.record is None:
        return {
            "store": None,
            "usable": False,
            "accepts_appends": False,
            "blocked": [],
            "writers_wait": True,
            "whole": False,
            **named_json(state, "verdict problems"),
        }
    members = [
        _member_json(one, row, state.holdings.get(one.member.server_id))
        for one, row in zip(state.members, record_json(state.record)["members"], strict=True)
    ]
    return {
        "store": {**record_json(state.record), "members": members, "spares": _spares_json(state)},
        **named_json(state, "usable accepts_appends blocked writers_wait verdict whole problems"),
        "bytes": state.total_bytes if state.holdings else None,
        "filling": _filling_json(state),
        "overrides": None if state.overrides is None else [asdict(one) for one in state.overrides],
        "history": None if state.history is None else [asdict(one) for one in state.history],
    }


def _spares_json(state: StoreStatus) -> list[dict[str, Any]]:
    assert state.record is not None
    return [
        {
            **named_json(one, "address server_id"),
            "present": not state.spares.get(one.server_id),
            "detail": state.spares.get(one.server_id, ""),
        }
        for one in state.record.spares
    ]


def _filling_json(state: StoreStatus) -> dict[str, Any] | None:
    if state.filling is None:
        return None
    member, done = state.filling
    return {**named_json(member, "address state"), "bytes_done": done, "bytes_total": state.total_bytes}


def _member_json(view: MemberView, row: dict[str, Any], holding: MemberHolding | None) -> dict[str, Any]:
    return {
        **row,
        "present": view.there,
        "condition": view.condition.name.lower(),
        **named_json(view, "counts detail refuses_appends generation"),
        **(dict.fromkeys(one.name for one in fields(MemberHolding)) if holding is None else asdict(holding)),
    }


def _print_status(state: StoreStatus, *, log: bool) -> None:
    record = state.record
    assert record is not None
    print(
        f"store {id_text(record.store_id)}, generation {record.generation}, acknowledged by"
        f" {record.ack_quorum} of {len(record.voters)}: {state.verdict}"
    )
    for view in state.members:
        condition = f"generation {view.generation}" if view.there else view.condition.value
        print(
            f"  {view.member.address:<24} {view.member.state:<8} {condition:<14}"
            f" {id_text(view.member.server_id)}"
            f"{_holding_text(state.holdings.get(view.member.server_id))}"
        )
        if view.detail:
            print(f"    {view.detail}")
    for spare in record.spares:
        problem = state.spares.get(spare.server_id, "")
        print(f"  {spare.address:<24} {'spare':<8} {problem or 'there':<14} {id_text(spare.server_id)}")
    for line in state.problems:
        print(f"  {line}")
    overrides = state.overrides or []
    if log:
        for one in overrides:
            _print_override(one)
        if not overrides:
            print("  nothing was ever forced on this store")
    elif overrides:
        changes = len({one.generation for one in overrides})
        print(f"  {changes} changes were forced on the store; --log lists them")


def _holding_text(holding: MemberHolding | None) -> str:
    if holding is None:
        return ""
    behind = f", {count_text(holding.lag_bytes)} behind" if holding.lag_bytes else ""
    if holding.live_lag_bytes == holding.lag_bytes != 0:
        behind += " (being written)"
    damaged = f", {len(holding.damaged)} damaged" if holding.damaged else ""
    return f"  {count_text(holding.bytes)} in {holding.objects} objects{behind}{damaged}"


def _print_history(changes: list[Change] | None) -> None:
    if changes is None:
        print("  the history cannot be read: too few members are available")
        return
    for one in changes:
        outcome = one.outcome or "not finished"
        who = f"{'automatic, ' if one.automatic else ''}{one.by}"
        places = " -> ".join(filter(None, [one.old, one.new]))
        print(f"  {one.at} {one.what} {places}: {outcome} (generation {one.generation}; {who})")
        if one.why:
            print(f"    {one.why}")
    if not changes:
        print("  nothing was ever changed on this store")


def _print_override(one: Override) -> None:
    done = "finished" if one.finished else "begun"
    print(
        f"  {one.at} {one.by}: --{one.what}, {done}: generation {one.generation_before} to {one.generation}"
    )
    print(f"    continued with {', '.join(one.kept)}; without {', '.join(one.lost)}")
    for line in one.details:
        print(f"    {line}")


Directories = Annotated[
    list[str] | None,
    typer.Argument(help="Directories to compare; all if none is named.", metavar="DIRECTORY..."),
]


@command(store_app, "verify")
async def verify(
    call: Call,
    url: StoreUrl,
    directories: Directories = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Compare digests only; do not read the bytes. Finds no new bit rot."),
    ] = False,
    rate: Annotated[
        str | None,
        typer.Option(
            help="Read at most this many bytes in a second from all members together, such as 50MB/s."
        ),
    ] = None,
) -> Report:
    """Read every object on all members, and compare the copies. Changes nothing; writers continue meanwhile.

    A copy that is behind is a prefix of the longest one. While a writer appends, that is not a difference.
    With a token of some directories, those are compared. Exit code 0 if all members are available and have
    room, and all copies are equal, or only behind a live writer; 1 if not; 3 if writers wait, or would wait
    after a start: too few members are available, have room, or are undamaged in a directory.

    Servers may answer from memory. To read the disks themselves, on each server at its own pace, use `dos
    store scrub`.

    Example: dos store verify dos://127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003

    Example: dos store verify dos://h1,h2,h3 --rate 50MB/s
    """
    bytes_per_s = None if rate is None else parsed_option(parse_rate, rate)
    display = call.progress()

    def show(now: VerifyProgress) -> None:
        text = f"comparing, {now.directories_done} of {now.directories} directories"
        display.show(text, now.bytes_read, 0 if quick else now.bytes_total)

    async with open_store(url, token=call.token, client="dos store verify") as store:
        report = await verify_store(
            store, directories or (), read=not quick, bytes_per_s=bytes_per_s, on_progress=show
        )
    code = code_of_store(
        whole=report.equal and not report.full,
        writers_wait=bool(report.blocked) or not report.accepts_appends,
    )
    return Report(report_json(report), lambda: _print_report(report, url), code)


@command(store_app, "scrub")
async def scrub(
    call: Call,
    url: StoreUrl,
    rate: Annotated[
        str | None,
        typer.Option(help="Bytes in a second on each server, such as 50MB/s. Default: its own rate."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until all servers have read everything.")
    ] = True,
) -> Report:
    """Have each server verify everything on its disk now. It does so anyway, in the background, once a day.

    A server reads its own disk, not its memory, at most at its --scrub-rate and a tenth of the time. Damage
    that it finds is repaired by the writers of the store, by `dos store watch`, or by `dos store repair`.
    Exit code 0 if no damage was found, 1 if some was, or a member was not scrubbed.

    Example: dos store scrub dos://h1,h2,h3 --rate 100MB/s
    """
    bytes_per_s = 0 if rate is None else int(parsed_option(parse_rate, rate))
    display = call.progress()

    def show(now: ScrubReport) -> None:
        done = sum(one.done for one in now.values())
        left = sum(one.directories_left for one in now.values())
        text = f"{done} of {len(now)} servers done, {left} directories left"
        display.show(text, sum(one.bytes for one in now.values()))

    async with open_store(url, token=call.token, client="dos store scrub") as store:
        report = await scrub_store(store, bytes_per_s=bytes_per_s, wait=wait, on_progress=show)
    return Report(
        {address: asdict(one) for address, one in report.items()},
        "\n".join(f"{address}: {one.error or _scrub_result(one)}" for address, one in report.items()),
        NEGATIVE if any(one.error or one.damaged for one in report.values()) else 0,
    )


def _scrub_result(one: MemberScrub) -> str:
    state = "verified" if one.done else "begun"
    return f"{state}, {one.objects} objects, {count_text(one.bytes)}, {one.damaged} damaged"


@command(store_app, "repair")
async def repair(
    call: Call,
    url: StoreUrl,
    directories: Directories = None,
    read: Annotated[
        bool,
        typer.Option(
            "--read", help="Read every byte of every copy; also finds bit rot that was not read yet."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")
    ] = False,
) -> Report:
    """Repair damaged, missing, short and different copies from members that agree. Writers continue
    meanwhile.

    A copy is lengthened, or replaced if the other members prove that this discards no acknowledged byte.
    Every other repair is refused, with the reason. The server keeps a replaced copy as a file
    `.broken.OBJECT.N` in its data directory. Exit code 0 if nothing is left to repair, 1 if something is, 3
    if too few members are available.

    Example: dos store repair dos://127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003 --dry-run
    """
    display = call.progress()

    def show(now: RepairProgress) -> None:
        text = f"{now.directories_done} of {now.directories} directories, {now.repaired} copies repaired"
        display.show(text, now.bytes_done, now.bytes_total)

    async with open_store(url, token=call.token, client="dos store repair") as store:
        report = await repair_store(store, directories or (), read=read, dry_run=dry_run, on_progress=show)
    damaged = report.unavailable or report.damaged_directories
    left = damaged or not all(one.done for one in report.repairs)
    return Report(repair_json(report), lambda: _print_repairs(report), NEGATIVE if left else 0)


@command(store_app, "recover")
async def recover(
    call: Call,
    url: StoreUrl,
    new: Annotated[
        list[str] | None,
        typer.Option("--new", help="Empty server to add and fill, as host:port; may be repeated."),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Confirm that the missing members are gone for good; bytes only on them may be lost.",
        ),
    ] = False,
) -> Report:
    """Recover a store that has lost more members than it tolerates. Without --accept-loss, report what is
    missing and what is left; if enough members are available, repair what can be repaired and report the
    rest.

    With --accept-loss, the remaining members become the store, with the bytes that they hold. Earlier writers
    are fenced in every directory, damaged copies are cut to their good part, and missing members that return
    are refused. Shut the missing members down for good first: they must not be used any more. The store
    records all of it: see `dos store status --log`. If it is interrupted, run the same command again. Exit
    code 2 if it is refused.

    Example: dos store recover dos://h1,h2,h3 --accept-loss --new h4:9999 --new h5:9999
    """
    done = await recover_store(
        url, accept_loss=accept_loss, new=new or (), progress=filling_progress(call), token=call.token
    )
    record = done.record
    end = (
        f"the store continues with {', '.join(one.address for one in record.members)}: generation"
        f" {record.generation}, acknowledged by {record.ack_quorum} of {len(record.voters)}"
    )
    value = {**record_json(record), "details": list(done.details)}
    return Report(value, "\n".join([*done.details, end]))


def repair_json(report: RepairReport) -> dict[str, Any]:
    return {
        **named_json(report, "directories objects members unavailable"),
        "repairs": [
            {
                **named_json(one, "directory address server_id reason size"),
                "object": one.name,
                "verdict": one.verdict.value,
                "outcome": one.outcome.name.lower(),
            }
            for one in report.repairs
        ],
        "damaged_directories": [asdict(one) for one in report.damaged_directories],
    }


def _print_repairs(report: RepairReport) -> None:
    for one in report.repairs:
        reason = f": {one.reason}" if one.reason else ""
        print(
            f"{one.directory}/{one.name} on {one.address}, {one.verdict.value}, {one.outcome.value}{reason}"
        )
    for address, error in report.unavailable.items():
        print(f"{address} was not checked: {error}")
    for damage in report.damaged_directories:
        print(damage_text(damage))
    left = sum(not one.done for one in report.repairs)
    repaired = sum(one.outcome is RepairOutcome.REPAIRED for one in report.repairs)
    print(
        f"{report.objects} objects in {report.directories} directories on"
        f" {report.members - len(report.unavailable)} of {report.members} members:"
        f" {repaired} copies repaired, {left} left to repair"
    )


def finding_json(one: CopyDifference) -> dict[str, Any]:
    known = one.expected_size >= 0
    return {
        **named_json(one, "directory address server_id live size"),
        "object": one.name,
        "verdict": one.verdict.value,
        "digest": f"{one.digest:016x}",
        "expected_size": one.expected_size if known else None,
        "expected_digest": f"{one.expected_digest:016x}" if known else None,
    }


def report_json(report: VerifyReport) -> dict[str, Any]:
    return {
        **named_json(report, "equal complete directories objects members bytes_compared bytes_read"),
        **named_json(report, "unavailable blocked full accepts_appends"),
        "findings": [finding_json(one) for one in report.findings],
        "damaged_directories": [asdict(one) for one in report.damaged_directories],
    }


def finding_text(one: CopyDifference) -> str:
    known = one.expected_size >= 0
    wanted = (
        f"{one.expected_size} bytes of digest {one.expected_digest:016x}"
        if known
        else "unknown content: no copy is proved right"
    )
    difference = {
        "behind": f"is {count_text(one.behind_bytes)} behind {wanted}",
        "missing": f"is missing, of {wanted}",
        "differs": f"differs: {one.size} bytes of digest {one.digest:016x}, the other copies {wanted}",
        "damaged": f"is damaged, as its server reports; the other copies hold {wanted}",
    }[one.verdict.value]
    if one.verdict is CopyState.DIFFERS and has_one_writer(one.name):
        difference += "; its epoch was granted twice: a member's disk went back to an older state; replace it"
    return f"{one.directory}/{one.name} on {one.address} {difference}{' (being written)' if one.live else ''}"


def _print_report(report: VerifyReport, url: str) -> None:
    for one in report.findings:
        print(finding_text(one))
    for address, error in report.unavailable.items():
        print(f"{address} was not compared: {error}")
    for damage in report.damaged_directories:
        print(damage_text(damage))
    for directory in report.blocked:
        print(blocked_text(directory))
    for address in report.full:
        print(f"the disk of {address} is full: appends are refused")
    differences = len(report.differences)
    live = len(report.findings) - differences
    summary = "all equal" if report.equal and not report.findings else f"{differences} differences"
    moving = f", {live} copies behind a live writer" if live else ""
    read = f", {count_text(report.bytes_read)} of them read" if report.bytes_read else ", by digest only"
    print(
        f"{report.objects} objects in {report.directories} directories,"
        f" {count_text(report.bytes_compared)}{read}, on {report.members - len(report.unavailable)} of"
        f" {report.members} members: {summary}{moving}"
    )
    if not report.complete:
        warn("only the directories that this token shows were compared; use a token with *:all")
    if differences:
        warn(f"repair them with: dos store repair {url}")


@dataclass(frozen=True, slots=True)
class DirectoryRow:
    """One directory. objects, bytes: of the longest undamaged copies. epoch: of the newest claim, 0 if it was
    never claimed. damaged: copies that a server reports as damaged.
    """

    directory: str
    objects: int
    bytes: int
    epoch: int
    damaged: int


@command(store_app, "ls")
async def ls(call: Call, url: StoreUrl) -> Report:
    """List every directory of a store: its objects and bytes, the epoch of its newest claim, damaged copies.

    `dos ls` lists the objects of one directory; `dos region ls` and `dos input ls` list what the directories
    belong to.

    Example: dos store ls dos://h1,h2,h3

    Exit codes: 0 listed, also if there is none; 2 usage; 3 the store cannot be reached.
    """
    async with call.store(url) as store:
        rows = await directory_sizes(store)
    cells = [
        (row.directory, row.objects, count_text(row.bytes), row.epoch or None, row.damaged or None)
        for row in rows
    ]
    columns = ("directory", "#objects", "#bytes", "#epoch", "#damaged")
    return Report(
        [asdict(row) for row in rows],
        (lambda: print_table(columns, cells)) if rows else "the store has no directory",
    )


async def directory_sizes(store: Store) -> list[DirectoryRow]:
    """Return a row for each directory of a store, by name. Raises QuorumUnavailableError."""

    async def read(name: str) -> DirectoryRow:
        view = await store.inspect(name)
        longest, damaged = dict[str, int](), 0
        for objects in view.answers.values():
            for info in objects.values():
                damaged += info.corrupt
                longest[info.name] = max(longest.get(info.name, 0), 0 if info.corrupt else info.synced)
        return DirectoryRow(name, len(longest), sum(longest.values()), view.epoch_seen, damaged)

    return [*(await read_each(await store.list_directories(), read)).values()]
