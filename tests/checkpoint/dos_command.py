"""The `dos` command, run in this process."""

from typing import NamedTuple

from typer.testing import CliRunner

from dos_cli.main import app


class CommandResult(NamedTuple):
    """What a command printed."""

    returncode: int
    stdout: str
    stderr: str


def dos(*arguments):
    """Run the command in this process, which starts at once."""
    done = CliRunner().invoke(app, list(map(str, arguments)), env={"NO_COLOR": "1"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return CommandResult(done.exit_code, done.stdout, done.stderr)
