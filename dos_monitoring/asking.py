"""Questions to an event loop from a thread: a loop that moves answers.

An answer costs the loop one callback, and nothing while nobody asks.
"""

import threading
from collections.abc import Callable
from typing import Final, TypeVar

import trio

Answer = TypeVar("Answer")
ANSWER_S: Final = 5.0
"""How long a loop may take to answer before it counts as one that hangs."""


class SilentLoopError(Exception):
    """The event loop did not answer in time, or has ended. The text says which."""


def answer_of_loop(
    token: trio.lowlevel.TrioToken, question: Callable[[], Answer], timeout_s: float = ANSWER_S
) -> Answer:
    """Call `question` in the loop and return its result. Raises SilentLoopError, and what `question` raises.

    `question` must not block. After a time-out it may still be called.
    """
    answered = threading.Event()
    answers: list[Answer] = []
    errors: list[Exception] = []

    def ask() -> None:
        try:
            answers.append(question())
        except Exception as error:
            errors.append(error)
        answered.set()

    try:
        token.run_sync_soon(ask)
    except trio.RunFinishedError:
        raise SilentLoopError("its event loop has ended") from None
    if not answered.wait(timeout_s):
        raise SilentLoopError(f"its event loop has not answered for {timeout_s:.0f} s")
    if errors:
        raise errors[0]
    return answers[0]


def silence_of(token: trio.lowlevel.TrioToken) -> str:
    """Return why an event loop does not move; "" if it does."""
    try:
        answer_of_loop(token, lambda: None)
    except SilentLoopError as silence:
        return str(silence)
    return ""
