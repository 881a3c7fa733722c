"""What callers may give to a store and its claims.

Rules of this file: an argument of a wrong type or range, or a call from a place from which it can never be
answered, raises LocalProtocolError before anything is sent. A wait that nothing can end is not begun.
"""

from typing import TYPE_CHECKING

import trio

from dos_client.core.quorum import Quorums
from dos_protocol.errors import LocalProtocolError
from dos_protocol.limits import u64_max

if TYPE_CHECKING:
    from dos_client.writing.claim import Claim


def check_number(value: int, what: str, *, least: int = 0, most: int = u64_max) -> int:
    """Return the number. Raises LocalProtocolError unless it is an int within the range."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise LocalProtocolError(f"{what} must be a whole number from {least} to {most}, got {value!r:.60}")
    return value


def check_numbers(**values: int | None) -> None:
    """Check each number that is given. Raises LocalProtocolError, which says its name."""
    for what, value in values.items():
        if value is not None:
            check_number(value, what)


def check_text(value: str, what: str) -> str:
    """Return the text. Raises LocalProtocolError if it is none."""
    if not isinstance(value, str):
        raise LocalProtocolError(f"{what} must be text, got {value!r:.60}")
    return value


def check_run(token: trio.lowlevel.TrioToken) -> None:
    """Raise LocalProtocolError unless this is the trio run of that token: tasks of another never answer."""
    if trio.lowlevel.current_trio_token() is not token:
        raise LocalProtocolError(
            "this store was opened in another trio.run, whose tasks do not run here",
            remedy="open a store in each trio.run; dos_client.blocking serves several threads",
        )


def check_absent(claim: "Claim", name: str) -> None:
    """Raise LocalProtocolError if members hold content of that name, so that what is written to it as a new
    object can never be acknowledged."""
    holders = {one for one, objects in claim.answers.items() if name in objects and objects[name].synced}
    others = {one.server_id for one in claim.store.record.members} - holders
    if holders and not Quorums(claim.store.record).can_acknowledge(others):
        raise LocalProtocolError(
            f"{claim.directory}/{name} exists on {len(holders)} members: as a new object it can never be"
            " acknowledged",
            remedy="choose another name, or go on where it ends: resume",
        )
