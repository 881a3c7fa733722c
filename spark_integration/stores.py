"""Selects the store of a region: the one that was named, or an embedded one.

A named store whose servers are all empty is initialized. Without a name there is one good default, and only
if the driver's machine is the whole cluster: one server in this process, on loopback. Its data outlives the
session if a directory was given. For any other master there is no default, and the error contains the
commands that start a store.
"""

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import trio

from dos_client.errors import StoreRefusedError
from dos_client.sessions.discovery import probe, send_record
from dos_client.store import StoreNotReadyError, init_store, open_store
from dos_client.urls import parse_url
from dos_protocol.store_record import Member, StoreRecord
from dos_server import embedded
from dos_tls import tls_of_environment
from spark_integration.errors import StoreNotChosenError, StoreNotUsableError
from spark_integration.limits import STORE_ANSWER_S

logger = logging.getLogger("dos.spark_integration")

HOW_TO_START_ONE = """\
Start three servers on different machines, and make them a store:
  dos serve --data /var/lib/dos --listen HOST:9999        (on each of HOST1, HOST2, HOST3)
  dos store init dos://HOST1,HOST2,HOST3
  run(..., store="dos://HOST1,HOST2,HOST3")"""


class UsedStore(NamedTuple):
    """A store that is available. `close` ends what was started for it."""

    url: str
    close: Callable[[], None]


def choose_store(
    store: str | None, *, one_machine: bool, master: str, data_dir: str | Path | None, token: bytes = b""
) -> UsedStore:
    """Return the store to use. Raises StoreNotChosenError, StoreNotUsableError."""
    if store is not None:
        make_ready(store, token)
        return UsedStore(store, lambda: None)
    if not one_machine:
        raise StoreNotChosenError(f"no store was named, and {master} is not local. {HOW_TO_START_ONE}")
    if tls_of_environment() is not None:
        raise StoreNotChosenError(
            "no store was named, and the store inside this process speaks plain text, but DOS_TLS is set:"
            " pass store=, the URL of servers that were started with --tls; or unset DOS_TLS"
        )
    directory = Path(data_dir) if data_dir is not None else Path(tempfile.mkdtemp(prefix="dos-store-"))
    server = embedded.start(directory, token=token, log_bytes=embedded.LOG_BYTES)
    logger.warning("no store was named: using an embedded server with one copy, in %s", directory)
    try:
        trio.run(_update_address, server.url, token)
        make_ready(server.url, token)
    except BaseException:
        server.stop()
        raise
    return UsedStore(server.url, server.stop)


async def _update_address(url: str, token: bytes) -> None:
    """Update the address in the store record, because an embedded server listens on another port each time.

    The store consists of this one server, so the next generation of its record may have the new address
    (docs/decisions/0032).
    """
    address = parse_url(url).servers[0]
    answer = await probe(address, token=token, client="driver")
    if answer.record is None:
        return
    old = answer.record
    if len(old.members) > 1:
        raise StoreNotUsableError(
            f"the data there belongs to a store of {len(old.members)} servers: start them, and pass its URL"
        )
    if old.members[0].address != address:
        here = (Member(answer.server_id, address),)
        record = StoreRecord(old.store_id, old.generation + 1, old.ack_quorum, here)
        await send_record(address, record, token=token, client="driver")


def make_ready(url: str, token: bytes = b"") -> None:
    """Check that the store of `url` is available; initialize it if all its servers answer and are empty.

    Raises StoreNotUsableError, which names what is missing.
    """
    trio.run(_make_ready, url, token)


async def _make_ready(url: str, token: bytes) -> None:
    problem: Exception | None = None
    with trio.move_on_after(STORE_ANSWER_S):
        try:
            async with open_store(url, token=token, client="driver"):
                return
        except StoreRefusedError as error:
            raise StoreNotUsableError(str(error)) from error
        except StoreNotReadyError as error:
            problem = error
        try:
            record = await init_store(url, token=token)
        except Exception as error:
            raise StoreNotUsableError(
                f"{url} cannot be used: {problem}; and it cannot be initialized now: {error}"
            ) from problem
        logger.info(
            "initialized store %s: %d members, quorum %d", url, len(record.members), record.ack_quorum
        )
        return
    raise StoreNotUsableError(f"no answer from store {url} within {STORE_ANSWER_S:.0f} s ({problem})")
