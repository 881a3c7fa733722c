"""What `dos top` draws: a reading as tables of the terminal."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from checkpoint.runtime import wall_time_ms
from dos_client.cli.kit import ago_text, count_text

_GOOD: Final = ("RUNNING", "FINISHED")
_BAD: Final = ("FAILED", "FENCED")
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
    """A reading, drawn. problem: why there is no newer one, None if there is none."""

    def __init__(self, view: TopView, reading: Reading, problem: str | None) -> None:
        self._view = view
        self._reading = reading
        self._problem = problem

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._problem is not None:
            yield Text(f"cannot be read now: {self._problem}", "bold red")
        if not self._reading:
            yield Text("reading…", "dim") if self._problem is None else ""
        elif self._view.region:
            yield from _region(self._view, self._reading)
        else:
            yield from _store(self._view, self._reading)
        if options.is_terminal and console.is_alt_screen:
            held = "  (held)" if self._view.held else ""
            keys = "escape back  s sort" if self._view.region else "up/down choose  enter open"
            yield Text(f"{keys}  space hold  q quit{held}", "dim")


def _store(view: TopView, reading: Reading) -> RenderResult:
    state, now = reading["store"], wall_time_ms()
    if state["store"] is None:
        yield Text(state["verdict"], "bold red")
    else:
        usable = (state["verdict"], "green" if state["accepts_appends"] else "bold red")
        size = "" if state["bytes"] is None else f", {count_text(state['bytes'])}"
        yield Text.assemble((reading["url"], "bold"), ": ", usable, size)
        rows = [_member(one) for one in state["store"]["members"]]
        yield _table(("member", "condition", ">objects", ">bytes", ">behind", ">damaged"), rows)
    yield from (Text(line, "yellow") for line in state["problems"])
    if reading["problem"] and reading["problem"] not in state["problems"]:
        yield Text(f"regions and inputs cannot be read: {reading['problem']}", "yellow")
    regions = reading["regions"]
    chosen = view.regions_are(one["region"] for one in regions)
    table = _table(
        ("region", ">checkpoint", "committed", ">step", ">workers", "savepoints", "note"),
        [_region_row(one, now) for one in regions],
        chosen=chosen,
    )
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
    note = one["problem"] or ("all input is processed" if one.get("final") else "")
    names = ", ".join(one.get("savepoints", ()))
    return one["region"], one.get("checkpoint"), committed, one.get("step"), one.get("workers"), names, note


def _region(view: TopView, reading: Reading) -> RenderResult:
    status, rates, last = reading["status"], reading["rates"], reading["manifest"]["lastCheckpoint"]
    state = status["state"] if status else "no driver answers"
    style = "bold green" if state in _GOOD else "bold red" if state in _BAD else "bold yellow"
    yield Text.assemble((reading["name"], "bold"), ": ", (state, style))
    for line in (reading["problem"], status["reason"] if status else "", reading["manifest"]["unproved"]):
        if line:
            yield Text(line, "yellow")
    when = f"{last['checkpoint']}, {ago_text(last['timeMs'], wall_time_ms())}" if last else "none yet"
    size = f", state {count_text(last['stateBytes'])}" if last else ""
    yield Text(f"checkpoint {when}{size}; rows in {_rate(rates['rowsIn'])}, out {_rate(rates['rowsOut'])}")
    pressure = reading["pressure"]
    if pressure["text"]:
        style = "yellow" if pressure["kind"] != "none" else "dim"
        yield Text(f"back-pressure: {pressure['kind']}: {pressure['text']}", style)
    if status is None:
        return
    if under_way := status["underWay"]:
        yield from _under_way(under_way)
    yield from _operators(view, reading["graph"], rates["operators"])
    workers = [(one, rates["workers"].get(str(one["worker"]), {})) for one in status["workers"]]
    if view.sorted:
        workers.sort(key=lambda pair: -(pair[1].get("busySeconds") or 0.0))
    columns = ("host", ">pid", ">step", ">rows in", ">rows out", ">busy", ">not synced", ">not read")
    yield _table((">worker", "state", *columns, "last error"), [_worker(*pair) for pair in workers])
    for reset in status["resets"][-3:]:
        reason = reset["reason"].strip().splitlines()[-1] if reset["reason"].strip() else ""
        yield Text(f"reset to checkpoint {reset['checkpoint']} in {reset['seconds']:.1f} s: {reason}", "dim")


def _under_way(under_way: Reading) -> RenderResult:
    waits = under_way["waitsFor"]
    style = "yellow" if under_way["seconds"] > 1 else "dim"
    what = "waits for the votes of:" if waits else "is being committed"
    yield Text(f"checkpoint {under_way['checkpoint']}, for {under_way['seconds']:.1f} s: {what}", style)
    yield from (Text(f"  worker {one['worker']}: {one['why']}", style) for one in waits)


def _operators(view: TopView, graph: Iterable[Reading], rates: Reading) -> RenderResult:
    rows = [(one, rates.get(one["name"], {})) for one in graph]
    if view.sorted:
        rows.sort(key=lambda pair: -(pair[1].get("rowsIn") or 0.0))
    if rows:
        yield _table(
            ("operator", "kind", "reads", ">rows in", ">rows out"),
            [
                (
                    one["name"],
                    one["kind"],
                    ", ".join(one["inputs"]),
                    _rate(rate.get("rowsIn")),
                    _rate(rate.get("rowsOut")),
                )
                for one, rate in rows
            ],
        )


def _worker(one: Reading, rates: Reading) -> tuple[Any, ...]:
    busy = rates.get("busySeconds")
    return (
        one["worker"],
        Text(one["state"], "green" if one["state"] == "RUNNING" else "yellow"),
        one["host"],
        one["pid"],
        one["step"],
        _rate(rates.get("rowsIn")),
        _rate(rates.get("rowsOut")),
        "?" if busy is None else f"{min(busy, 1.0):.0%}",
        count_text(one["lagBytes"]),
        "?" if one["backlogBytes"] is None else count_text(one["backlogBytes"]),
        one["error"].strip().splitlines()[-1] if one["error"].strip() else "",
    )


def _count(value: int | None) -> str:
    return "" if value is None else count_text(value)


def _rate(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}/s"


def _table(columns: Iterable[str], rows: Iterable[tuple[Any, ...]], *, chosen: int = -1) -> Table:
    """Return a table; a column whose name begins with > is aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold dim", expand=False)
    for name in columns:
        table.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left", no_wrap=True)
    for index, row in enumerate(rows):
        cells = [cell if isinstance(cell, Text) else Text("" if cell is None else str(cell)) for cell in row]
        table.add_row(*cells, style="reverse" if index == chosen else "")
    return table
