"""The rules of the proxy: network faults as values. Part of `proxy`.

A rule names the bytes and clients that it concerns; nothing here moves a byte.
"""

from collections.abc import Callable
from enum import Enum, Flag, IntEnum, auto
from types import TracebackType
from typing import Self

import trio


class Way(Flag):
    """Which bytes a rule concerns."""

    TO_SERVER = auto()
    TO_CLIENT = auto()
    BOTH = TO_SERVER | TO_CLIENT


class Ending(Enum):
    """How a connection is cut."""

    FIN = auto()
    RST = auto()


class Passage(IntEnum):
    """What happens to bytes, the strictest last."""

    PASS = 0
    HOLD = 1
    STALL = 2
    LOSE = 3


class Rule:
    """One fault. `done`: for `cut_after` and `drop_reply`, that it has happened."""

    def __init__(
        self,
        over: Callable[["Rule"], None],
        way: Way,
        client: str,
        *,
        passage: Passage = Passage.PASS,
        bytes_per_s: float = 0.0,
        delay_s: float = 0.0,
    ) -> None:
        self.way = way
        self.client = client
        self.passage = passage
        self.bytes_per_s = bytes_per_s
        self.delay_s = delay_s
        self.done = trio.Event()
        self._over = over

    def concerns(self, way: Way, client: str) -> bool:
        return bool(self.way & way) and self.client in ("", client)

    def end(self) -> None:
        """The fault is over. Twice is once."""
        self._over(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class CutAfter(Rule):
    """`left` bytes may still pass."""

    left = 0
    ending = Ending.RST


class DropReply(Rule):
    """`left` requests still come before the one whose answer is dropped."""

    opcode = 0
    left = 1
    then_cut = True


class Refuse(Rule):
    """New connections are closed."""
