"""Every command, with standard streams that are closed, full or not read, and with URLs that are none."""

import json
import subprocess
import sys
from typing import Any

import pytest

from dos_cli.main import COMMANDS

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.dos_cli.every_command"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("trouble", "code", "words"),
    [
        ("full", 2, "dos: cannot write standard output: No space left on device\n"),
        ("closed", 2, "dos: standard output is closed\n"),
        ("pipe", 0, ""),
    ],
)
def test_every_command_says_in_one_line_that_its_output_cannot_be_written(
    trouble: str, code: int, words: str, runs: list[dict[str, Any]]
) -> None:
    found = [one for one in runs if one["trouble"] == trouble]
    assert len(found) >= len(COMMANDS)
    for one in found:
        assert (one["code"], one["stderr"]) == (code, words), one


def test_every_command_refuses_a_url_that_is_none_without_a_traceback(runs: list[dict[str, Any]]) -> None:
    found = [one for one in runs if one["trouble"] == "none"]
    assert len(found) > 3 * 20
    for one in found:
        assert one["code"] == 2, one
        assert one["stderr"], one
        assert "Traceback" not in one["stderr"], one


def test_a_file_name_that_is_no_text_is_printed_escaped() -> None:
    program = """
from dos_cli import standard_streams
standard_streams.prepare()
print("d/notes/bad\\udcff")  # as os.listdir gives a name that is not UTF-8
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"d/notes/bad\\udcff\n"
