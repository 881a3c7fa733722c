"""Commands run in this process: a process of its own for each would take most of the time of a test."""

import subprocess

import typer
from typer.testing import CliRunner


def run_command(app: typer.Typer, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command of `app`. An exception that is not an exit is a failure of the test."""
    done = CliRunner().invoke(app, list(map(str, arguments)), env={"NO_COLOR": "1"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)
