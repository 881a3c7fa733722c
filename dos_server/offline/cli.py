"""`dos fsck`: look at the data directory of a server that does not run.

Exit codes: 0 all is good, but for torn tails, which the next start cuts, and notes; 1 damage was found; 2 not
everything could be looked at: a server has the directory, it is none, something may not be read, or the look
was interrupted. Damage wins over that.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from dos_server.core.findings import Finding, Severity
from dos_server.offline.checking import Check, CheckReport, NotCheckedError
from dos_server.wording import path_given

DAMAGED = 1
NOT_CHECKED = 2


def fsck(
    data: Annotated[
        Path,
        typer.Argument(
            parser=path_given, help="Data directory of a server that does not run.", metavar="DIR"
        ),
    ],
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Cut torn tails, with a copy aside, as the next start would. Nothing else is changed.",
        ),
    ] = False,
    raise_claims: Annotated[
        bool,
        typer.Option(
            "--raise-claims",
            help="Where a claim is lost, write one that is 2^20 above every epoch found: all writers are"
            " fenced, and the next one takes over. For a server that cannot be replaced.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Verify a data directory: identity, store record, claims, marks, every byte.

    Changes nothing, unless --repair or --raise-claims is given. What is wrong is listed by object
    and offset, with what it means and what to do; damaged objects are mended from
    the other servers, with `dos store repair`.

    Exit code 0 when all is good: torn tails and leftovers are listed and are
    good, a crash leaves them and the next start deals with them. 1 when something
    is damaged. 2 when not everything could be looked at.

    Example: dos fsck /var/lib/dos
    """
    problem = ""
    with _Shown(quiet=as_json) as shown:
        check = Check(data, repair=repair, raise_claims=raise_claims, tell=shown.tell)
        try:
            check.run()
        except NotCheckedError as error:
            problem = str(error)
        except KeyboardInterrupt:
            problem = "interrupted: only a part was looked at"
    report = check.report
    if as_json:
        print(json.dumps(report_json(report, problem)))
    elif report.directories or report.findings or report.complete:
        _print_report(report)
    if problem:
        print(f"dos fsck: {problem}", file=sys.stderr)
    if report.of(Severity.DAMAGED):
        raise typer.Exit(DAMAGED)
    if problem or report.of(Severity.UNCHECKED):
        raise typer.Exit(NOT_CHECKED)


def report_json(report: CheckReport, problem: str = "") -> dict[str, Any]:
    """The report, as one document for programs."""
    return {
        "good": report.complete and not report.of(Severity.DAMAGED) and not report.of(Severity.UNCHECKED),
        "complete": report.complete,
        "problem": problem,
        "directories": report.directories,
        "objects": report.objects,
        "bytes_verified": report.bytes_verified,
        "findings": [one.as_json() for one in report.findings],
        "cut": report.cut,
        "raised": report.raised,
    }


def finding_text(one: Finding) -> str:
    """A finding for people, in several lines."""
    where = "" if one.offset is None else f" from byte {one.offset} on"
    at = "" if one.position is None else f" (position {one.position} of its file)"
    case = f", case {one.case}" if one.case else ""
    return (
        f"{one.place}: {one.verdict.value}{where}{at}{case}\n"
        f"    expected  {one.expected}\n"
        f"    found     {one.found}\n"
        f"    means     {one.means}\n"
        f"    do        {one.todo}"
    )


def _print_report(report: CheckReport) -> None:
    for one in report.findings:
        print(finding_text(one))
    for place in report.cut:
        print(f"{place}: its torn tail was cut, as the next start would have done")
    for claim in report.raised:
        print(f"{claim} is claimed now by nobody: the next writer takes over above it")
    print(_summary(report))


def _summary(report: CheckReport) -> str:
    damaged, torn, unchecked, notes = (
        len(report.of(one)) for one in (Severity.DAMAGED, Severity.TORN, Severity.UNCHECKED, Severity.NOTE)
    )
    looked = f"{report.objects} objects in {report.directories} directories, {report.bytes_verified} bytes"
    found = f"{damaged or 'nothing'} damaged, {torn} torn tails ({len(report.cut)} cut)"
    return f"{looked} verified: {found}, {unchecked} not checked, {notes} notes"


class _Shown:
    """A bar on a terminal, nothing elsewhere. A context manager."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)

    def tell(self, place: str, done: int, total: int) -> None:
        self._bar.update(self._task, description=place, completed=done, total=total)

    def __enter__(self) -> "_Shown":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
