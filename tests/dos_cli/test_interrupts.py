"""An interrupt ends the command wherever it comes: exit code 130, and no traceback."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "where",
    [
        "sys.modules['typer'] = Interrupting()",
        "import dos_cli.main; dos_cli.main.app = interrupt",
        "import dos_cli.main; dos_cli.main.app = in_a_nursery",
    ],
    ids=["while it imports", "in a command", "in a nursery"],
)
def test_an_interrupt_is_an_end_like_any_other(where: str) -> None:
    program = f"""
import sys

class Interrupting:
    def __getattr__(self, name):
        raise KeyboardInterrupt

def interrupt(**_):
    raise KeyboardInterrupt

def in_a_nursery(**_):
    raise BaseExceptionGroup("a nursery's", [BaseExceptionGroup("another's", [KeyboardInterrupt()])])

{where}
from dos_cli.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_what_failed_beside_an_interrupt_is_not_hidden() -> None:
    program = """
import dos_cli.main
def app(**_):
    raise BaseExceptionGroup("both", [KeyboardInterrupt(), ValueError("a bug")])
dos_cli.main.app = app
from dos_cli.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "a bug" in done.stderr
