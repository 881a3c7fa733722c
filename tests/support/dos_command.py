"""The `dos` command, run in this process."""

from functools import partial
from typing import Final

from dos_cli.main import app
from tests.support.commands import run_command

dos: Final = partial(run_command, app)
