"""The `dos` commands of a person: the functions of `dos store replace` and `dos store repair`, with all their
tasks, in a process of their own.

This file determines which function a command calls and what it prints. The client's log is included, because
it contains the generations of the store's record.
"""

import io
import logging
from collections.abc import Awaitable, Callable
from contextlib import redirect_stdout
from random import Random

from dos_client import open_store, repair_store, replace_member
from dos_client.cli.store import _print_repairs
from dos_protocol.errors import DosError
from tests.sim.engine.sockets import Client
from tests.stories.store.copies import words_of
from tests.stories.store.play import Play

PERSON = "the person"
_PATIENCE_S = 60.0


class _Log(logging.Handler):
    """What the client writes in its log."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())


def url_of(play: Play) -> str:
    """The store, as the person knows it."""
    return "dos://" + ",".join(member.address for member in play.stores.record.members)


def replace(play: Play, old: str, new: str) -> None:
    """`dos store replace URL OLD NEW`."""

    async def work() -> None:
        url = url_of(play)
        await replace_member(url, old=f"{old}:9999", new=f"{new}:9999")
        async with open_store(url) as store:  # by the old addresses: the servers tell which members count
            record = store.record
        play.stores.record = record
        members = ", ".join(member.address for member in record.members)
        play.tell(f"{new} is in and replaces {old}: generation {record.generation}, {members}")

    _run(play, work)


def repair(play: Play) -> None:
    """`dos store repair URL --read`."""

    async def work() -> None:
        async with open_store(url_of(play)) as store:
            report = await repair_store(store, read=True)
        with redirect_stdout(io.StringIO()) as printed:
            _print_repairs(report)
        for line in printed.getvalue().splitlines():
            play.tell(line)

    _run(play, work)


def _run(play: Play, work: Callable[[], Awaitable[None]]) -> None:
    client = Client(play.network, PERSON, Random("story/the person"))
    log, logger = _Log(play.tell), logging.getLogger("dos.client")

    async def main() -> None:
        try:
            await work()
        except DosError as error:
            play.tell(f"refused: {words_of(error)}")

    level = logger.level
    logger.addHandler(log)
    logger.setLevel(logging.INFO)
    try:
        client.begin(main)
        play.pass_time(lambda: not client.alive, _PATIENCE_S)
    finally:
        logger.removeHandler(log)
        logger.setLevel(level)
    if client.alive:
        play.tell("it is still at work")
