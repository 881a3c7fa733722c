"""From an address to a connection, and from the world's troubles to our errors. The one place that translates
OSError."""

import os

import trio

from dos_client.core.replacement import GONE_SUFFIX
from dos_client.limits import connect_timeout_s
from dos_client.runtime import ClientStream, runtime
from dos_client.urls import split_address
from dos_protocol.errors import BrokenConnectionError, ClosedError, DosError, ErrorCode, RefusedError


async def dial(address: str) -> ClientStream:
    """A connection. Raises BrokenConnectionError."""
    if address.endswith(GONE_SUFFIX):
        raise BrokenConnectionError("its address belongs to the server that replaces it")
    host, port = split_address(address)
    try:
        with trio.fail_after(connect_timeout_s):
            return await connect(host, port)
    except (OSError, trio.TooSlowError) as error:
        raise BrokenConnectionError(f"cannot connect to {address}: {_cause_text(error)}") from error


async def connect(host: str, port: int) -> ClientStream:
    """The network itself. A simulated client has another."""
    return await runtime().connect(host, port)


def _cause_text(error: BaseException) -> str:
    if isinstance(error, trio.TooSlowError):
        return f"no answer within {connect_timeout_s:g} s"
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    reason = cause or error
    if isinstance(reason, OSError) and reason.errno and reason.errno > 0:
        return os.strerror(reason.errno)  # its own text says the address again
    return str(reason)


def broken(address: str, error: OSError) -> BrokenConnectionError:
    """The connection broke; the cause is kept."""
    broken = BrokenConnectionError(f"the connection to {address} broke: {error}")
    broken.__cause__ = error
    return broken


def again(failure: DosError) -> DosError:
    """The failure, as a fresh exception for one more waiter: refusals keep their class, the rest say
    broken."""
    if isinstance(failure, RefusedError):
        return type(failure)(
            str(failure.args[0]), code=ErrorCode(failure.code), actual=failure.actual, record=failure.record
        )
    fresh = ClosedError(str(failure.args[0])) if isinstance(failure, ClosedError) else None
    fresh_error = fresh or BrokenConnectionError(str(failure.args[0]))
    fresh_error.__cause__ = failure
    return fresh_error
