"""The kit that all `dos` commands are built from: arguments, exit codes, errors, the store, text and JSON.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | a negative answer: not found, damaged, refused by a region, something is missing |
| 2 | wrong usage, or refused |
| 3 | a server, or enough members of a store, cannot be reached, or writers wait for other reasons |
| 4 | nothing matches (`dos journal grep`) |
| 130 | interrupted: what is open was closed |

SIGTERM does the same as an interrupt, and then ends the process. A second signal ends the process at once.

Results go to standard output, everything else to standard error as lines `dos: TEXT`. `dos serve` and
`dos fsck` do not use this module: `dos_server` imports `dos_protocol` only.
"""

import inspect
import json
import os
import secrets
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Final, NoReturn, Self, TypeVar

import trio
import typer
from rich import box
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from dos_client.errors import (
    LossError,
    MissingDataError,
    NotEmptyError,
    QuorumUnavailableError,
    StoreNotReadyError,
)
from dos_client.file_token import FileToken
from dos_client.live_store import Store
from dos_client.store import connect, open_store
from dos_client.tasks import background_tasks
from dos_client.urls import DosUrl, parse_url
from dos_monitoring import LOG_VARIABLE, begin_logs, log_choice_of_environment
from dos_protocol.arguments import address_text, parse_listen, refuse_weak
from dos_protocol.errors import (
    BrokenConnectionError,
    CorruptDataError,
    CorruptError,
    DosError,
    LocalProtocolError,
    NotFoundError,
    PoisonedError,
)
from dos_protocol.limits import id_bytes
from dos_protocol.names import printable_lines
from dos_tls import TlsSettings, TlsSettingsError, expiry_problem, tls_of_environment, warn_if_open

T = TypeVar("T")

NEGATIVE: Final = 1
REFUSED: Final = 2
UNREACHABLE: Final = 3
NOTHING_FOUND: Final = 4
INTERRUPTED: Final = 130

_TOOLS: Final = b"dos-"
"""First bytes of the writer ids of commands: one command takes over from another without --take-over."""
WIDTH_WITHOUT_TERMINAL: Final = 160

Url = Annotated[
    str,
    typer.Argument(
        help="dos://HOST:PORT,HOST2:PORT/DIRECTORY/OBJECT; the object, or both names, can be left out."
        " dos:///DIRECTORY/OBJECT is in the store of the context.",
        metavar="URL",
    ),
]
StoreUrl = Annotated[
    str,
    typer.Argument(
        help="The store: dos://HOST:PORT,HOST2:PORT,HOST3:PORT. Default: the one that `dos context` names.",
        metavar="STORE-URL",
    ),
]
MetricsAddress = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Serve /metrics for Prometheus, /healthz and /readyz at http://HOST:PORT.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log lines of JSON, for programs.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="File whose first line is the servers' token.",
        exists=True,
        dir_okay=False,
        readable=True,
        envvar="DOS_TOKEN_FILE",
    ),
]


def _help_of(function: object) -> str:
    """Return a docstring with one line per paragraph, which typer wraps at the width of the terminal.
    Indented paragraphs are blocks of code, and stay.
    """
    paragraphs = inspect.cleandoc(getattr(function, "__doc__", None) or "").split("\n\n")
    return "\n\n".join(one if one.startswith("    ") else " ".join(one.split()) for one in paragraphs)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a command. value: printed by --json. text: printed otherwise, or a function that prints.
    code: the exit code. problem: the reason for that code, for standard error.
    """

    value: Any
    text: str | Callable[[], object] = ""
    code: int = 0
    problem: str = ""


class Call:
    """The values that a command receives in addition to its own arguments. timeout_s, wait_s: 0 if it has no
    such option. display: shows how far the command is, from its second `PROGRESS_AFTER_S` on.
    """

    def __init__(
        self, display: "ProgressDisplay", token_file: Path | None, as_json: bool, timeout: float, wait: float
    ) -> None:
        self.as_json, self.timeout_s, self.wait_s = as_json, timeout, wait
        self.token_file, self.display = token_file, display

    @property
    def token(self) -> bytes:
        """The token of the file that the command line names."""
        return read_token(self.token_file)

    def progress(self, *, lines_after_s: float = 0.0) -> "ProgressDisplay":
        """Return the display of the command, which also shows lines off a terminal: see `show_lines`."""
        self.display.show_lines(lines_after_s)
        return self.display

    def bar(self, text: str) -> Callable[[int, int | None], None]:
        """Return a function that moves a bar on a terminal: bytes done, and in all if known."""
        self.display.say(text)
        return lambda done, total: self.display.show(text, done, total or 0)

    @asynccontextmanager
    async def store(self, url: str, *, client: str = "dos") -> AsyncIterator[Store]:
        """Open a store. Ends the command if the URL names more than servers."""
        check_store_url(url)
        self.display.say(f"waits for the store {url}")
        async with open_store(url, token=self.token, client=client) as store:
            self.display.say("")
            yield store


@dataclass(frozen=True, slots=True)
class Ends:
    """How errors end the commands of a group.

    negative: they are answers, with exit code 1. refused: they are the user's, like a ValueError of an
    argument, and reported by their text; others that are neither DosError nor OSError are bugs.
    code_of: returns the exit code of an error that is not in `negative`.
    """

    negative: tuple[type[Exception], ...] = ()
    refused: tuple[type[Exception], ...] = ()
    code_of: Callable[[Exception], int] | None = None

    def code(self, error: Exception) -> int:
        return NEGATIVE if isinstance(error, self.negative) else (self.code_of or exit_code)(error)


_USUAL_ENDS: Final = Ends()
CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Awaitable[Report | None] | Report | None])


def command(
    app: typer.Typer,
    name: str,
    *,
    as_json: bool = True,
    log_json: bool = False,
    token: bool = True,
    timeout: tuple[Any, float] | None = None,
    wait: tuple[Any, float] | None = None,
    progress: bool = True,
    ends: Ends = _USUAL_ENDS,
    **settings: Any,
) -> Callable[[CommandFunction], CommandFunction]:
    """Make a function a command of `app`: `function(call, ...) -> Report`, whose other parameters are the
    command's, and whose docstring is its help. A function that needs no `call` leaves it out.

    --json and --token-file are added unless they are declined, --log-json if asked for, and --timeout and
    --wait if given, each as the type of its option and its default. A command that has printed its result
    returns None. progress: a terminal shows what the command does and for how long, from the second
    `PROGRESS_AFTER_S` on; False for a command that runs until it is interrupted, or that has the screen.
    settings: of `typer.Typer.command`.

    An async function runs in trio, and a signal cancels it where it waits. Another one is for work that never
    waits, such as to read a file: an interrupt ends it between two instructions.
    """
    added = [
        *([("timeout", *timeout)] if timeout is not None else []),
        *([("wait", *wait)] if wait is not None else []),
        *([("as_json", AsJson, False)] if as_json else []),
        *([("log_json", LogJson, False)] if log_json else []),
        *([("token_file", TokenFile, None)] if token else []),
    ]

    def register(function: CommandFunction) -> CommandFunction:
        takes_call = "call" in inspect.signature(function).parameters

        def execute(ctx: typer.Context, **given: Any) -> None:
            begin_command_log(as_json=given.pop("log_json", False))
            # Only what was added: a command may have a parameter of its own with the name of one of these.
            shared = {**_SHARED, **{one: given.pop(one) for one, *_ in added if one in _SHARED}}
            display = ProgressDisplay(ctx.command_path, quiet=shared["as_json"], on_terminal=progress)
            with errors_end_command(ends.code, also=ends.refused), display:
                called = {"call": Call(display, **shared)} if takes_call else {}
                begin: Callable[[], Any] = partial(function, **called, **given)
                waits = inspect.iscoroutinefunction(function)
                report: Report | None = run_interruptible(begin) if waits else begin()
            if report is not None:
                finish(report, as_json=shared["as_json"])

        own = list(inspect.signature(function).parameters.values())[int(takes_call) :]
        kind = inspect.Parameter.KEYWORD_ONLY
        more = [inspect.Parameter(one, kind, default=value, annotation=of) for one, of, value in added]
        context = inspect.Parameter("ctx", kind, annotation=typer.Context)
        parameters = [context, *(one.replace(kind=kind) for one in own), *more]
        vars(execute)["shows_progress"] = progress
        vars(execute)["__signature__"] = inspect.Signature(parameters)  # typer reads it
        execute.__annotations__ = {one.name: one.annotation for one in parameters}
        app.command(name, help=_help_of(function), **settings)(execute)
        return function

    return register


_SHARED: Final[dict[str, Any]] = {"token_file": None, "as_json": False, "timeout": 0.0, "wait": 0.0}


def finish(report: Report, *, as_json: bool) -> None:
    if as_json:
        print_json(report.value)
    elif callable(report.text):
        report.text()
    elif report.text:
        print_text(report.text)
    if report.problem:
        warn(report.problem)
    if report.code:
        raise typer.Exit(report.code)


def code_of_store(*, whole: bool, writers_wait: bool) -> int:
    """Return the exit code of a command that examined a store."""
    return UNREACHABLE if writers_wait else 0 if whole else NEGATIVE


def read_token(path: Path | None) -> bytes:
    """Return the file's token, which each session reads again; b"" without a file. May end the command."""
    if path is None:
        return b""
    try:
        warn_if_open(path, "the token file")
        return FileToken(path)
    except OSError as error:
        fail(f"token file {path} cannot be read: {error.strerror}", REFUSED)
    except DosError as error:
        fail(str(error), REFUSED)


def certificate_to_serve() -> TlsSettings:
    """Return the certificate of DOS_TLS, for a command that serves TLS. Ends the command without one."""
    settings = tls_of_environment()
    if settings is None or not settings.certificate:
        fail("--tls needs a certificate: set DOS_TLS to a directory that `dos tls init` made", REFUSED)
    if problem := expiry_problem(settings):
        fail(problem, REFUSED)
    return settings


@contextmanager
def metrics_served(
    address: str | None, *, hangs: Callable[[], str], not_ready: Callable[[], str]
) -> Iterator[None]:
    """Serve the metrics of this process during the block, if an address is given. Ends the command if it
    cannot. hangs, not_ready: as of `metrics.serve`.
    """
    if address is None:
        yield
        return
    from dos_client import metrics  # only here: most commands serve none

    try:
        host, port = parse_listen(address, "--metrics")
        server = metrics.serve(port, host, hangs=hangs, not_ready=not_ready)
    except (ValueError, OSError) as error:
        fail(f"cannot serve metrics at {address}: {error}", REFUSED)
    try:
        print(f"metrics: http://{address_text(host, server.port)}/metrics", file=sys.stderr, flush=True)
        yield
    finally:
        server.close()


def key_in(path: Path) -> str:
    """Return the key in a file, for a command whose clients need it. Ends the command for a weak one."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read the key in {path}: {error}", REFUSED)
    try:
        refuse_weak(key.encode(), str(path))
    except LocalProtocolError as error:
        fail(str(error), REFUSED)
    return key


def parsed_url(url: str, *, needs: str = "") -> DosUrl:
    """Return the parsed URL; `needs="object"` requires an object. End the command if it is not valid."""
    try:
        parsed = parse_url(url)
    except DosError as error:
        fail(str(error), REFUSED)
    if needs == "object" and parsed.object is None:
        fail(f"the URL must name an object: {url}/directory/object", REFUSED)
    return parsed


def check_store_url(url: str) -> None:
    """End the command if the URL names more than servers."""
    if parsed_url(url).directory is not None:
        fail(f"{url} names a directory; pass the servers alone, as dos://HOST:PORT,HOST2:PORT", REFUSED)


def parsed_option(parse: Callable[[str], float], text: str) -> float:
    """Return the number in the text of an option. End the command if it has none."""
    try:
        return parse(text)
    except ValueError as error:
        fail(str(error), REFUSED)


def opened(url: DosUrl, token: bytes) -> AbstractAsyncContextManager[Store]:
    """Open the store of the URL's servers; one server alone is opened as itself, without its store."""
    if len(url.servers) == 1:
        return connect(url, token=token, client="dos")
    return open_store(url, token=token, client="dos")


def begin_command_log(*, as_json: bool = False) -> None:
    """Write the log of this command, and of the processes that it starts, as DOS_LOG says; as_json: as JSON,
    with the level of DOS_LOG.

    Ends the command for a DOS_LOG that is not valid.
    """
    if as_json:
        _, colon, level = os.environ.get(LOG_VARIABLE, "").partition(":")
        os.environ[LOG_VARIABLE] = f"json{colon}{level}"
    try:
        choice = log_choice_of_environment()
    except ValueError as error:
        fail(str(error), REFUSED)
    if choice is not None:
        begin_logs(choice)


def run_interruptible(function: Callable[[], Awaitable[T]]) -> T:
    """Run an async function and return its result. SIGINT and SIGTERM cancel it, a second one ends the
    process at once.

    SIGTERM then ends the process, as it does where nobody handles it: supervisors take that for a clean end.
    """
    received = list[int]()
    before = signal.getsignal(signal.SIGINT)
    handles = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()

    def end_at_once() -> None:
        if handles:
            signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))

    def on_signal(number: int) -> None:
        received.append(number)
        end_at_once()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    # Also outside `until_interrupted`, which restores it at its end. Python's own handler would raise
    # KeyboardInterrupt between any two instructions of trio, or of the end of the interpreter.
    end_at_once()
    try:
        result = trio.run(until_interrupted, function, on_signal, (signal.SIGINT, signal.SIGTERM))
    except KeyboardInterrupt:
        if signal.SIGTERM in received:
            sys.stdout.flush()  # the signal flushes nothing
            signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        if handles and not received:
            signal.signal(signal.SIGINT, before)
    return result


async def until_interrupted(
    work: Callable[[], Awaitable[T]], on_signal: Callable[[int], object], signals: Sequence[signal.Signals]
) -> T:
    """Run `work` and return its result. At a signal call `on_signal` with its number, cancel `work`, wait for
    its end, and raise KeyboardInterrupt.

    `work` is cancelled where it waits, so that it closes what it has open. Python's own handler would raise
    KeyboardInterrupt between any two instructions of any task. Errors of `work` are raised unchanged. Signals
    that this process ignores, like SIGINT in background jobs of a shell, stay ignored.
    """
    wanted = [one for one in signals if signal.getsignal(one) is not signal.SIG_IGN]
    if not wanted or threading.current_thread() is not threading.main_thread():
        return await work()
    interrupted, results = False, list[T]()
    with trio.open_signal_receiver(*wanted) as received:

        async def watch() -> None:
            nonlocal interrupted
            async for number in received:
                interrupted = True
                on_signal(number)
                nursery.cancel_scope.cancel()

        try:
            async with background_tasks() as nursery:
                nursery.start_soon(watch)
                results.append(await work())
        except Exception:
            if not interrupted:  # otherwise it is an error of the end of `work`
                raise
    if interrupted:
        raise KeyboardInterrupt
    return results[0]


@contextmanager
def errors_end_command(
    code_of: Callable[[Exception], int], *, also: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """End the command at a DosError, an OSError or an error of `also`: its text, and `code_of(error)`.

    A group of such errors is reported by its first error. A group with any other error is raised unchanged,
    so that a bug is never hidden.
    """
    expected = (DosError, OSError, *also)
    caught: tuple[type[BaseException], ...] = (*expected, KeyboardInterrupt, BaseExceptionGroup)
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of standard output has ended: no error message
    except caught as error:
        found = list(leaves(error))
        first = found[0]
        if all(isinstance(leaf, KeyboardInterrupt) for leaf in found):
            fail("interrupted", INTERRUPTED)
        if not isinstance(first, Exception) or not all(isinstance(leaf, expected) for leaf in found):
            raise
        for line in first.lines if isinstance(first, LossError) else ():
            print(line, file=sys.stderr)
        fail(_error_text(first), code_of(first))


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group, and of the groups in it; an error alone as itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def _error_text(error: Exception) -> str:
    """Return the error's text; of an OSError, without its number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{os.fsdecode(error.filename)}: {error.strerror}"


def exit_code(error: Exception) -> int:
    """Return the exit code for an error, by the table at the top of this file."""
    if isinstance(error, NotFoundError | CorruptError | PoisonedError | CorruptDataError | MissingDataError):
        return NEGATIVE
    if isinstance(error, NotEmptyError | TlsSettingsError):
        return REFUSED
    if isinstance(error, BrokenConnectionError | StoreNotReadyError | QuorumUnavailableError):
        return UNREACHABLE
    return REFUSED


def fail(text: str, code: int) -> NoReturn:
    """Print an error and end the command with this exit code."""
    warn(text)
    raise typer.Exit(code)


def warn(text: str) -> None:
    """Print a line on standard error, after standard output. Control characters that a terminal would obey
    are escaped.
    """
    sys.stdout.flush()
    print(f"dos: {printable_lines(text)}", file=sys.stderr, flush=True)


def print_text(text: str) -> None:
    """Print text on standard output. Control characters that a terminal would obey are escaped: it may be of
    another program.
    """
    print(printable_lines(text), flush=True)


def print_json(value: Any) -> None:
    print(json.dumps(value), flush=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str = "") -> None:
    """Print a table as wide as the terminal, or 160 columns wide. No cell is truncated; what a terminal would
    obey is escaped.

    A column whose name begins with `#` holds numbers: it is aligned to the right.
    """
    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for column in columns:
        number = column.startswith("#")
        table.add_column(
            column.removeprefix("#"), justify="right" if number else "left", overflow="fold", no_wrap=number
        )
    for row in rows:
        table.add_row(*("-" if cell is None or cell == "" else printable_lines(str(cell)) for cell in row))
    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    Console(width=width, highlight=False, markup=False, soft_wrap=False).print(table)


def count_text(count: int) -> str:
    """Return a number of bytes with its unit, such as `1.5 MiB`."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def clock_text(wall_ms: int) -> str:
    """Return a wall time in milliseconds as an ISO date and time of the local time zone."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).astimezone().isoformat(sep=" ", timespec="seconds")


def ago_text(wall_ms: int, now_ms: int) -> str:
    """Return how long ago a time was; never negative, although the times may come from two clocks."""
    seconds = (now_ms - wall_ms) / 1000
    for unit, length in (("days", 86_400), ("hours", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(seconds, 0):.1f} s ago"


def seconds_text(phases: dict[str, float]) -> str:
    """Return the phases with their lengths in milliseconds; the values are seconds."""
    return ", ".join(f"{phase} {1000 * seconds:.0f} ms" for phase, seconds in phases.items()) or "-"


def tool_writer_id(tool: bytes) -> bytes:
    """Return a writer id for one run of a command. It shows that no program holds the claim any more."""
    return _TOOLS + tool + secrets.token_bytes(id_bytes - len(_TOOLS + tool))


def is_tool(writer_id: bytes) -> bool:
    """Return whether a claim is a command's: that command has ended, or may be fenced."""
    return writer_id.startswith(_TOOLS)


LINE_PAUSE_S = 1.0
PROGRESS_AFTER_S: Final = 1.0
"""A command that has ended before shows no progress on a terminal."""


class _OfBytes(ProgressColumn):
    """A column that is empty until bytes are known."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: Task) -> RenderableType:
        return self._column(task) if task.completed or task.total else Text()


class ProgressDisplay:
    """Shows on standard error how far a command is while it is entered, unless `quiet`.

    `on_terminal`, from the second `PROGRESS_AFTER_S` on: `text`, or what was last said or shown, bytes if
    they are known, and the seconds since the command began. Otherwise nothing, or lines after `show_lines`.
    Lines are timed by trio's clock, so they need a trio run.
    """

    def __init__(self, text: str, *, quiet: bool, on_terminal: bool) -> None:
        self._text, self._quiet = text, quiet
        self._lines_from_s: float | None = None
        self._last = (-LINE_PAUSE_S, "")
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        if on_terminal and self._console.is_terminal and not quiet:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                *map(_OfBytes, (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
                # Results must not go to standard error, where the bar is, unless both are the terminal.
                redirect_stdout=sys.stdout.isatty(),
            )
            self._task = self._bar.add_task(text, total=None)
            self._lock = threading.Lock()  # of `_bar`, which the timer starts in its own thread
            self._timer = threading.Timer(PROGRESS_AFTER_S, self._begin)
            self._timer.daemon = True

    @property
    def is_seen(self) -> bool:
        """Whether a terminal shows, or will show, what is said."""
        return self._bar is not None

    def say(self, text: str) -> None:
        """Say on a terminal what the command does now, "": only which command it is."""
        if self._bar is not None:
            self._bar.update(
                self._task, description=printable_lines(text or self._text), completed=0, total=None
            )

    def show_lines(self, after_s: float = 0.0) -> None:
        """Off a terminal, show a line at most each second, and none in the first `after_s` seconds."""
        self._lines_from_s = trio.current_time() + after_s

    def show(self, text: str, done: int, total: int = 0, phase: str = "") -> None:
        """Show the text, with bytes done and in all (0: not known). Of lines, that of a new phase is shown at
        once.
        """
        if self._bar is not None:
            self._bar.update(
                self._task, description=printable_lines(text), total=total or None, completed=done
            )
        elif not self._quiet and self._lines_from_s is not None:
            now_s = trio.current_time()
            if now_s < self._lines_from_s or (
                now_s - self._last[0] <= LINE_PAUSE_S and phase == self._last[1]
            ):
                return
            self._last = (now_s, phase)
            of = f" of {count_text(total)}" if total else ""
            so_far = f", {count_text(done)}{of}" if done or total else ""
            self._console.print(f"{text}{so_far}", highlight=False, soft_wrap=True)

    def hide(self) -> None:
        """Show nothing from now on: the command prints, or asks, where this would be."""
        self._quiet = True
        if self._bar is not None:
            with self._lock:
                bar, self._bar = self._bar, None
                self._timer.cancel()
                if bar.live.is_started:
                    bar.stop()

    def _begin(self) -> None:
        with self._lock:
            if self._bar is not None:
                self._bar.start()

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hide()
