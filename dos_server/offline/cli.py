"""`dos fsck`: checks the data directory of a server that is not running.

| exit code | meaning |
|---|---|
| 0 | no damage; there may be torn tails, which the next start cuts, and notes |
| 1 | damage was found, whether or not everything was checked |
| 2 | not everything was checked |

Exit code 2: a server uses the directory, it is no data directory, a file is unreadable, or the check was
interrupted.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from dos_server.core.files.findings import Finding, Severity
from dos_server.offline.fsck import Check, CheckReport, NotCheckedError
from dos_server.wording import path_argument

DAMAGED = 1
NOT_CHECKED = 2


def fsck(
    data: Annotated[
        Path,
        typer.Argument(
            parser=path_argument, help="Data directory of a server that is not running.", metavar="DIR"
        ),
    ],
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Cut torn tails, keeping a copy aside, as the next start would. Change nothing else.",
        ),
    ] = False,
    raise_claims: Annotated[
        bool,
        typer.Option(
            "--raise-claims",
            help="Replace a lost claim by one that is 2^20 above every epoch found: all writers are"
            " fenced, and the next one takes over. For a server that cannot be replaced.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Verify a data directory: identity, store record, claims, marks, every byte.

    Changes nothing unless --repair or --raise-claims is given. Lists each problem by object and
    offset, with its meaning and what to do. Repair damaged objects from the other servers, with
    `dos store repair`.

    Exit code 0: no damage. Torn tails and leftovers are listed but harmless: a crash
    leaves them, and the next start removes them. 1: something is damaged. 2: not everything
    could be checked.

    Example: dos fsck /var/lib/dos
    """
    problem = ""
    with _ProgressBar(quiet=as_json) as bar:
        check = Check(data, repair=repair, raise_claims=raise_claims, on_progress=bar.show)
        try:
            check.run()
        except NotCheckedError as error:
            problem = str(error)
        except KeyboardInterrupt:
            problem = "interrupted: only a part was checked"
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
    """Return the report as one document for programs."""
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
    """Return a finding for people, in several lines."""
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
        print(f"{claim} was claimed for no writer: the next writer takes over with a higher epoch")
    print(_summary(report))


def _summary(report: CheckReport) -> str:
    damaged, torn, unchecked, notes = (
        len(report.of(one)) for one in (Severity.DAMAGED, Severity.TORN, Severity.UNCHECKED, Severity.NOTE)
    )
    checked = f"{report.objects} objects in {report.directories} directories, {report.bytes_verified} bytes"
    found = f"{damaged or 'nothing'} damaged, {torn} torn tails ({len(report.cut)} cut)"
    return f"{checked} verified: {found}, {unchecked} not checked, {notes} notes"


class _ProgressBar:
    """A progress bar on a terminal, nothing elsewhere; a context manager."""

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

    def show(self, place: str, done: int, total: int) -> None:
        self._bar.update(self._task, description=place, completed=done, total=total)

    def __enter__(self) -> "_ProgressBar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
