"""The command line of `./run attack`."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from tests.attack.table import ATTACKS
from tests.attack.trial import Limits, Result, attempt

_HEAD = (
    "attack                   ping p50/p99/max       append p50/p99/max       new p50/p99/max      MB  after"
)


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="Attacks, by name; all when none is named.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1.0, max=120.0, help="How long each attack lasts.")] = 6.0,
    scale: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Of the connections and objects; 1: as documented.")
    ] = 1.0,
    p99_ms: Annotated[
        float, typer.Option("--p99-ms", min=1.0, help="What the attack may add to the honest client's p99.")
    ] = 50.0,
    resident_mb: Annotated[
        float, typer.Option("--resident-mb", min=1.0, help="What the server may hold.")
    ] = 150.0,
    as_json: Annotated[bool, typer.Option("--json", help="One object of JSON a line.")] = False,
    just_list: Annotated[bool, typer.Option("--list", help="Name the attacks and end.")] = False,
) -> None:
    """Attack a real server on loopback, and measure what an honest client still gets: milliseconds of a PING,
    of an append of 1 KiB, 64 KiB or 1 MiB until it is synced, and of a new connection until its first 64
    KiB are synced.

    Each attack has a server and a data directory of its own, lasts for --seconds, and is judged: the p99 of
    each kind of request, the server's peak memory, the seconds until all is as before, tracebacks in its
    log.

    Exit codes: 0 all held; 1 one did not; 2 usage; 130 interrupted.

    Examples: ./run attack --list; ./run attack cwd list-directories; ./run attack --seconds 10 --json;
    ./run attack get-waiting --scale 0.1
    """
    if just_list:
        for name, attack in ATTACKS.items():
            print(f"{name:24} {attack.what}")
        return
    for name in names or ():
        if name not in ATTACKS:
            raise typer.BadParameter(f"there is no attack {name}; --list names them", param_hint="NAMES")
    limits, held = Limits(p99_ms, resident_mb), True
    if not as_json:
        print(_HEAD)
    for name in names or ATTACKS:
        with tempfile.TemporaryDirectory(prefix="dos-attack-") as folder:
            result = attempt(name, Path(folder), seconds=seconds, scale=scale, limits=limits)
        held = held and result.held
        print(json.dumps(result.as_json()) if as_json else _line(result), flush=True)
    sys.exit(0 if held else 1)


def _line(result: Result) -> str:
    parts = [_figures(result.during.get(kind, {})) for kind in ("ping", "append", "new")]
    ends = f"{result.resident_mb:6.0f} {result.recovered_s:5.1f}s"
    verdict = "held" if result.held else "; ".join(["NOT HELD", *result.faults])
    return f"{result.attack:22} {' '.join(parts)} {ends}  {verdict}"


def _figures(figures: dict[str, Any]) -> str:
    if not figures.get("count"):
        return f"{'none':>23}"
    return f"{figures['p50']:>7.1f}/{figures['p99']:>7.1f}/{figures['max']:>7.1f}"


if __name__ == "__main__":
    try:
        typer.run(main)
    except KeyboardInterrupt:
        print("interrupted; everything that was started has been ended", file=sys.stderr)
        sys.exit(130)
