"""The demo's command line. Exit codes: 0 the count is right; 1 it is wrong, or the demo failed; 130
interrupted.
"""

import signal
import sys
import traceback
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

import dos
from examples.demo.demo import Demo, DemoError, Options
from examples.demo.display import Display


class Break(StrEnum):
    """What can be broken on purpose, to see that the verdict notices."""

    no_truncate = "no-truncate"


def main(
    seed: Annotated[int, typer.Option(help="What is killed, and when, is drawn from it.")] = 1,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Workers of the region.")] = 2,
    passes: Annotated[
        int | None,
        typer.Option(min=1, help="How often the input is read; when not given, about a minute's worth."),
    ] = None,
    faults: Annotated[bool, typer.Option("--faults/--no-faults", help="Kill workers and a server.")] = True,
    out: Annotated[Path | None, typer.Option(help="Directory for the output files; must be new.")] = None,
    keep: Annotated[Path | None, typer.Option(help="Keep everything in this new directory.")] = None,
    breaks: Annotated[
        Break | None, typer.Option("--break", help="Break the sink on purpose: the verdict must say WRONG.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write figures as JSON to this file.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines, also in a terminal.")] = False,
) -> None:
    """Count words on three DOS servers and Spark while processes are killed, and compare with the truth.

    Example: ./run demo --seed 7 --keep /tmp/dos-demo
    """
    options = Options(
        seed=seed,
        workers=workers,
        passes=passes,
        faults=faults,
        truncate=breaks is not Break.no_truncate,
        out=out,
        keep=keep,
        report=report,
        plain=plain,
    )
    signal.signal(signal.SIGTERM, interrupt)
    try:
        with Display(plain=plain) as display:
            right = Demo(options, display).run()
    except KeyboardInterrupt:
        print("interrupted; everything that was started has been ended", file=sys.stderr)
        sys.exit(130)
    except (DemoError, dos.DosError) as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(1)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    sys.exit(0 if right else 1)


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM as Ctrl-C: clean up, then end."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    typer.run(main)
