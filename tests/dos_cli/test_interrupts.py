"""An interrupt ends the command wherever it comes: exit code 130, and no traceback."""

import signal
import subprocess
import sys
from contextlib import aclosing

import pytest
import trio

from dos_client.store import connect
from dos_server.testing import threaded_server


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


async def first_bytes(url: str) -> bytes:
    """Of notes/typed, once there are some."""
    with trio.fail_after(60):
        async with connect(url) as store, aclosing(store.follow("notes", "typed")) as stream:
            return await anext(stream)


def test_an_append_from_a_source_that_stays_open_ends_at_an_interrupt_and_what_came_is_appended() -> None:
    with threaded_server() as server:
        url = f"{server.url}/notes/typed"
        with subprocess.Popen(
            [sys.executable, "-m", "dos_cli", "append", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdin is not None
            process.stdin.write(b"a line\n")
            process.stdin.flush()
            assert trio.run(first_bytes, server.url) == b"a line\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 130
            assert process.stderr is not None
            assert b"Traceback" not in process.stderr.read()


def test_a_second_interrupt_ends_a_command_at_once_wherever_it_comes_and_silently() -> None:
    """The first one comes at work, the second one between two instructions of trio: where a KeyboardInterrupt
    would be an internal error of trio."""
    program = """
import signal, sys
import trio
import dos_cli.main
from dos_client.cli import kit

class Second(trio.abc.Instrument):
    is_due = False
    def before_io_wait(self, timeout):
        if Second.is_due:
            signal.raise_signal(signal.SIGINT)

async def work():
    trio.lowlevel.add_instrument(Second())
    print("works", flush=True)
    try:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep_forever()
    finally:
        Second.is_due = True
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()
        print("is never reached")

def app(**_):
    kit.run_interruptible(work)

dos_cli.main.app = app
from dos_cli.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "works\n", "")


def test_a_second_interrupt_after_the_work_has_ended_is_silent_too() -> None:
    program = """
import signal, sys
import trio
import dos_cli.main
from dos_client.cli import kit

async def work():
    signal.raise_signal(signal.SIGINT)
    await trio.sleep_forever()

def app(**_):
    try:
        kit.run_interruptible(work)
    finally:
        signal.raise_signal(signal.SIGINT)
        print("is never reached")

dos_cli.main.app = app
from dos_cli.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
