"""Lines of JSON: what they have, and from whom."""

import json
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any

import pytest
import trio

from dos_monitoring import adopting_log_fields, log_fields
from dos_monitoring.logs import JsonLines


@pytest.fixture
def logger() -> logging.Logger:
    logger = logging.Logger("dos.test")
    logger.addHandler(handler := logging.StreamHandler(StringIO()))
    handler.setFormatter(JsonLines())
    return logger


def lines(logger: logging.Logger) -> list[dict[str, Any]]:
    (handler,) = logger.handlers
    assert isinstance(handler, logging.StreamHandler)
    return [json.loads(line) for line in handler.stream.getvalue().splitlines()]


def test_a_line_has_what_its_thread_or_task_adds(logger: logging.Logger) -> None:
    numbers = iter(range(100))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task)

    async def task() -> None:
        logger.warning("in a task\nof two lines")

    with log_fields(lambda: {"region": "r", "worker": 3, "incarnation": next(numbers)}):
        logger.warning("here")
        trio.run(main)
        with ThreadPoolExecutor(1, initializer=adopting_log_fields()) as pool:
            pool.submit(logger.warning, "in an operator's thread").result()
        other = threading.Thread(target=logger.warning, args=("elsewhere",))
        other.start()
        other.join()
    logger.warning("after")
    found = lines(logger)
    assert [one.get("incarnation") for one in found] == [0, 1, 2, None, None]
    assert [one["message"] for one in found][1] == "in a task\nof two lines"
    assert all(set(one) >= {"time", "level", "logger", "message"} for one in found)
    assert found[0]["region"] == "r"
    assert "region" not in found[-1]


def test_an_error_has_its_traceback(logger: logging.Logger) -> None:
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("it failed")
    (line,) = lines(logger)
    assert (line["level"], line["message"]) == ("ERROR", "it failed")
    assert line["traceback"].endswith("ValueError: no")


BEGIN = """
import logging
from dos_client.cli.kit import begin_command_log
begin_command_log(as_json={as_json})
logging.getLogger("mine").info("fine")
logging.getLogger("mine").warning("not fine")
"""


@pytest.mark.parametrize(
    ("variable", "as_json", "messages"),
    [
        ("", True, ["not fine"]),
        ("json", False, ["not fine"]),
        ("json:info", False, ["fine", "not fine"]),
        ("text:info", True, ["fine", "not fine"]),
    ],
)
def test_a_command_logs_as_its_option_and_the_variable_say(
    variable: str, as_json: bool, messages: list[str]
) -> None:
    done = begun(variable, as_json=as_json)
    found = [json.loads(line) for line in done.stderr.splitlines()]
    assert [one["message"] for one in found] == messages


def test_a_command_with_a_wrong_variable_ends_with_the_reason() -> None:
    words = (sys.executable, "-m", "dos_cli", "store", "spare", "add", "dos://127.0.0.1:1", "127.0.0.1:2")
    done = subprocess.run(words, env={**os.environ, "DOS_LOG": "xml"}, capture_output=True, text=True)
    assert done.returncode == 2
    assert "DOS_LOG is json or text" in done.stderr


def begun(variable: str, *, as_json: bool) -> "subprocess.CompletedProcess[str]":
    program = BEGIN.format(as_json=as_json)
    variables = {**os.environ, "DOS_LOG": variable}
    return subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True)
