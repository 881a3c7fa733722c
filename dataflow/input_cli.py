"""`dos input`: receive lines over TCP as an input of an application, and close an input."""

import re
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import trio
import typer

from checkpoint.chains.input_log import close_input
from checkpoint.cli.arguments import ANSWERS, Application, Handle, check_input_names
from checkpoint.cli.listing import ls_inputs
from checkpoint.cli.retention import KINDS, add_retention_commands, add_sweep_command
from checkpoint.errors import EntryRefusedError, InputClosedError
from checkpoint.limits import entry_clock_error_max_us
from dataflow.entry.cli import (
    ClockErrorMax,
    Lateness,
    MarksEvery,
    Peers,
    Site,
    SiteArguments,
    TimeColumn,
    entries,
    serve_site,
)
from dos_client.cli.kit import (
    REFUSED,
    Call,
    Ends,
    Report,
    StoreUrl,
    command,
    fail,
    finish,
    warn,
)
from dos_protocol.arguments import address_text, is_loopback, parse_listen
from dos_protocol.errors import FencedError
from dos_tls import ServerContext, TlsSettingsError, directory_settings, tls_of_environment

_ENDS: Final = Ends((FencedError, InputClosedError, EntryRefusedError))
_PATIENCE_S: Final = 3.0
"""After this time without the store, one line on standard error reports that the command waits for it."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Receive lines over TCP as an input of an application; close an input; show its consumers, and what"
    " is deleted; delete rows that its writers staged and never recorded."
    "\n\nExample: dos input serve dos://h1,h2,h3 shop lines --listen 127.0.0.1:7777",
)


@dataclass(slots=True)
class _Counted:
    lines: int = 0

    def add(self, lines: int) -> None:
        self.lines += lines


Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Allow an address that other machines can reach. Every client that reaches it may write.",
    ),
]


@command(app, "serve", log_json=True, progress=False, ends=_ENDS)
async def serve(
    call: Call,
    url: StoreUrl,
    application: Application,
    handle: Handle,
    listen: Annotated[
        str, typer.Option(help="HOST:PORT to listen on; port 0 picks a free port.")
    ] = "127.0.0.1:7777",
    name: Annotated[
        str,
        typer.Option(
            help="Name of this entry point. If two have the same name, the one started last serves, and the"
            " other ends at its next line. Default: entry-HOSTNAME.",
            metavar="NAME",
        ),
    ] = "",
    insecure: Insecure = False,
    tls: Annotated[
        Path | None,
        typer.Option(
            help="Lines: accept TLS only, with the certificate in this directory of `dos tls init`, and only"
            " clients with a certificate. With --site, set DOS_TLS instead.",
            metavar="DIR",
        ),
    ] = None,
    site: Site = "",
    peers: Peers = "",
    time: TimeColumn = "",
    lateness: Lateness = None,
    marks_every: MarksEvery = None,
    clock_error_max: ClockErrorMax = entry_clock_error_max_us / 1e6,
) -> Report:
    """Receive lines over TCP until SIGTERM or SIGINT. Each line is recorded with its arrival time, and is on
    stable storage of a quorum before it is acknowledged.

    The reply is the number of lines of the connection that are recorded. After a lost connection, send the
    lines that were not acknowledged again. The region need not run meanwhile.

    With --site, this is the entry point of a site: producers connect to it (open_producer), and it records
    rows and their times for the regions of all sites.

    Example: dos input serve dos://h1,h2,h3 shop lines

    Then, on any machine: printf 'tea 3\\nrice 7\\n' | nc -N 127.0.0.1 7777

    Example: dos input serve dos://e1,e2,e3 shop loads --site purdue --peers e2:7777,e3:7777

    Exit codes: 0 stopped by a signal; 1 another entry point has taken the name, the input is closed, or its
    entry points have other settings; 2 usage or the address is refused; 3 the store cannot be reached.
    """
    try:
        host, port = parse_listen(listen)
    except ValueError as error:
        fail(str(error), REFUSED)
    context = _tls_context(tls, site=site)
    safe = insecure or context is not None or (site and tls_of_environment() is not None)
    if not safe and not is_loopback(host):
        remedy = f"{'set DOS_TLS' if site else 'pass --tls'}, or pass --insecure, or listen on 127.0.0.1"
        fail(f"{host} can be reached from other machines: {remedy}", REFUSED)
    if site:
        arguments = SiteArguments(site, peers, time, lateness, marks_every, clock_error_max)
        return await serve_site(
            call, url, application, handle, arguments, host=host, port=port, until_signal=_until_signal
        )
    if peers or time or lateness is not None or marks_every is not None:
        fail("--peers, --time, --lateness and --marks-every need --site", REFUSED)
    from dataflow.entry_point import serve_lines  # needs pyarrow, which `--help` must not

    producer = name or _default_name()
    announce = partial(_announce, host, application, handle, producer, as_json=call.as_json)
    counted = _Counted()
    check_input_names(application, handle, producer)
    serve_here = partial(serve_lines, host=host, port=port, insecure=insecure, tls=context)
    async with call.store(url) as store:
        entry = partial(serve_here, store, application, handle, producer, recorded=counted.add)
        await _until_signal(entry, announce, listen)
    text = f"dos: stopped; lines recorded: {counted.lines}"
    return Report({"stopped": True, "lines": counted.lines}, text)


@command(app, "close", ends=_ENDS)
async def close(call: Call, url: StoreUrl, application: Application, handle: Handle) -> Report:
    """Close an input permanently: rows that were recorded are still read, then the input ends. No writer can
    write to it any more.

    Example: dos input close dos://h1,h2,h3 shop lines

    Exit codes: 0 closed, also when it was already; 2 usage; 3 the store cannot be reached.
    """
    check_input_names(application, handle)
    async with call.store(url) as store:
        await close_input(store, application, handle)
    summary = {"application": application, "handle": handle, "closed": True}
    return Report(summary, f"dos: input {handle} of {application} is closed")


def _tls_context(directory: Path | None, *, site: str) -> ServerContext | None:
    """Return the TLS context for lines. End the command if it cannot be used."""
    if directory is None:
        return None
    if site:
        fail("--tls is for lines; the links of an entry point of a site use DOS_TLS", REFUSED)
    try:
        return ServerContext(directory_settings(str(directory)), client_certificates=True)
    except TlsSettingsError as error:
        fail(str(error), REFUSED)


def _default_name() -> str:
    return "entry-" + re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname())


async def _until_signal(
    entry: Callable[..., Awaitable[None]], announce: Callable[[Any], None], listen: str
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_at, signals, nursery.cancel_scope)
            started = trio.Event()
            nursery.start_soon(_warn_if_waiting, started)
            try:
                listening = await nursery.start(entry)
            except OSError as error:
                raise OSError(f"cannot listen at {listen}: {error.strerror or error}") from error
            started.set()
            announce(listening)


async def _stop_at(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        break
    scope.cancel()


async def _warn_if_waiting(started: trio.Event) -> None:
    with trio.move_on_after(_PATIENCE_S):
        await started.wait()
        return
    warn("waiting for the store; `dos store status` lists the members that are unavailable")


def _announce(host: str, application: str, handle: str, producer: str, port: int, *, as_json: bool) -> None:
    """Print one line once the port listens; programs that start an entry point wait for this line."""
    address = address_text(host, port)
    summary = {"address": address, "application": application, "handle": handle, "name": producer}
    text = f"dos: lines to {address} go to input {handle} of {application}, from {producer}"
    finish(Report(summary, text), as_json=as_json)


command(app, "ls", ends=ANSWERS)(ls_inputs)
command(app, "entries")(entries)
add_sweep_command(app)
add_retention_commands(app, KINDS["input"])
