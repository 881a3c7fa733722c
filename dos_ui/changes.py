"""The changes that the page offers: requests to the driver of a running region."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from checkpoint import limits
from checkpoint.requests.client import RequestClient
from dos_client import Store
from dos_protocol.errors import DosError, LocalProtocolError


@dataclass(frozen=True, slots=True)
class _Change:
    """A request (`Request.what`), the types of its fields, and how long it may take."""

    what: str
    fields: Mapping[str, type]
    wait_s: float


CHANGES: Final = {
    "checkpoint": _Change("checkpoint", {}, limits.drain_timeout_s),
    "savepoint": _Change("savepoint", {"name": str, "why": str}, limits.drain_timeout_s),
    "restore": _Change("restore", {"name": str, "allow_republish": bool}, limits.reset_timeout_s),
    "scale": _Change("scale", {"workers": int}, limits.start_timeout_s + limits.reset_timeout_s),
    "pause": _Change("pause", {}, limits.drain_timeout_s),
    "resume": _Change("resume", {}, limits.reset_timeout_s),
}
"""Name on the page -> the request."""


class ChangeRefusedError(DosError):
    """The driver refused a change, or could not complete it. The text has its reason."""


async def change(store: Store, region: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Request a change, wait until it is done, and return the driver's result.

    Raises LocalProtocolError for an unknown change or a field of the wrong type; ChangeRefusedError;
    NoAnswerError, whose text says whether it may still be carried out; QuorumUnavailableError.
    """
    known = CHANGES.get(name)
    if known is None:
        raise LocalProtocolError(f"unknown change {name!r}", remedy=f"there are {', '.join(CHANGES)}")
    for field, value in given.items():
        if type(value) is not known.fields.get(field):
            raise LocalProtocolError(f"{name} has no field {field!r} of that type, got {value!r}")
    reply = await RequestClient(store, region).send(known.what, wait_s=known.wait_s, **given)
    if reply.answer.verdict != "done":
        raise ChangeRefusedError(
            f"{name} of region {region} was {reply.answer.verdict}: {reply.answer.reason}"
        )
    return reply.answer.result
