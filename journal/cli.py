"""`dos journal`: the group of commands, and dump, grep, verify, follow, timeline and status."""

import functools
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dos_client.cli.kit import (
    NEGATIVE,
    NOTHING_FOUND,
    REFUSED,
    Call,
    Report,
    command,
    fail,
    run_interruptible,
    warn,
)
from journal.core.inspection import Located, Timeline, fault_text, original_text, record_json
from journal.core.record import Op
from journal.files.history import complete_moment, moment_here
from journal.files_cli import ENDS, Target, add_commands, journal_file
from journal.inspecting import Consumer, InspectionOutcome, inspect_file, inspect_url, is_url
from journal.pictures import check_drawable, draw_timeline
from journal.showing import (
    Bound,
    RecordFilter,
    Render,
    accept,
    as_line,
    chain_status,
    dumper,
    follow_chain,
    follow_file,
    timeline_json,
    timeline_of,
    timeline_text,
    verdict_json,
    verdict_text,
)


def complete_operation(incomplete: str) -> list[str]:
    return [name for name in Op.__members__ if name.startswith(incomplete.upper())]


History = Annotated[
    bool,
    typer.Option(
        "--history", help="Also read a chain's records below its newest snapshot, as far as they are held."
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Show strings in full, however long.")]

app = typer.Typer(
    name="journal",
    rich_markup_mode="markdown",
    no_args_is_help=True,
    help="Inspect journals: files, objects and chains.",
)


@command(app, "dump", ends=ENDS)
def dump(
    call: Call,
    target: Target,
    full: Full = False,
    v0_style: Annotated[
        bool,
        typer.Option(
            "--v0-style", help="Print lines as the original service did: no offset, no name, full strings."
        ),
    ] = False,
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="OFFSET|TIME",
            help="Show only records from this logical offset or time on: 4096, time:2026-11-28T03:12, -1h.",
            autocompletion=complete_moment,
        ),
    ] = "0",
    end: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="OFFSET|TIME", help="Show only records before it.", autocompletion=complete_moment
        ),
    ] = None,
    times: Annotated[
        bool, typer.Option("--times", help="Show the time of each record; JSON always has it, if known.")
    ] = False,
    history: History = False,
) -> None:
    """Print a journal's records, one line each: logical offset, name, and the fields in the format of the
    original service.

    Of a chain, committed records are shown, from its newest finished snapshot on; with --history, from the
    oldest record that is held. Of a segment that is named as an object, all records of the longest copy are
    shown: the last ones may never have been committed.

    Examples:

        dos journal dump my_app-worker3.journal

        dos journal dump --v0-style my_app-worker3.journal | diff - theirs.txt

        dos journal dump --json --from 4096 dos://h1,h2,h3/wordcount.w0000/state | head

        dos journal dump --from time:2026-11-28T03:10 --to time:2026-11-28T03:15
        dos://h1,h2,h3/wordcount.coord/manifest

    A record that holds no time has the time of the last one before it that does.

    Exit codes: 0 all records were shown, 1 a fault was found (reported after all good records) or requested
    history is missing, 2 usage or no such journal, 3 the store cannot be reached.
    """
    if call.as_json and v0_style:
        fail("--json and --v0-style exclude each other; pass one of them", REFUSED)
    first, last = _bound(begin, "--from"), None if end is None else _bound(end, "--to")
    times = call.as_json or times or not isinstance(first, int) or not isinstance(last, int | None)
    if v0_style:
        show = dumper(sys.stdout.write, _as_original, begin=first, end=last)
    else:
        render = _render(as_json=call.as_json, full=full)
        show = dumper(sys.stdout.write, render, begin=first, end=last, times=times)
    raise typer.Exit(_show(call, target, show, history=history))


@command(app, "grep", ends=ENDS)
def grep(
    call: Call,
    pattern: Annotated[
        str,
        typer.Argument(metavar="PATTERN", help="A regular expression, searched for in the records' strings."),
    ],
    target: Target,
    op: Annotated[
        str | None,
        typer.Option(
            help="Show only records of this operation: WRITE, CHECKPOINT, ...",
            show_default=False,
            autocompletion=complete_operation,
        ),
    ] = None,
    full: Full = False,
    history: History = False,
) -> None:
    """Print the records whose strings match a pattern: paths, data, the JSON of checkpoints and input
    divisions. The empty pattern matches every record.

    Examples:

        dos journal grep tcp-control my_app-worker3.journal

        dos journal grep --op CHECKPOINT '"step":4[0-9]' dos://h1,h2,h3/wordcount.coord/manifest

        dos journal grep --op SEGMENT_START '' dos://h1,h2,h3/ledger/files

    Exit codes: 0 a record matches, 1 the journal has a fault (matches before it are shown) or requested
    history is missing, 2 usage or no such journal, 3 the store cannot be reached, 4 no record matches.
    """
    search = RecordFilter(pattern, _operation(op))
    show = dumper(sys.stdout.write, _render(as_json=call.as_json, full=full), wanted=search)
    code = _show(call, target, show, history=history)
    raise typer.Exit(code or (0 if search.found else NOTHING_FOUND))


@command(app, "verify", ends=ENDS)
def verify(call: Call, target: Target, history: History = False) -> Report:
    """Read a whole journal and verify every checksum, length, back pointer and digest. Print "sound", or the
    first fault.

    A fault is shown with its segment and offset, the expected and the found value, and a hint. Of a chain,
    committed records are read, from its newest finished snapshot on, with --history also below it; of a
    segment that is named as an object, the longest copy. A record that is cut off at the end of a file is a
    fault (kind "torn"); the records before it are good.

    Examples:

        dos journal verify my_app-worker3.journal

        dos journal verify --json dos://h1,h2,h3/wordcount.coord/manifest

        dos journal verify --history dos://h1,h2,h3/ledger/files

    Two parts of a chain may be reported as not verified: records past the end that can be proved committed,
    while a take-over has not completed; and missing history, unless a segment records that it was trimmed.

    Exit codes: 0 sound, 1 a fault was found or a part was not verified, 2 usage or no such journal, 3 the
    store cannot be reached.
    """
    outcome = _inspect(call, target, accept, history=history)
    wrong = outcome.fault is not None or outcome.not_verified
    return Report(verdict_json(outcome), verdict_text(outcome), NEGATIVE if wrong else 0)


@command(app, "follow", progress=False, ends=ENDS)
async def follow(
    call: Call,
    target: Target,
    begin: Annotated[
        int | None,
        typer.Option(
            "--from", min=0, help="Logical offset of the first record; 0 shows all. Default: the end."
        ),
    ] = None,
    full: Full = False,
) -> None:
    """Print records as they are appended to a journal file or a journal on the local disk, or committed to a
    chain that is never rolled back (an input, an output, files, a manifest), until interrupted.

    Examples:

        dos journal follow dos://h1,h2,h3/wordcount.coord/manifest

        dos journal follow notes.journal

        dos journal follow --from 0 --json my_app-worker3.journal | jq .offset

    Exit codes: 130 interrupted, 1 a fault was found, 2 usage or no such journal, 3 the store cannot be
    reached.
    """
    render = _render(as_json=call.as_json, full=full)

    def show(located: Located) -> None:
        print(render(located), flush=True)

    if is_url(target):
        await follow_chain(target, call.token, begin, show)
    else:
        await follow_file(journal_file(target), begin, show)


@command(app, "timeline", ends=ENDS)
def timeline(
    call: Call,
    target: Target,
    lines: Annotated[
        int, typer.Option(min=1, help="Maximum number of lines; each covers an equal interval.")
    ] = 24,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg|png",
            help="Draw the chart into this file instead.",
            show_default=False,
            dir_okay=False,
        ),
    ] = None,
    history: History = False,
) -> Report:
    """Show a chart of what was appended over time: bytes and records, with segments, resets, checkpoints,
    steps and snapshots. A reset is a segment of another epoch: a writer took over the chain there.

    A chain is read from its newest finished snapshot on, with --history also below it. Times are those in the
    records (marks, steps, outputs, inputs); a journal without times is divided by offset. --plot writes SVG
    or PNG, by the file's suffix, and needs matplotlib (the extra `plots` of dos-journal).

    Examples:

        dos journal timeline dos://h1,h2,h3/wordcount.w0000/steps

        dos journal timeline --lines 60 --json --history dos://h1,h2,h3/ledger/files

        dos journal timeline --plot ledger.svg dos://h1,h2,h3/ledger/files

        dos journal timeline --history --plot ledger.png dos://h1,h2,h3/ledger/files

    Exit codes: 0 done, 1 a fault was found (the good part before it is shown) or requested history is
    missing, 2 usage or no such journal, 3 the store cannot be reached.
    """
    if plot is not None:
        check_drawable(plot)
    found = Timeline()
    outcome = _inspect(call, target, timeline_of(found), history=history)
    code = _warn_of_faults(outcome)
    if plot is not None:
        draw_timeline(found, target, plot)
        raise typer.Exit(code)
    columns = shutil.get_terminal_size((110, 24)).columns
    return Report(timeline_json(found, lines=lines), timeline_text(found, lines=lines, columns=columns), code)


@command(app, "status", ends=ENDS)
async def status(
    call: Call,
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="A chain: dos://HOST[,HOST2..]/DIRECTORY/CHAIN,"
            " s3://BUCKET/PREFIX/DIRECTORY/CHAIN, or, for a"
            " server that does not run, DATA/DIRECTORY/CHAIN.",
        ),
    ],
) -> Report:
    """Show how many bytes of a chain a recovery would read and how long that takes from this machine, what
    lies below the newest snapshot, and what dead writers left.

    The time is measured by reading up to 8 MiB of the chain.

    Examples:

        dos journal status dos://h1,h2,h3/wordcount.w0000/state

        dos journal status --json dos://h1,h2,h3/ledger/files | jq .recovery_s

    Exit codes: 0 done, 1 a fault was found, 2 usage or no such chain, 3 the store cannot be reached.
    """
    if not is_url(url):
        fail(f"{url} is not a chain; `dos journal verify` reads a journal file", REFUSED)
    found = await chain_status(url, call.token, call.bar(f"reads {url}"))
    return Report(msgspec.to_builtins(found), found.as_text())


def _render(*, as_json: bool, full: bool) -> Render:
    return functools.partial(record_json if as_json else as_line, full=full)


def _as_original(located: Located, *, time_ms: int | None = None) -> str:
    del time_ms
    return original_text(located)


def _bound(text: str, option: str) -> Bound:
    try:
        at = moment_here(text)
    except ValueError as error:
        fail(f"{option}: {error}", REFUSED)
    if not isinstance(at, int | datetime):
        fail(f"{option} takes an offset or a time, not {text!r}", REFUSED)
    return at


def _operation(name: str | None) -> Op | None:
    if name is None:
        return None
    if name.upper() not in Op.__members__:
        raise ValueError(f"unknown operation {name!r}; the operations are {', '.join(Op.__members__)}")
    return Op[name.upper()]


def _show(call: Call, target: str, consume: Consumer, *, history: bool) -> int:
    outcome = _inspect(call, target, consume, history=history, quiet=sys.stdout.isatty())
    if not outcome.committed_only:
        warn(f"{outcome.target} is shown as the members hold it: its end may not be committed")
    return _warn_of_faults(outcome)


def _warn_of_faults(outcome: InspectionOutcome) -> int:
    for text in outcome.not_verified:
        warn(text)
    if outcome.fault is not None:
        warn(f"fault in {outcome.target}\n{fault_text(outcome.fault, outcome.base)}")
    return NEGATIVE if outcome.fault is not None or outcome.missing else 0


def _inspect(
    call: Call, target: str, consume: Consumer, *, history: bool, quiet: bool = False
) -> InspectionOutcome:
    progress = call.bar(f"reads {target}")
    if quiet:
        call.display.hide()
    if not is_url(target):
        return inspect_file(journal_file(target), consume, progress)
    outcome = run_interruptible(
        functools.partial(inspect_url, target, call.token, consume, progress, history=history)
    )
    if outcome.gone:
        warn(outcome.gone)
    return outcome


add_commands(app)
