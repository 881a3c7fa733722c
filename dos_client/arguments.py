"""Check the arguments of a store and its claims: LocalProtocolError is raised before anything is sent."""

from collections.abc import Mapping

import trio

from dos_client.core.quorum import Quorums
from dos_protocol.errors import LocalProtocolError
from dos_protocol.limits import u64_max
from dos_protocol.messages import ObjectInfo
from dos_protocol.store_record import StoreRecord


def check_number(value: int, argument: str, *, least: int = 0, most: int = u64_max) -> int:
    """Return the number. Raises LocalProtocolError unless it is an int within the range."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise LocalProtocolError(
            f"{argument} must be a whole number from {least} to {most}, got {value!r:.60}"
        )
    return value


def check_numbers(**values: int | None) -> None:
    for argument, value in values.items():
        if value is not None:
            check_number(value, argument)


def check_text(value: str, argument: str) -> str:
    if not isinstance(value, str):
        raise LocalProtocolError(f"{argument} must be text, got {value!r:.60}")
    return value


def check_run(token: trio.lowlevel.TrioToken) -> None:
    """Raise LocalProtocolError in another trio run than the token's: its tasks cannot answer."""
    if trio.lowlevel.current_trio_token() is not token:
        raise LocalProtocolError(
            "this store was opened in another trio.run, whose tasks do not run here",
            remedy="open a store in each trio.run; dos_client.blocking serves several threads",
        )


def check_absent(
    directory: str, name: str, answers: Mapping[bytes, Mapping[str, ObjectInfo]], record: StoreRecord
) -> None:
    """Raise LocalProtocolError if so many members hold that object that a new one is never acknowledged."""
    holders = {
        server_id for server_id, objects in answers.items() if name in objects and objects[name].synced
    }
    free = {member.server_id for member in record.members} - holders
    if holders and not Quorums(record).can_acknowledge(free):
        raise LocalProtocolError(
            f"{directory}/{name} exists on {len(holders)} members: a new object of this name can never"
            " be acknowledged",
            remedy="choose another name, or continue that object where it ends",
        )
