"""`dos input serve --site`, an entry point as a command; `dos input entries`, the entry points of a handle.

What needs pyarrow is imported in functions: `--help` works without it.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import trio
import typer

from checkpoint import EntrySettings
from checkpoint import limits as checkpoint_limits
from checkpoint.cli.arguments import Application, Handle, check_input_names
from dataflow import limits
from dataflow.core.entry_messages import EntryStatus
from dataflow.entry.sending import EntryLink
from dataflow.errors import SchemaError
from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    Call,
    Report,
    fail,
    finish,
    print_table,
    warn,
)
from dos_protocol.arguments import address_text
from dos_protocol.errors import DosError

if TYPE_CHECKING:
    from dataflow.entry.serving import EntryPoint

_PROGRESS_S: Final = 10.0

Site = Annotated[
    str, typer.Option(help="Serve producers of this site instead of lines; STORE-URL is the entry store.")
]
Peers = Annotated[
    str, typer.Option(help="With --site: HOST:PORT of the other entry points, separated by commas.")
]
TimeColumn = Annotated[
    str,
    typer.Option(help="With --site: the column with the time of a row. Default: at.", metavar="COLUMN"),
]
Lateness = Annotated[
    float | None,
    typer.Option(help="With --site: producers send the times; rows are late after this many seconds."),
]
MarksEvery = Annotated[
    float | None, typer.Option(help="With --site: seconds between marks, at most and by default 1.")
]
ClockErrorMax = Annotated[
    float, typer.Option(help="With --site: seconds by which its clock may differ from a majority.")
]


class SiteArguments(NamedTuple):
    """The options of `dos input serve` for an entry point of a site."""

    site: str
    peers: str
    time: str
    lateness: float | None
    marks_every: float | None
    clock_error_max: float

    @property
    def settings(self) -> EntrySettings | None:
        """The settings of the handle; None if no option is about them: those that are recorded."""
        if not self.time and self.lateness is None and self.marks_every is None:
            return None
        every = checkpoint_limits.entry_marks_every_us if self.marks_every is None else self.marks_every * 1e6
        return EntrySettings(
            time=self.time or "at",
            lateness_us=None if self.lateness is None else round(self.lateness * 1e6),
            marks_every_us=round(every),
        )

    def check(self) -> None:
        """End the command if an option has no valid value."""
        least, most = checkpoint_limits.entry_marks_every_us_min, checkpoint_limits.entry_marks_every_us
        if self.marks_every is not None and not least <= self.marks_every * 1e6 <= most:
            fail(
                f"--marks-every must be from {least / 1e6:g} to {most / 1e6:g} s, got {self.marks_every:g}",
                REFUSED,
            )
        if self.lateness is not None and self.lateness < 0:
            fail(f"--lateness must be 0 or more seconds, got {self.lateness:g}", REFUSED)
        try:
            self.each_peer()
        except SchemaError as error:
            fail(f"--peers: {error.args[0]}", REFUSED)

    def each_peer(self) -> tuple[str, ...]:
        return _addresses_in(self.peers) if self.peers else ()


async def serve_site(
    call: Call,
    url: str,
    application: str,
    handle: str,
    arguments: SiteArguments,
    *,
    host: str,
    port: int,
    until_signal: Callable[..., Awaitable[None]],
) -> Report:
    """Serve as the entry point of a site until a signal. until_signal: as in `dataflow/input_cli.py`."""
    from dataflow.entry.serving import EntryOptions, serve_entry

    arguments.check()
    check_input_names(application, handle)
    point: list[EntryPoint] = []

    def announce(started: "EntryPoint") -> None:
        point.append(started)
        address = address_text(host, started.address[1])
        summary = {"address": address, "application": application, "handle": handle, "site": arguments.site}
        text = f"dos: entry point {arguments.site} at {address} records input {handle} of {application}"
        finish(Report(summary, text), as_json=call.as_json)

    async with call.store(url) as store:
        options = EntryOptions(
            arguments.site,
            arguments.each_peer(),
            arguments.settings,
            call.token,
            round(arguments.clock_error_max * 1e6),
        )
        if not options.peers:
            warn("without --peers, the clock of this entry point is not verified")
        entry = partial(serve_entry, store, application, handle, options, host=host, port=port)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_report, point)
            await until_signal(entry, announce, address_text(host, port))
            nursery.cancel_scope.cancel()
    rows = point[0].recorded_rows if point else 0
    return Report({"stopped": True, "rows": rows}, f"dos: stopped; rows recorded: {rows}")


async def _report(point: "list[EntryPoint]") -> None:
    """Print a line on standard error when something has changed, at intervals."""
    last = ""
    while True:
        await trio.sleep(_PROGRESS_S)
        for one in point:
            status = one.status()
            text = (
                f"{status.site}: rows recorded {one.recorded_rows}; origins {len(status.marks)}, with"
                f" producers {len(status.attended)}; {_clock_text(status)}"
            )
            if text != last:
                warn(text)
                last = text


def _clock_text(status: EntryStatus) -> str:
    good = "clock good" if status.is_good else "CLOCK NOT GOOD, gives no times"
    if not status.errors:
        return f"{good}, unverified"
    each = (f"{peer} within {bound / 1000:.1f} ms" for peer, (_, bound) in sorted(status.errors.items()))
    return f"{good}: {', '.join(each)}"


def _addresses_in(text: str) -> tuple[str, ...]:
    from dataflow.producing import EntryPoints

    return EntryPoints(text).each


Addresses = Annotated[
    str, typer.Argument(help="HOST:PORT of the entry points, separated by commas.", metavar="ENTRIES")
]


async def entries(call: Call, addresses: Addresses, application: Application, handle: Handle) -> Report:
    """Show the entry points of an input: the clock of each, and the producers that it serves.

    The clock of an entry point is good if it is within the limit of a majority of all clocks. One whose clock
    is not good gives no times, and its producers move to another.

    Example: dos input entries e1:7777,e2:7777,e3:7777 shop loads

    Exit codes: 0 all answer and have good clocks; 1 one does not; 2 usage.
    """
    check_input_names(application, handle)
    try:
        each = _addresses_in(addresses)
    except SchemaError as error:
        fail(str(error.args[0]), REFUSED)
    found, missing = await _ask_all(each, application, handle, call.token)
    rows = []
    for address in each:
        status = found.get(address)
        if status is None:
            rows.append((address, "", missing[address], "", ""))
        else:
            names = ", ".join(sorted(status.marks))
            rows.append((address, status.site, _clock_text(status), names, ", ".join(status.attended)))
    bad = [address for address in each if address not in found or not found[address].is_good]
    problem = f"{', '.join(bad)} cannot record now: start it, or set its clock (NTP) and look again"
    return Report(
        [_json(address, found.get(address), missing.get(address, "")) for address in each],
        lambda: print_table(("address", "site", "clock", "origins", "producers"), rows),
        NEGATIVE if bad else 0,
        problem if bad else "",
    )


async def _ask_all(
    addresses: tuple[str, ...], application: str, handle: str, token: bytes
) -> tuple[dict[str, EntryStatus], dict[str, str]]:
    found: dict[str, EntryStatus] = {}
    missing: dict[str, str] = {}

    async def ask(address: str) -> None:
        missing[address] = "no answer"
        with trio.move_on_after(limits.entry_silence_s):
            try:
                async with EntryLink.opened(address, application, handle, token) as link:
                    found[address] = await link.ask()
                del missing[address]
            except DosError as error:
                missing[address] = str(error.args[0])

    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(ask, address)
    return found, missing


def _json(address: str, status: EntryStatus | None, error: str) -> dict[str, Any]:
    if status is None:
        return {"address": address, "error": error}
    return {
        "address": address,
        "site": status.site,
        "clockGood": status.is_good,
        "clockErrors": {
            peer: {"offsetUs": offset, "boundUs": bound} for peer, (offset, bound) in status.errors.items()
        },
        "origins": status.marks,
        "attended": list(status.attended),
    }
