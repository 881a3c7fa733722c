"""The decorator of all commands: how errors end one, what is printed where, and which options are added."""

from typing import Annotated

import pytest
import typer

from dos_client.cli.kit import Call, Ends, Report, command
from dos_protocol.errors import NotFoundError
from tests.support.commands import run_command

ERRORS = {
    "none": None,
    "dos": NotFoundError("no such thing"),
    "value": ValueError("not a number"),
    "bug": KeyError("forgotten"),
}
app = typer.Typer()
Which = Annotated[str, typer.Argument()]


def result_of(which: str) -> Report:
    if (error := ERRORS[which]) is not None:
        raise error
    return Report({"found": 1}, "one", 3, "two more are missing")


@command(app, "waits", ends=Ends(refused=(ValueError,)))
async def waits(call: Call, which: Which) -> Report:
    assert call.token == b""
    return result_of(which)


@command(app, "never-waits", token=False, ends=Ends(negative=(ValueError,), refused=(ValueError,)))
def never_waits(which: Which) -> Report:
    """Read something, in one
    paragraph.

        dos never-waits   none
    """
    return result_of(which)


@pytest.mark.parametrize("name", ["waits", "never-waits"])
@pytest.mark.parametrize(("options", "shown"), [((), "one\n"), (("--json",), '{"found": 1}\n')])
def test_a_result_is_printed_and_then_its_problem(name: str, options: tuple[str, ...], shown: str) -> None:
    done = run_command(app, name, "none", *options)
    assert (done.returncode, done.stdout, done.stderr) == (3, shown, "dos: two more are missing\n")


@pytest.mark.parametrize(
    ("name", "which", "code", "text"),
    [
        ("waits", "dos", 1, "no such thing"),
        ("waits", "value", 2, "not a number"),
        ("never-waits", "dos", 1, "no such thing"),
        ("never-waits", "value", 1, "not a number"),
    ],
)
def test_an_error_ends_a_command_with_its_text_and_code(name: str, which: str, code: int, text: str) -> None:
    done = run_command(app, name, which)
    assert (done.returncode, done.stdout, done.stderr.startswith(f"dos: {text}")) == (code, "", True)


@pytest.mark.parametrize("name", ["waits", "never-waits"])
def test_a_bug_is_not_taken_for_an_error_of_the_user(name: str) -> None:
    with pytest.raises(AssertionError, match="forgotten"):
        run_command(app, name, "bug")


def test_help_is_the_docstring_with_its_code_and_has_the_options_that_were_asked_for() -> None:
    shown = run_command(app, "never-waits", "--help").stdout
    assert "Read something, in one paragraph." in shown
    assert "dos never-waits   none" in shown
    assert ("--json" in shown, "--token-file" in shown) == (True, False)
