"""The journal commands of `dos`: dump, grep, verify, follow, timeline and status; replay, files and cat are
in `files/cli.py`.

Rules of this file: arguments and exit codes. The work is in `inspecting.py`, `dump.py` and `verify.py`; what
all commands have in common in `cli_support.py`.
"""

import functools
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import trio
import typer

from dos_client.cli.kit import NEGATIVE, NOTHING_FOUND, REFUSED, AsJson, TokenFile, fail, read_token, warn
from dos_client.cli.progress import bar_of
from journal.archive.cli import archive
from journal.cli_arguments import Target, journal_errors, journal_file
from journal.core import rendering
from journal.core.inspection import Located
from journal.core.rendering import fault_text
from journal.core.timeline import Timeline
from journal.dump import RecordFilter, dumper
from journal.files.cli import add_commands
from journal.follow import follow_chain, follow_file
from journal.inspecting import Consumer, InspectionOutcome, inspect_file, inspect_url, is_url
from journal.ops import Op
from journal.pictures import check_drawable
from journal.plotting import draw_timeline
from journal.status import as_json as status_json
from journal.status import chain_status
from journal.timeline import as_json as timeline_json
from journal.timeline import as_text as timeline_text
from journal.timeline import timeline_of
from journal.verify import accept, verdict_json, verdict_text


def complete_operation(incomplete: str) -> list[str]:
    """For the shell: names of operations."""
    return [name for name in Op.__members__ if name.startswith(incomplete.upper())]


History = Annotated[
    bool,
    typer.Option(
        "--history", help="Of a chain, also what lies below its newest snapshot, as far down as it is held."
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Show strings whole, however long.")]

app = typer.Typer(
    name="journal",
    rich_markup_mode="markdown",
    no_args_is_help=True,
    help="Look into journals: files, objects and chains.",
)


@app.command()
def dump(
    target: Target,
    full: Full = False,
    as_json: AsJson = False,
    v0_style: Annotated[
        bool,
        typer.Option("--v0-style", help="The original's lines: no offset, no name, strings whole."),
    ] = False,
    begin: Annotated[
        int, typer.Option("--from", min=0, help="Logical offset of the first record shown.")
    ] = 0,
    end: Annotated[
        int | None,
        typer.Option("--to", min=0, help="Show only records that begin before this logical offset."),
    ] = None,
    history: History = False,
    token_file: TokenFile = None,
) -> None:
    """Print a journal's records, one line each: logical offset, name, and the fields as the original showed
    them.

    A chain is shown as a reader may see it: committed records only, from its newest finished snapshot on, or,
    with --history, from as far down as it is held. A segment, named as an object, is shown as members have
    it: its end may never have been committed.

    Examples:

        dos journal dump my_app-worker3.journal

        dos journal dump --v0-style my_app-worker3.journal | diff - theirs.txt

        dos journal dump --json --from 4096 dos://h1,h2,h3/wordcount.w0000/state | head

    Exit codes: 0 all was shown, 1 a fault was found (on standard error, after all that is good) or history
    that was asked for is missing, 2 usage or no such journal, 3 the store cannot be reached.
    """
    if as_json and v0_style:
        fail("--json and --v0-style are two ways to show the same: say one of them", REFUSED)
    render = rendering.as_original if v0_style else _render(as_json=as_json, full=full)
    _show(target, dumper(sys.stdout.write, render, begin=begin, end=end), token_file, history=history)


@app.command()
def grep(
    pattern: Annotated[
        str,
        typer.Argument(metavar="PATTERN", help="A regular expression, looked for in the records' strings."),
    ],
    target: Target,
    op: Annotated[
        str | None,
        typer.Option(
            help="Only records of this operation: WRITE, CUT, ..",
            show_default=False,
            autocompletion=complete_operation,
        ),
    ] = None,
    full: Full = False,
    as_json: AsJson = False,
    history: History = False,
    token_file: TokenFile = None,
) -> None:
    """Print the records in which something is found: in paths, in data, in the JSON of cuts and divisions.
    An empty pattern is in all.

    Examples:

        dos journal grep tcp-control my_app-worker3.journal

        dos journal grep --op CUT '"step":4[0-9]' dos://h1,h2,h3/wordcount.coord/manifest

        dos journal grep --op SEGMENT_START '' dos://h1,h2,h3/ledger/files

    Exit codes: 0 something was found, 1 the journal has a fault (what was found before it is shown) or
    history that was asked for is missing, 2 usage or no such journal, 3 the store cannot be reached, 4
    nothing was found.
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
    """Read a journal whole: every checksum, length, back pointer and digest. Says "sound", or the first
    fault.

    A fault is shown with its segment, offset, what was expected, what was found, and a hint. A chain is read
    as a reader may see it, from its newest finished snapshot on, with --history also below; a segment named
    as an object as members have it. A record cut off at the end of a file is a fault (kind "torn"), what
    precedes it is good.

    Examples:

        dos journal verify my_app-worker3.journal

        dos journal verify --json dos://h1,h2,h3/wordcount.coord/manifest

        dos journal verify --history dos://h1,h2,h3/ledger/files

    While a take-over has not completed, what lies past the end that can be proved committed is not verified,
    and said so. The same of history that is not there, if no segment says that it was trimmed.

    Exit codes: 0 sound, 1 a fault was found or not all could be verified, 2 usage or no such journal, 3 the
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
        typer.Option("--from", min=0, help="Logical offset to begin at, 0 for all. Default: the end."),
    ] = None,
    full: Full = False,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Print records as they come, of a journal file or of a chain that is never rolled back (an input, an
    output, files, a manifest), until interrupted. Of a chain only what is committed is shown.

    Examples:

        dos journal follow dos://h1,h2,h3/wordcount.coord/manifest

        dos journal follow --from 0 --json my_app-worker3.journal | jq .offset

    Exit codes: 130 interrupted, 1 a fault was found, 2 usage or no such journal, 3 the store cannot be
    reached.
    """
    render = _render(as_json=as_json, full=full)

    def show(located: Located) -> None:
        print(render(located), flush=True)

    with journal_errors():
        if is_url(target):
            trio.run(follow_chain, target, read_token(token_file), begin, show)
        else:
            trio.run(follow_file, journal_file(target), begin, show)


@app.command()
def timeline(
    target: Target,
    lines: Annotated[int, typer.Option(min=1, help="At most so many lines, each of the same length.")] = 24,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg|png", help="Draw it there instead.", show_default=False, dir_okay=False
        ),
    ] = None,
    as_json: AsJson = False,
    history: History = False,
    token_file: TokenFile = None,
) -> None:
    """A chart of what was appended when: bytes, records, and the segments, resets, cuts, steps and snapshots
    among them. A reset is a segment of another epoch: somebody took the chain over there.

    A chain is read from its newest finished snapshot on; --history goes below it. Time is what records hold
    of it (marks, steps, outputs, inputs); a journal that holds none is divided by offset. A picture, SVG or
    PNG by its name, needs matplotlib (the extra `plots` of dos-journal).

    Examples:

        dos journal timeline dos://h1,h2,h3/wordcount.w0000/steps

        dos journal timeline --lines 60 --json --history dos://h1,h2,h3/ledger/files

        dos journal timeline --plot ledger.svg dos://h1,h2,h3/ledger/files

        dos journal timeline --history --plot ledger.png dos://h1,h2,h3/ledger/files

    Exit codes: 0 done, 1 a fault was found (what is good before it is shown) or history that was asked for is
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
        _say_fault(outcome)
        return
    columns = shutil.get_terminal_size((110, 24)).columns
    text = (
        timeline_json(found, lines=lines) if as_json else timeline_text(found, lines=lines, columns=columns)
    )
    print(text)
    _say_fault(outcome)


@app.command()
def status(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="A chain: dos://HOST[,HOST2..]/DIRECTORY/CHAIN, s3://BUCKET/PREFIX/DIRECTORY/CHAIN, or, of a"
            " server that does not run, DATA/DIRECTORY/CHAIN.",
        ),
    ],
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """How much of a chain a recovery would read and how long that takes from here, what lies below its newest
    snapshot, and what dead writers left.

    The time is measured: up to 8 MiB of the chain are read.

    Examples:

        dos journal status dos://h1,h2,h3/wordcount.w0000/state

        dos journal status --json dos://h1,h2,h3/ledger/files | jq .recovery_s

    Exit codes: 0 done, 1 a fault was found, 2 usage or no such chain, 3 the store cannot be reached.
    """
    if not is_url(url):
        fail(f"{url} is no chain: a recovery reads a journal file whole; `dos journal verify` does", REFUSED)
    with journal_errors(), bar_of(url) as progress:
        found = trio.run(chain_status, url, read_token(token_file), progress)
    print(status_json(found) if as_json else found.as_text(), flush=True)


def _render(*, as_json: bool, full: bool) -> Callable[[Located], str]:
    return functools.partial(rendering.as_json if as_json else rendering.as_text, full=full)


def _operation(name: str | None) -> Op | None:
    """Raises ValueError, which lists the names."""
    if name is None:
        return None
    if name.upper() not in Op.__members__:
        raise ValueError(f"{name!r} is no operation: there are {', '.join(Op.__members__)}")
    return Op[name.upper()]


def _show(target: str, consume: Consumer, token_file: Path | None, *, history: bool) -> None:
    """Have the records shown, and say what is wrong with them."""
    outcome = _inspect(target, consume, token_file, history=history, quiet=sys.stdout.isatty())
    if not outcome.committed_only:
        sys.stdout.flush()
        sys.stderr.write(f"{outcome.target}: as members have it; not all of it need be committed\n")
    _say_fault(outcome)


def _say_fault(outcome: InspectionOutcome) -> None:
    """Say what is wrong, or was not shown. Data that are wrong or not there end the command."""
    sys.stdout.flush()
    for text in outcome.not_verified:
        warn(text)
    if outcome.fault is not None:
        sys.stderr.write(f"fault in {outcome.target}\n{fault_text(outcome.fault, outcome.base)}\n")
    if outcome.fault is not None or outcome.missing:
        raise typer.Exit(NEGATIVE)


def _inspect(
    target: str, consume: Consumer, token_file: Path | None, *, history: bool, quiet: bool = False
) -> InspectionOutcome:
    """Read the target, with progress on a terminal. Ends the command if it cannot be read at all."""
    with journal_errors(), bar_of(target, quiet=quiet) as progress:
        if not is_url(target):
            return inspect_file(journal_file(target), consume, progress)
        read = functools.partial(
            inspect_url, target, read_token(token_file), consume, progress, history=history
        )
        outcome = trio.run(read)
    if outcome.gone:
        warn(outcome.gone)
    return outcome


add_commands(app)
app.command()(archive)
