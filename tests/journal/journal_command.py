"""The `dos journal` command, run in this process."""

from functools import partial
from typing import Final

from journal.cli import app
from tests.support.commands import run_command

journal: Final = partial(run_command, app)
