"""`dos journal`: the group of commands, and dump, grep, verify, follow, timeline and status.

`files_cli.py` has the commands on journaled files, `showing.py` what is printed, `inspecting.py` reads
targets. Exit codes are in `cli_arguments.py`.
"""

import functools
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from dos_client.cli.kit import (
    NEGATIVE,
    NOTHING_FOUND,
    REFUSED,
    AsJson,
    TokenFile,
    bar_of,
    fail,
    read_token,
    run_interruptible,
    warn,
)
from journal.cli_arguments import Target, journal_errors, journal_file
from journal.core.inspection import Located, Timeline, fault_text, original_text, record_json
from journal.core.record import Op
from journal.files.history import complete_moment, moment_here
from journal.files_cli import add_commands
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
    status_json,
    timeline_json,
    timeline_of,
    timeline_text,
    verdict_json,
    verdict_text,
)


def complete_operation(incomplete: str) -> list[str]:
    """Return names of operations, for completion by the shell."""
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


@app.command()
def dump(
    target: Target,
    full: Full = False,
    as_json: AsJson = False,
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
    token_file: TokenFile = None,
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
    if as_json and v0_style:
        fail("--json and --v0-style exclude each other; pass one of them", REFUSED)
    first, last = _bound(begin, "--from"), None if end is None else _bound(end, "--to")
    times = as_json or times or not isinstance(first, int) or not isinstance(last, int | None)
    if v0_style:
        show = dumper(sys.stdout.write, _as_original, begin=first, end=last)
    else:
        render = _render(as_json=as_json, full=full)
        show = dumper(sys.stdout.write, render, begin=first, end=last, times=times)
    _show(target, show, token_file, history=history)


@app.command()
def grep(
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
    as_json: AsJson = False,
    history: History = False,
    token_file: TokenFile = None,
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
    with journal_errors():
        search = RecordFilter(pattern, _operation(op))
    show = dumper(sys.stdout.write, _render(as_json=as_json, full=full), wanted=search)
    _show(target, show, token_file, history=history)
    if not search.found:
        raise typer.Exit(NOTHING_FOUND)


@app.command()
def verify(
    target: Target, history: History = False, as_json: AsJson = False, token_file: TokenFile = None
) -> None:
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
    outcome = _inspect(target, accept, token_file, history=history)
    print(verdict_json(outcome) if as_json else verdict_text(outcome), flush=True)
    if outcome.fault is not None or outcome.not_verified:
        raise typer.Exit(NEGATIVE)


@app.command()
def follow(
    target: Target,
    begin: Annotated[
        int | None,
        typer.Option(
            "--from", min=0, help="Logical offset of the first record; 0 shows all. Default: the end."
        ),
    ] = None,
    full: Full = False,
    as_json: AsJson = False,
    token_file: TokenFile = None,
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
    render = _render(as_json=as_json, full=full)

    def show(located: Located) -> None:
        print(render(located), flush=True)

    with journal_errors():
        if is_url(target):
            follow = functools.partial(follow_chain, target, read_token(token_file), begin, show)
        else:
            follow = functools.partial(follow_file, journal_file(target), begin, show)
        run_interruptible(follow)


@app.command()
def timeline(
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
    as_json: AsJson = False,
    history: History = False,
    token_file: TokenFile = None,
) -> None:
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
        with journal_errors():
            check_drawable(plot)
    found = Timeline()
    outcome = _inspect(target, timeline_of(found), token_file, history=history)
    if plot is not None:
        with journal_errors():
            draw_timeline(found, target, plot)
        _report_fault(outcome)
        return
    columns = shutil.get_terminal_size((110, 24)).columns
    text = (
        timeline_json(found, lines=lines) if as_json else timeline_text(found, lines=lines, columns=columns)
    )
    print(text)
    _report_fault(outcome)


@app.command()
def status(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="A chain: dos://HOST[,HOST2..]/DIRECTORY/CHAIN,"
            " s3://BUCKET/PREFIX/DIRECTORY/CHAIN, or, for a"
            " server that does not run, DATA/DIRECTORY/CHAIN.",
        ),
    ],
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
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
    with journal_errors(), bar_of(url) as progress:
        found = run_interruptible(functools.partial(chain_status, url, read_token(token_file), progress))
    print(status_json(found) if as_json else found.as_text(), flush=True)


def _render(*, as_json: bool, full: bool) -> Render:
    return functools.partial(record_json if as_json else as_line, full=full)


def _as_original(located: Located, *, time_ms: int | None = None) -> str:
    del time_ms
    return original_text(located)


def _bound(text: str, option: str) -> Bound:
    """Return the offset or the time of an option. End the command if it is neither."""
    try:
        at = moment_here(text)
    except ValueError as error:
        fail(f"{option}: {error}", REFUSED)
    if not isinstance(at, int | datetime):
        fail(f"{option} takes an offset or a time, not {text!r}", REFUSED)
    return at


def _operation(name: str | None) -> Op | None:
    """Return the operation of that name. Raises ValueError, which lists the names."""
    if name is None:
        return None
    if name.upper() not in Op.__members__:
        raise ValueError(f"unknown operation {name!r}; the operations are {', '.join(Op.__members__)}")
    return Op[name.upper()]


def _show(target: str, consume: Consumer, token_file: Path | None, *, history: bool) -> None:
    """Show the records and report faults."""
    outcome = _inspect(target, consume, token_file, history=history, quiet=sys.stdout.isatty())
    if not outcome.committed_only:
        warn(f"{outcome.target} is shown as the members hold it: its end may not be committed")
    _report_fault(outcome)


def _report_fault(outcome: InspectionOutcome) -> None:
    """Report faults and parts that were not shown. A fault, or missing history, ends the command."""
    for text in outcome.not_verified:
        warn(text)
    if outcome.fault is not None:
        warn(f"fault in {outcome.target}\n{fault_text(outcome.fault, outcome.base)}")
    if outcome.fault is not None or outcome.missing:
        raise typer.Exit(NEGATIVE)


def _inspect(
    target: str, consume: Consumer, token_file: Path | None, *, history: bool, quiet: bool = False
) -> InspectionOutcome:
    """Read the target, with progress on a terminal. End the command if it cannot be read at all."""
    with journal_errors(), bar_of(target, quiet=quiet) as progress:
        if not is_url(target):
            return inspect_file(journal_file(target), consume, progress)
        read = functools.partial(
            inspect_url, target, read_token(token_file), consume, progress, history=history
        )
        outcome = run_interruptible(read)
    if outcome.gone:
        warn(outcome.gone)
    return outcome


add_commands(app)
