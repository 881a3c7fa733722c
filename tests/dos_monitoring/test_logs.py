"""Lines of JSON: what they have, and from whom."""

import json
import logging
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
