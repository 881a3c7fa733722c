"""The command line of `./run chaos`."""

import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from tests.region_chaos.campaign import Campaign, Options
from tests.region_chaos.plan import DEFAULT, Kind

RUNS_DEFAULT = 5


def main(
    minutes: Annotated[float | None, typer.Option(min=0.1, help="Begin no run after so many.")] = None,
    runs: Annotated[
        int | None, typer.Option(min=1, help="So many runs at most; 5 when --minutes is not given.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="What is killed, and when, is drawn from it.")] = 1,
    faults: Annotated[
        str, typer.Option(help=f"What happens, of {', '.join(kind.value for kind in Kind)}.")
    ] = ",".join(kind.value for kind in DEFAULT),
    recovery: Annotated[
        str, typer.Option(help="global or local: what follows the loss of a worker.")
    ] = "global",
    standby: Annotated[int, typer.Option(min=0, help="Spark tasks that wait to become a worker.")] = 0,
    keep: Annotated[Path | None, typer.Option(help="Keep everything in this new directory.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One object of JSON at the end.")] = False,
) -> None:
    """Run a region on Spark and three servers again and again, kill its workers, its servers and its driver
    at random, and compare each output with that of a run without faults.

    Exit codes: 0 the same output each time; 1 another output, or a region that did not finish (the command
    that repeats the run is printed); 2 usage; 130 interrupted.

    Examples: ./run chaos --minutes 10; ./run chaos --runs 1 --seed 17; ./run chaos --faults worker,hang,link
    """
    try:
        chosen = tuple(Kind(name) for name in faults.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{error}; there are {', '.join(Kind)}", param_hint="--faults") from error
    if recovery not in ("global", "local"):
        raise typer.BadParameter(f"it is global or local, not {recovery}", param_hint="--recovery")
    if keep is not None and keep.exists():
        raise typer.BadParameter(f"{keep} is there already: name a new directory", param_hint="--keep")
    if runs is None and minutes is None:
        runs = RUNS_DEFAULT
    options = Options(
        seed=seed,
        runs=runs,
        minutes=minutes,
        faults=chosen,
        keep=keep,
        recovery="local" if recovery == "local" else "global",
        standby=standby,
    )
    campaign = Campaign(options, lambda text: print(text, file=sys.stderr, flush=True))
    signal.signal(signal.SIGTERM, interrupt)
    try:
        same = campaign.go()
    except KeyboardInterrupt:
        print("interrupted; everything that was started has been ended", file=sys.stderr)
        sys.exit(130)
    finally:
        if as_json:
            print(json.dumps(campaign.summary()), flush=True)
    done = campaign.summary()
    counted = ", ".join(f"{number} {kind}" for kind, number in sorted(done["faults"].items()))
    print(
        f"{done['identical']} of {done['runs']} runs gave the same output; faults: {counted}; "
        f"{done['resets']} resets, {done['taken_over']} of them take-overs of one worker,"
        f" longest pause {done['longest_pause_s']} s",
        file=sys.stderr,
    )
    sys.exit(0 if same else 1)


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM as Ctrl-C: clean up, then end."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    typer.run(main)
