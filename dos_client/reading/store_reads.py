"""Read bytes and sizes from a store's members without a claim.

A read is one hedged question to the members that could answer it. It is repeated for a while if members are
unavailable. `read` returns bytes that are durable on the member that answered; `committed` returns what a
quorum holds. All bytes of one `read` come from one member, so different histories are never mixed.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import trio

from dos_client.core.agreement import reading_quorums
from dos_client.errors import QuorumUnavailableError
from dos_client.limits import read_bytes_max, read_timeout_s
from dos_client.reading.member_queries import MemberAnswers, MemberQuery, Sessions, query_members
from dos_client.reading.sessions import ReadableStore, read_one
from dos_client.sessions.connection import Connection
from dos_protocol.errors import BrokenConnectionError, NotFoundError, PastEndError, RefusedError
from dos_protocol.names import check_name
from dos_protocol.store_record import Member

T = TypeVar("T")
RETRY_PAUSE_S: Final = 0.1


async def with_retries(
    store: ReadableStore, attempt: Callable[[], Awaitable[T]], *, without_limit: bool = False
) -> T:
    """Repeat the attempt for `read_timeout_s`, or without limit, while members cannot be reached. Raises its
    last error.
    """
    deadline = trio.current_time() + read_timeout_s
    while True:
        try:
            return await attempt()
        except (QuorumUnavailableError, BrokenConnectionError) as error:
            found = store.unavailable(error)
            if isinstance(found, RefusedError) or (not without_limit and trio.current_time() > deadline):
                raise found from error
        await store.wait_moved(RETRY_PAUSE_S)


async def read_any(store: ReadableStore, directory: str, name: str, offset: int, max_bytes: int) -> bytes:
    """Return durable bytes of the first undamaged member. Implements `Store.read`."""
    check_name(directory)
    check_name(name)
    wanted = min(max_bytes, read_bytes_max)
    if wanted <= 0:
        return b""

    async def attempt() -> bytes:
        return await _read_once(store, directory, name, offset, wanted)

    return await with_retries(store, attempt)


async def _read_once(store: ReadableStore, directory: str, name: str, offset: int, wanted: int) -> bytes:
    answers = await query_bytes(store, [store.record.voters], directory, name, offset, wanted)
    data = bytes_of(answers)
    if data is not None:
        return data
    error, quorums = answers.error(), reading_quorums(store.record)
    if isinstance(error, NotFoundError | PastEndError) and not quorums.can_take_over(answers.without):
        raise QuorumUnavailableError(
            f"{error.args[0]}; {quorums.claims_needed} members must report that",
            [str(one.args[0]) for one in answers.failed.values()],
        )
    raise error


async def query_bytes(
    store: ReadableStore,
    tiers: Sequence[Sequence[Member]],
    directory: str,
    name: str,
    offset: int,
    wanted: int,
    sessions: Sessions | None = None,
) -> MemberAnswers[bytes]:
    """Ask members until one returns bytes, or F have none."""
    record = store.record

    async def request(connection: Connection) -> bytes:
        return await read_one(connection, name, offset, wanted)

    def judge(answers: MemberAnswers[bytes]) -> tuple[int, bool]:
        if any(answers.given.values()):
            return 0, True
        return 1, reading_quorums(record).can_take_over({*answers.given, *answers.without})

    return await query_members(store, tiers, MemberQuery(directory, name, wanted, request, judge), sessions)


def bytes_of(answers: MemberAnswers[bytes]) -> bytes | None:
    """Return the bytes of a member; b"" if all are at their end; None if no member has the object."""
    return next((data for data in answers.given.values() if data), b"" if answers.given else None)
