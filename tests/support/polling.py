"""Wait for what only polling can show: a state that another process, a server or Spark reaches."""

import time
from collections.abc import Callable

POLL_S = 0.05


def until(reached: Callable[[], bool], what: str, within_s: float) -> None:
    """Return once it is reached. Raises AssertionError after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not reached():
        assert time.monotonic() < deadline, f"waited {within_s:g} s until {what}"
        time.sleep(POLL_S)
