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
"""(options, a separate folder) -> figures"""


def run(measure: Measure, doc: str | None, ways: Sequence[str] = ()) -> None:
    """Parse the command line, measure in a temporary folder, print the figures, and end at once, without
    waiting for processes that still run below this one (a JVM).
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
    parser.add_argument("folder", type=Path, help="folder of dataflow_input.make_input")
    parser.add_argument("keys", type=int)
    parser.add_argument("rows", type=int, help="rows of the input")
    parser.add_argument(
        "--workers", type=int, default=2, help="number of workers, if the system supports it (2)"
    )
    parser.add_argument("--cap", type=float, default=CAP_S, metavar="SECONDS", help=f"({CAP_S:.0f})")
    return parser.parse_args()


def input_files(options: argparse.Namespace) -> list[Path]:
    """Return as many whole files as contain the requested rows."""
    return sorted(options.folder.glob("*.csv"))[: -(-options.rows // FILE_ROWS)]


def linked(paths: Sequence[Path], folder: Path) -> Path:
    """Make a folder below `folder` that contains only these files, for systems that read whole folders."""
    source = folder / "input"
    source.mkdir()
    for path in paths:
        os.link(path, source / path.name)
    return source


def free_port() -> int:
    """Return a port on which no process currently listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
