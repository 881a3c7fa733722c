"""Shared code of the programs of `./run bench dataflow`: arguments, input, and one line of JSON.

It uses only the standard library, because programs of other environments import it.
"""

import argparse
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

FILE_ROWS = 100_000
"""Lines in each file of the input (`dataflow_input.py`)."""
CAP_S = 60.0
Measure: TypeAlias = Callable[[argparse.Namespace, Path], dict[str, Any]]
"""(options, a folder of its own) -> figures"""


def run(measure: Measure, doc: str | None, ways: Sequence[str] = ()) -> None:
    """Parse the command line, measure in a folder that goes away, print the figures, and end at once: what
    still runs below this process (a JVM) is not waited for.
    """
    options = _options(doc, ways)
    folder = Path(tempfile.mkdtemp(prefix="dos-yardstick-", dir=options.folder.parent))
    try:
        print(json.dumps(measure(options, folder)), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _options(doc: str | None, ways: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    if ways:
        parser.add_argument("way", choices=ways)
    parser.add_argument("folder", type=Path, help="of dataflow_input.make_input")
    parser.add_argument("keys", type=int)
    parser.add_argument("rows", type=int, help="how many of the input's")
    parser.add_argument("--workers", type=int, default=2, help="where the system has them (2)")
    parser.add_argument("--cap", type=float, default=CAP_S, metavar="SECONDS", help=f"({CAP_S:.0f})")
    return parser.parse_args()


def input_files(options: argparse.Namespace) -> list[Path]:
    """As many whole files as hold the rows that are asked for."""
    return sorted(options.folder.glob("*.csv"))[: -(-options.rows // FILE_ROWS)]


def linked(paths: Sequence[Path], folder: Path) -> Path:
    """A new folder below `folder` with these files and no others, for systems that read whole folders."""
    source = folder / "input"
    source.mkdir()
    for path in paths:
        os.link(path, source / path.name)
    return source


def free_port() -> int:
    """A port on which no process listens at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
