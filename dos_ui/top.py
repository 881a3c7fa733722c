"""`dos top`: a store or a region in the terminal, read again and again. It shows the readings of the web
page.
"""

import os
import sys
import termios
import tty
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any, Final

import trio
import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from checkpoint.cli.region import event_time_text, query_text
from checkpoint.runtime import wall_time_ms
from dos_client.cli.kit import (
    REFUSED,
    UNREACHABLE,
    WIDTH_WITHOUT_TERMINAL,
    Call,
    Report,
    StoreUrl,
    ago_text,
    command,
    count_text,
    fail,
    parsed_url,
)
from dos_client.tasks import background_tasks
from dos_protocol.errors import DosError
from dos_protocol.names import printable_lines
from dos_ui.core.shown import workers_named
from dos_ui.readings import ASKED_S, LISTS_WAIT_S, REGION_S, Readings, open_readings

_WIDE: Final = 120
"""Columns of a terminal for all that is known of each region."""
_WRAPPED_MIN: Final = 16
_STYLES: Final = {"good": "bold green", "warn": "bold yellow", "bad": "bold red", "": "bold"}
Reading = Mapping[str, Any]


class TopView:
    """What the user looks at. `press` changes it. region: "" for the store."""

    def __init__(self, region: str) -> None:
        self.region = region
        self.held = False
        self.sorted = False
        self._chosen = 0
        self._regions: list[str] = []

    def regions_are(self, names: Iterable[str]) -> int:
        """Take the names of the regions that are listed; return which one is chosen."""
        self._regions = list(names)
        self._chosen = max(0, min(self._chosen, len(self._regions) - 1))
        return self._chosen

    def press(self, key: str) -> None:
        """Do what a key means."""
        match key:
            case "up" | "down":
                self._chosen += 1 if key == "down" else -1
                self.regions_are(self._regions)
            case "open" if not self.region and self._regions:
                self.region = self._regions[self._chosen]
            case "back":
                self.region = ""
            case "hold":
                self.held = not self.held
            case "sort":
                self.sorted = not self.sorted
        if key in ("open", "back"):
            self.held = False


class Screen:
    """A reading, drawn. problem: why there is no newer one, None if there is none.

    Its texts come from programs and people elsewhere: what a terminal would obey is escaped here, in all.
    """

    def __init__(self, view: TopView, reading: Reading, problem: str | None) -> None:
        self._view = view
        self._reading: Reading = _printable(reading)
        self._problem: str | None = _printable(problem)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._problem is not None:
            yield Text(f"cannot be read now: {self._problem}", "bold red")
        if not self._reading:
            yield Text("reading…", "dim") if self._problem is None else ""
        elif self._view.region:
            yield from _region(self._view, self._reading)
        else:
            yield from _store(self._view, self._reading, options.max_width)
        if options.is_terminal and console.is_alt_screen:
            held = "  (held)" if self._view.held else ""
            keys = "escape back  s sort" if self._view.region else "up/down choose  enter open"
            yield Text(f"{keys}  space hold  q quit{held}", "dim")


def _store(view: TopView, reading: Reading, width: int) -> RenderResult:
    state, now = reading["store"], wall_time_ms()
    if state["store"] is None:
        yield Text(state["verdict"], "bold red")
    else:
        usable = (state["verdict"], "bold red" if state["writers_wait"] else "green")
        size = "" if state["bytes"] is None else f", {count_text(state['bytes'])}"
        yield Text.assemble((reading["url"], "bold"), ": ", usable, size)
        rows = [_member(one) for one in state["store"]["members"]]
        yield _table(("member", "condition", ">objects", ">bytes", ">behind", ">damaged"), rows)
    yield from (Text(line, "yellow") for line in state["problems"])
    if (stale := reading["stale"]) is not None:
        yield Text(
            f"regions and inputs are as of {ago_text(stale['timeMs'], now)}: {stale['problem']}", "yellow"
        )
    if reading["problem"] and reading["problem"] not in state["problems"]:
        yield Text(f"regions and inputs cannot be read: {reading['problem']}", "yellow")
    regions = reading["regions"]
    chosen = view.regions_are(one["region"] for one in regions)
    columns = ("region", "state", ">checkpoint", "committed", "note+", ">step", ">workers", "savepoints")
    shown = len(columns) if width >= _WIDE else columns.index("note+") + 1
    rows = [_region_row(one, now)[:shown] for one in regions]
    table = _table(columns[:shown], rows, chosen=chosen)
    if regions or not reading["problem"]:
        yield table if regions else Text("no region", "dim")
    if reading["inputs"]:
        inputs = [
            (one["input"], len(one.get("producers", ())), ", ".join(one.get("regions", ())), one["problem"])
            for one in reading["inputs"]
        ]
        yield _table(("input", ">producers", "read by", "note"), inputs)


def _member(one: Reading) -> tuple[Any, ...]:
    condition = "available" if one["present"] else one["condition"].replace("_", " ")
    style = "green" if one["present"] and not one["refuses_appends"] else "bold red"
    return (
        one["address"],
        Text(f"{condition} {one['detail']}".strip(), style),
        one["objects"],
        _count(one["bytes"]),
        _count(one["lag_bytes"]),
        None if one["damaged"] is None else len(one["damaged"]),
    )


def _region_row(one: Reading, now_ms: int) -> tuple[Any, ...]:
    committed = ago_text(one["timeMs"], now_ms) if "timeMs" in one else ""
    shown = one["shown"]
    state = Text("asking…", "dim") if shown is None else _state(shown, now_ms)
    note = one["problem"] or ("" if shown is None else last_line(shown["text"]))
    names = ", ".join(one.get("savepoints", ()))
    first = one["region"], state, one.get("checkpoint"), committed, note
    return *first, one.get("step"), one.get("workers"), names


def _region(view: TopView, reading: Reading) -> RenderResult:
    status, rates, last = reading["status"], reading["rates"], reading["manifest"]["lastCheckpoint"]
    shown, now = reading["shown"], wall_time_ms()
    yield Text.assemble((reading["name"], "bold"), ": ", _state(shown, now))
    stale = "" if reading["stale"] is None else reading["stale"]["problem"]
    reason = "" if status is None else status["reason"]
    for line in (stale, reading["problem"], reason, reading["manifest"]["unproved"]):
        if line:
            yield Text(line, "yellow")
    when = f"{last['checkpoint']}, {ago_text(last['timeMs'], now)}" if last else "none yet"
    size = f", state {count_text(last['stateBytes'])}" if last else ""
    yield Text(f"checkpoint {when}{size}; rows in {_rate(rates['rowsIn'])}, out {_rate(rates['rowsOut'])}")
    pressure = reading["pressure"]
    if pressure["text"]:
        style = "yellow" if pressure["kind"] != "none" else "dim"
        yield Text(f"back-pressure: {pressure['kind']}: {pressure['text']}", style)
    if status is None and reading["ended"]:
        status = reading["lastReport"]["status"]  # its workers have their last errors
    if status is None:
        return
    if query := status.get("query"):
        yield Text(query_text(query), "dim")
    if under_way := status["underWay"]:
        yield from _under_way(under_way)
    yield from (Text(event_time_text(one), "dim") for one in status["eventTimes"])
    slow = reading["slow"]
    yield from _operators(view, reading["graph"], rates["operators"], slow["operators"])
    workers = [(one, rates["workers"].get(str(one["worker"]), {})) for one in status["workers"]]
    if view.sorted:
        workers.sort(key=lambda pair: -(pair[1].get("busySeconds") or 0.0))
    columns = ("host", ">pid", ">step", ">rows in", ">rows out", ">busy", ">not synced", ">not read")
    yield _table((">worker", "state", *columns, "last error+"), [_worker(*pair, slow) for pair in workers])
    for reset in status["resets"][-3:]:
        reason = last_line(reset["reason"])
        yield Text(f"reset to checkpoint {reset['checkpoint']} in {reset['seconds']:.1f} s: {reason}", "dim")


def _under_way(under_way: Reading) -> RenderResult:
    waits = under_way["waitsFor"]
    style = "yellow" if under_way["seconds"] > 1 else "dim"
    what = "waits for the votes of:" if waits else "is being committed"
    yield Text(f"checkpoint {under_way['checkpoint']}, for {under_way['seconds']:.1f} s: {what}", style)
    yield from (Text(f"  worker {one['worker']}: {one['why']}", style) for one in waits)


def _operators(view: TopView, graph: Iterable[Reading], rates: Reading, slow: Reading) -> RenderResult:
    rows = [(one, rates.get(one["name"], {})) for one in graph]
    if view.sorted:
        rows.sort(key=lambda pair: -(pair[1].get("rowsIn") or 0.0))
    if rows:
        yield _table(
            ("operator", "kind", "reads", ">rows in", ">rows out", ">busy", "held up in"),
            [
                (
                    Text(one["name"], "bold yellow" if one["name"] in slow else ""),
                    one["kind"],
                    ", ".join(one["inputs"]),
                    _rate(rate.get("rowsIn")),
                    _rate(rate.get("rowsOut")),
                    _busy(rate.get("busySeconds")),
                    Text(workers_named(slow.get(one["name"], ())), "bold yellow"),
                )
                for one, rate in rows
            ],
        )


def _worker(one: Reading, rates: Reading, slow: Reading) -> tuple[Any, ...]:
    late = one["worker"] in slow["workers"]
    held_up = late or one["worker"] in slow["operators"].get(one["operator"], ())
    runs = f", in {one['operator']} for {one['operatorSeconds']:.0f} s" if held_up and one["operator"] else ""
    return (
        Text(str(one["worker"]), "bold yellow" if late else ""),
        Text(f"{one['state']}{runs}", "green" if one["state"] == "RUNNING" and not held_up else "yellow"),
        one["host"],
        one["pid"],
        one["step"],
        _rate(rates.get("rowsIn")),
        _rate(rates.get("rowsOut")),
        _busy(rates.get("busySeconds")),
        count_text(one["lagBytes"]),
        "?" if one["backlogBytes"] is None else count_text(one["backlogBytes"]),
        last_line(one["error"]),
    )


def _busy(share: float | None) -> str:
    return "?" if share is None else f"{min(share, 1.0):.0%}"


def _state(shown: Reading, now_ms: int) -> Text:
    since = f", {shown['since']} {ago_text(shown['sinceMs'], now_ms)}" if shown["since"] else ""
    return Text(f"{shown['name']}{since}", _STYLES[shown["kind"]])


def last_line(text: str) -> str:
    """Return the last line of a text, such as a traceback."""
    return text.strip().rpartition("\n")[2]


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable_lines(value)
    if isinstance(value, Mapping):
        return {key: _printable(one) for key, one in value.items()}
    return [_printable(one) for one in value] if isinstance(value, list) else value


def _count(value: int | None) -> str:
    return "" if value is None else count_text(value)


def _rate(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}/s"


def _table(columns: Iterable[str], rows: Iterable[tuple[Any, ...]], *, chosen: int = -1) -> Table:
    """Return a table. >: aligned to the right; +: wrapped before other columns are cut."""
    table = Table(box=None, pad_edge=False, header_style="bold dim", expand=False)
    for name in columns:
        right, wraps = name.startswith(">"), name.endswith("+")
        table.add_column(
            name.strip(">+"),
            justify="right" if right else "left",
            no_wrap=not wraps,
            overflow="fold" if wraps else "ellipsis",
            min_width=_WRAPPED_MIN if wraps else None,
        )
    for index, row in enumerate(rows):
        cells = [cell if isinstance(cell, Text) else Text("" if cell is None else str(cell)) for cell in row]
        table.add_row(*cells, style="reverse" if index == chosen else "")
    return table


_KEYS = {
    "q": "quit",
    "\x03": "quit",
    "\x1b[A": "up",
    "k": "up",
    "\x1b[B": "down",
    "j": "down",
    "\r": "open",
    "\n": "open",
    "\x1b": "back",
    "\x7f": "back",
    "h": "back",
    " ": "hold",
    "s": "sort",
}


app = typer.Typer(pretty_exceptions_enable=False)


@command(app, "top", progress=False)
async def top(
    call: Call,
    url: StoreUrl,
    region: Annotated[
        str, typer.Argument(metavar="[REGION]", help="Begin with this region; otherwise with the store.")
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Print one reading and end.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.5, max=3600.0, metavar="SECONDS", help="Seconds between two readings.")
    ] = REGION_S,
) -> Report | None:
    """Show a store in the terminal, live: its members, regions and inputs; or one region: its workers, rates,
    and what a checkpoint waits for.

    Keys: up and down choose a region, Enter opens it, Escape goes back, s sorts operators or workers by load,
    the space bar holds the screen, q quits.

    Example: dos top dos://h1,h2,h3

    Example: dos top dos://h1,h2,h3 wordcount --once --json

    Exit codes: 0, also after q; 2 usage; 3 the store cannot be reached, or with --once is not usable.
    """
    servers = parsed_url(url).servers
    if call.as_json and not once:
        fail("--json goes with --once", REFUSED)
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        fail("this is no terminal: pass --once, or --once --json", REFUSED)

    async with open_readings(servers, token=call.token) as readings:
        view = TopView(region)
        if once:
            return await _read_once(readings, view, interval)
        await _show(readings, view, interval)
    return None


async def _read_once(readings: Readings, view: TopView, interval: float) -> Report:
    found = await _read(readings, view, wait_s=ASKED_S)
    if view.region:  # rates need two readings
        await trio.sleep(interval)
        found = await _read(readings, view)
    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    unusable = not view.region and found["store"]["writers_wait"]
    return Report(
        found,
        lambda: Console(width=width).print(Screen(view, found, None)),
        UNREACHABLE if unusable else 0,
    )


async def _read(readings: Readings, view: TopView, wait_s: float = LISTS_WAIT_S) -> dict[str, Any]:
    """Return the reading that the view shows; see `Readings.lists` for `wait_s`. Raises DosError."""
    if view.region:
        return await readings.region(view.region)
    found: dict[str, Any] = {"url": readings.url, "store": await readings.store(), "problem": ""}
    try:
        return found | await readings.lists(wait_s)
    except DosError as error:  # too few members are available, as the status of the store shows
        return found | {"regions": [], "inputs": [], "stale": None, "problem": str(error)}


async def _show(readings: Readings, view: TopView, interval: float) -> None:
    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        async with background_tasks() as nursery, _keys() as keys:
            changed = trio.Event()

            async def draw() -> None:
                nonlocal changed
                found, problem, shown = dict[str, Any](), "", ""
                while True:
                    if shown != view.region:
                        found, shown = {}, view.region
                    if not view.held:
                        try:
                            found, problem = await _read(readings, view), ""
                        except DosError as error:
                            problem = str(error)
                    if shown == view.region:
                        live.update(Screen(view, found, problem or None), refresh=True)
                    changed = trio.Event()
                    with trio.move_on_after(interval):
                        await changed.wait()

            nursery.start_soon(draw)
            async for key in keys:
                if key == "quit":
                    return
                view.press(key)
                changed.set()


@asynccontextmanager
async def _keys() -> AsyncGenerator[AsyncGenerator[str]]:
    with _unbuffered(sys.stdin.fileno()):
        keys = _pressed(sys.stdin.fileno())
        try:
            yield keys
        finally:
            await keys.aclose()


async def _pressed(fd: int) -> AsyncGenerator[str]:
    while True:
        await trio.lowlevel.wait_readable(fd)
        text = os.read(fd, 16).decode("utf-8", "replace")
        if not text:
            return
        name = _KEYS.get(text)
        if name is not None:
            yield name


@contextmanager
def _unbuffered(fd: int) -> Iterator[None]:
    """Pass each key at once and do not show it; restore the terminal at the end."""
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
