"""Faults on a real store, and a check that nothing acknowledged is lost.

    ./run python -m tests.chaos --seed 1 --seconds 60 --acknowledged 50000

Three servers as processes behind proxies, writers as processes on a journal chain each. A seeded nemesis
partitions, stalls, slows and cuts the network, drops replies, stops, kills, wipes and replaces servers, and
kills, stops and rivals writers. In the end every chain is read in every way there is. Exit 0 if nothing was
lost, duplicated, reordered or diverged, and everything recovered; 1 if not.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import trio

from tests.chaos.faults import LANES
from tests.chaos.show import Display, command_line, print_report
from tests.chaos.story import Options, Report, Watcher, run


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1, help="determines the faults and their order")
    parser.add_argument("--seconds", type=float, default=20.0, help="faults for at least so long")
    parser.add_argument("--acknowledged", type=int, default=0, help="and until so many records are")
    parser.add_argument(
        "--directories",
        type=int,
        default=4,
        help="chains, each with its writers; the last is a manifest's, not pipelined",
    )
    parser.add_argument("--window", type=int, default=100, help="records that a writer has in flight")
    parser.add_argument("--lanes", default=",".join(LANES), help=f"of {', '.join(LANES)}; default all")
    parser.add_argument("--pace", type=float, default=1.0, help="2: twice as many faults")
    parser.add_argument("--json", action="store_true", help="the report as JSON, and no live line")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep data, logs and acknowledgements here")
    options = parser.parse_args(arguments)
    if unknown := set(options.lanes.split(",")) - set(LANES):
        parser.error(f"no lane named {', '.join(sorted(unknown))}; there are {', '.join(LANES)}")
    return options


def main(arguments: list[str]) -> int:
    given = parse(arguments)
    options = Options(
        seed=given.seed,
        seconds=given.seconds,
        acknowledged=given.acknowledged,
        directories=given.directories,
        window=given.window,
        lanes=tuple(given.lanes.split(",")),
        pace=given.pace,
    )
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="dos-chaos-", dir=given.keep))
    report = run_printed(options, folder, quiet=given.json)
    if given.json:
        print(json.dumps({**report.as_json(), "again": command_line(options)}))
    else:
        print_report(report)
    if report.good and given.keep is None:
        shutil.rmtree(folder)
    else:
        print(f"kept: {folder}", file=sys.stderr)
    return 0 if report.good else 1


def run_printed(options: Options, folder: Path, *, quiet: bool) -> Report:
    if quiet:
        return trio.run(run, options, folder / "run", Watcher())
    with Display() as display:
        return trio.run(run, options, folder / "run", display)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
