"""`dos store verify | scrub | repair | recover`: the commands that examine and repair copies."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from dos_client.cli.kit import (
    NEGATIVE,
    AsJson,
    StoreUrl,
    TokenFile,
    count_text,
    exit_with,
    parsed_option,
    print_json,
    read_token,
    run,
    warn,
)
from dos_client.cli.progress import ProgressDisplay
from dos_client.cli.store import filling_progress, record_json
from dos_client.core.comparing import CopyState
from dos_client.membership.recovering import Recovered, recover_store
from dos_client.repair.repairing import RepairOutcome, RepairProgress, RepairReport, repair_store
from dos_client.repair.scrubbing import MemberScrub, ScrubReport, scrub_store
from dos_client.repair.verifying import (
    CopyDifference,
    VerifyProgress,
    VerifyReport,
    blocked_text,
    damage_text,
    verify_store,
)
from dos_client.store import open_store
from dos_client.urls import parse_url
from dos_protocol.arguments import parse_rate
from dos_protocol.names import has_one_writer, id_text

Directories = Annotated[
    list[str] | None,
    typer.Argument(help="Directories to compare; all if none is named.", metavar="DIRECTORY..."),
]
ReadAll = Annotated[
    bool,
    typer.Option("--read", help="Read every byte of every copy; also finds bit rot that was not read yet."),
]
Quick = Annotated[
    bool,
    typer.Option("--quick", help="Compare digests only; do not read the bytes. Finds no new bit rot."),
]
Rate = Annotated[
    str | None,
    typer.Option(help="Read at most this many bytes in a second from all members together, such as 50MB/s."),
]


def verify(
    url: StoreUrl,
    directories: Directories = None,
    quick: Quick = False,
    rate: Rate = None,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
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

    async def work() -> VerifyReport:
        parsed, token = parse_url(url), read_token(token_file)
        with ProgressDisplay(quiet=as_json) as display:
            async with open_store(parsed, token=token, client="dos store verify") as store:
                return await verify_store(
                    store,
                    directories or (),
                    read=not quick,
                    bytes_per_s=bytes_per_s,
                    on_progress=lambda now: display.show(
                        _verify_text(now), now.bytes_read, 0 if quick else now.bytes_total
                    ),
                )

    report = run(work)
    if as_json:
        print_json(report_json(report))
    else:
        _print_report(report, url)
    exit_with(
        whole=report.equal and not report.full,
        writers_wait=bool(report.blocked) or not report.accepts_appends,
    )


def scrub(
    url: StoreUrl,
    rate: Annotated[
        str | None,
        typer.Option(help="Bytes in a second on each server, such as 50MB/s. Default: its own rate."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until all servers have read everything.")
    ] = True,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Have each server verify everything on its disk now. It does so anyway, in the background, once a day.

    A server reads its own disk, not its memory, at most at its --scrub-rate and a tenth of the time. Damage
    that it finds is repaired by the writers of the store, by `dos store watch`, or by `dos store repair`.
    Exit code 0 if no damage was found, 1 if some was, or a member was not scrubbed.

    Example: dos store scrub dos://h1,h2,h3 --rate 100MB/s
    """
    bytes_per_s = 0 if rate is None else int(parsed_option(parse_rate, rate))

    async def work() -> ScrubReport:
        with ProgressDisplay(quiet=as_json) as display:
            async with open_store(
                parse_url(url), token=read_token(token_file), client="dos store scrub"
            ) as store:
                return await scrub_store(
                    store,
                    bytes_per_s=bytes_per_s,
                    wait=wait,
                    on_progress=lambda now: display.show(_scrub_text(now), _scrubbed_bytes(now)),
                )

    report = run(work)
    if as_json:
        print_json({address: asdict(one) for address, one in report.items()})
    else:
        for address, one in report.items():
            print(f"{address}: {one.error or _scrub_result(one)}")
    if any(one.error or one.damaged for one in report.values()):
        raise typer.Exit(NEGATIVE)


def _scrub_result(one: MemberScrub) -> str:
    state = "verified" if one.done else "begun"
    return f"{state}, {one.objects} objects, {count_text(one.bytes)}, {one.damaged} damaged"


def _scrub_text(report: ScrubReport) -> str:
    done = sum(one.done for one in report.values())
    left = sum(one.directories_left for one in report.values())
    return f"{done} of {len(report)} servers done, {left} directories left"


def _scrubbed_bytes(report: ScrubReport) -> int:
    return sum(one.bytes for one in report.values())


def repair(
    url: StoreUrl,
    directories: Directories = None,
    read: ReadAll = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")
    ] = False,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Repair damaged, missing, short and different copies from members that agree. Writers continue
    meanwhile.

    A copy is lengthened, or replaced if the other members prove that this discards no acknowledged byte.
    Every other repair is refused, with the reason. The server keeps a replaced copy as a file
    `.broken.OBJECT.N` in its data directory. Exit code 0 if nothing is left to repair, 1 if something is, 3
    if too few members are available.

    Example: dos store repair dos://127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003 --dry-run
    """

    async def work() -> RepairReport:
        parsed, token = parse_url(url), read_token(token_file)
        with ProgressDisplay(quiet=as_json) as display:
            async with open_store(parsed, token=token, client="dos store repair") as store:
                return await repair_store(
                    store,
                    directories or (),
                    read=read,
                    dry_run=dry_run,
                    on_progress=lambda now: display.show(_repair_text(now), now.bytes_done, now.bytes_total),
                )

    report = run(work)
    if as_json:
        print_json(repair_json(report))
    else:
        _print_repairs(report)
    damaged = report.unavailable or report.damaged_directories
    if damaged or not all(one.done for one in report.repairs):
        raise typer.Exit(NEGATIVE)


def recover(
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
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
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

    async def work() -> Recovered:
        with ProgressDisplay(quiet=as_json) as display:
            return await recover_store(
                url,
                accept_loss=accept_loss,
                new=new or (),
                progress=filling_progress(display),
                token=read_token(token_file),
            )

    done = run(work)
    if as_json:
        print_json({**record_json(done.record), "details": list(done.details)})
        return
    for line in done.details:
        print(line)
    print(
        f"the store continues with {', '.join(one.address for one in done.record.members)}: generation"
        f" {done.record.generation}, acknowledged by {done.record.ack_quorum} of {len(done.record.voters)}"
    )


def _repair_text(now: RepairProgress) -> str:
    return f"{now.directories_done} of {now.directories} directories, {now.repaired} copies repaired"


def repair_json(report: RepairReport) -> dict[str, Any]:
    """Return the report for --json."""
    return {
        "directories": report.directories,
        "objects": report.objects,
        "members": report.members,
        "repairs": [
            {
                "directory": one.directory,
                "object": one.name,
                "address": one.address,
                "server_id": id_text(one.server_id),
                "verdict": one.verdict.value,
                "outcome": one.outcome.name.lower(),
                "reason": one.reason,
                "size": one.size,
            }
            for one in report.repairs
        ],
        "unavailable": report.unavailable,
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


def _verify_text(now: VerifyProgress) -> str:
    return f"comparing, {now.directories_done} of {now.directories} directories"


def finding_json(one: CopyDifference) -> dict[str, Any]:
    """Return the finding for --json."""
    known = one.expected_size >= 0
    return {
        "directory": one.directory,
        "object": one.name,
        "address": one.address,
        "server_id": id_text(one.server_id),
        "verdict": one.verdict.value,
        "live": one.live,
        "size": one.size,
        "digest": f"{one.digest:016x}",
        "expected_size": one.expected_size if known else None,
        "expected_digest": f"{one.expected_digest:016x}" if known else None,
    }


def report_json(report: VerifyReport) -> dict[str, Any]:
    """Return the report for --json."""
    return {
        "equal": report.equal,
        "complete": report.complete,
        "directories": report.directories,
        "objects": report.objects,
        "members": report.members,
        "bytes_compared": report.bytes_compared,
        "bytes_read": report.bytes_read,
        "findings": [finding_json(one) for one in report.findings],
        "unavailable": report.unavailable,
        "damaged_directories": [asdict(one) for one in report.damaged_directories],
        "blocked": report.blocked,
        "full": report.full,
        "accepts_appends": report.accepts_appends,
    }


def finding_text(one: CopyDifference) -> str:
    """Return the finding as one line."""
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
