"""Whether an object takes an append now. Nothing here has an effect."""

from dos_protocol.errors import ErrorCode
from dos_protocol.limits import object_bytes_max
from dos_protocol.messages import Append
from dos_server.core.object_state import ObjectState
from dos_server.core.pending import AppendRefusal


def refuses_append(state: ObjectState, append: Append, session: int) -> AppendRefusal | None:
    """Return why the append cannot be accepted now, or None. Has no effect."""
    refusal = refuses_session(state, session)
    if refusal is not None:
        return refusal
    if append.expected_size != state.accepted:
        return AppendRefusal(
            ErrorCode.SIZE_MISMATCH,
            f"{state.name} has {state.accepted} bytes, not {append.expected_size}",
            state.accepted,
        )
    if append.prefix_digest != state.fold.value:
        return AppendRefusal(
            ErrorCode.DIGEST_MISMATCH,
            f"the content of {state.name} below {state.accepted} has digest {state.fold.value:016x},"
            f" not {append.prefix_digest:016x}",
            state.fold.value,
        )
    return refuses_bytes(state, len(append.payload))


def refuses_session(state: ObjectState, session: int) -> AppendRefusal | None:
    """Return why no append of that session can be accepted now, or None."""
    if state.poisoned:
        return AppendRefusal(
            ErrorCode.POISONED, f"{state.name} is poisoned: a write or sync of it failed", state.synced
        )
    if state.corrupt_from is not None:
        return AppendRefusal(
            ErrorCode.CORRUPT,
            f"{state.name} is damaged from offset {state.corrupt_from} on",
            state.corrupt_from,
        )
    if state.changing is not None:
        return AppendRefusal(ErrorCode.BEING_APPENDED, state.changing, state.accepted)
    others = state.tickets and state.tickets[-1].session != session
    if others or state.appender not in (None, session):
        return AppendRefusal(
            ErrorCode.BEING_APPENDED, f"another session appends to {state.name}", state.accepted
        )
    return None


def refuses_bytes(state: ObjectState, count: int) -> AppendRefusal | None:
    """Return why that many more bytes cannot be accepted, or None."""
    if state.accepted + count > object_bytes_max:
        return AppendRefusal(
            ErrorCode.NO_SPACE, f"an object holds at most {object_bytes_max} bytes", object_bytes_max
        )
    return None
