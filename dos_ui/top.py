"""`dos top`: a store or a region in the terminal, read again and again.

The screen shows the same readings as the web page (`readings.py`). What it shows is computed in
`screen.py`; this file reads, draws, and takes the keys.
"""

import os
import sys
import termios
import tty
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

import trio
import typer
from rich.console import Console
from rich.live import Live

from dos_client.cli.kit import (
    REFUSED,
    UNREACHABLE,
    WIDTH_WITHOUT_TERMINAL,
    StoreUrl,
    TokenFile,
    fail,
    parsed_url,
    print_json,
    read_token,
    run,
)
from dos_client.tasks import background_tasks
from dos_protocol.errors import DosError
from dos_ui.readings import ASKED_S, LISTS_WAIT_S, REGION_S, Readings, open_readings
from dos_ui.screen import Screen, TopView

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


def top(
    url: StoreUrl,
    region: Annotated[
        str, typer.Argument(metavar="[REGION]", help="Begin with this region; otherwise with the store.")
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Print one reading and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print the reading as JSON.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.5, max=3600.0, metavar="SECONDS", help="Seconds between two readings.")
    ] = REGION_S,
    token_file: TokenFile = None,
) -> None:
    """Show a store in the terminal, live: its members, regions and inputs; or one region: its workers, rates,
    and what a checkpoint waits for.

    Keys: up and down choose a region, Enter opens it, Escape goes back, s sorts operators or workers by load,
    the space bar holds the screen, q quits.

    Example: dos top dos://h1,h2,h3

    Example: dos top dos://h1,h2,h3 wordcount --once --json

    Exit codes: 0, also after q; 2 usage; 3 the store cannot be reached, or with --once is not usable.
    """
    servers, token = parsed_url(url).servers, read_token(token_file)
    if as_json and not once:
        fail("--json goes with --once", REFUSED)
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        fail("this is no terminal: pass --once, or --once --json", REFUSED)

    async def show() -> None:
        async with open_readings(servers, token=token) as readings:
            view = TopView(region)
            if once:
                await _print_once(readings, view, interval, as_json=as_json)
            else:
                await _show(readings, view, interval)

    run(show)


async def _print_once(readings: Readings, view: TopView, interval: float, *, as_json: bool) -> None:
    found = await _read(readings, view, wait_s=ASKED_S)
    if view.region:  # rates need two readings
        await trio.sleep(interval)
        found = await _read(readings, view)
    if as_json:
        print_json(found)
    else:
        width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
        Console(width=width).print(Screen(view, found, None))
    if not view.region and found["store"]["writers_wait"]:
        raise typer.Exit(UNREACHABLE)


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
    """Draw until a key ends it. What cannot be read is shown above the last reading."""
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
    """The names of the keys that are pressed, with the terminal in the mode for that."""
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
