"""What commands of `dos` show on a terminal that is their standard error."""

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def shown_on_terminal(words: Sequence[Any], wanted: str, within_s: float = 60.0) -> tuple[str, str]:
    """Run `dos` with these words until its terminal shows text that matches `wanted`, or it ends, or for
    `within_s` seconds; then end it. Return what the terminal showed, without control characters, and the
    standard output.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dos_cli", *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env=os.environ | {"COLUMNS": "300", "TERM": "xterm"},
    )
    os.close(theirs)
    shown, deadline = "", time.monotonic() + within_s
    with contextlib.closing(os.fdopen(ours, "rb", buffering=0)) as terminal:
        while not re.search(wanted, shown) and time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    shown += _CONTROL.sub("", terminal.read(65_536).decode("utf-8", "replace"))
                except OSError:  # Linux reports the end of the other side so
                    break
        process.terminate()
        output, _ = process.communicate(timeout=60)
    return shown, output
