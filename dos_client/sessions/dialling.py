"""Connect to an address. This is the only module that translates OSError to the errors of the client."""

import os

import trio

from dos_client.core.replacement import GONE_SUFFIX
from dos_client.limits import connect_timeout_s
from dos_client.runtime import ClientStream, runtime
from dos_client.urls import split_address
from dos_protocol.errors import (
    BrokenConnectionError,
    ClosedError,
    DosError,
    ErrorCode,
    RefusedError,
    TlsRequiredError,
)
from dos_tls import TlsError


async def dial(address: str) -> ClientStream:
    """Open a connection. Raises BrokenConnectionError, for example a TlsError."""
    if address.endswith(GONE_SUFFIX):
        raise BrokenConnectionError("its address belongs to the server that replaces it")
    host, port = split_address(address)
    try:
        with trio.fail_after(connect_timeout_s):
            return await connect(host, port)
    except (OSError, trio.TooSlowError) as error:
        raise BrokenConnectionError(f"cannot connect to {address}: {_cause_text(error)}") from error


async def connect(host: str, port: int) -> ClientStream:
    """Connect through the runtime environment, which a simulation replaces."""
    return await runtime().connect(host, port)


def _cause_text(error: BaseException) -> str:
    if isinstance(error, trio.TooSlowError):
        return f"no answer within {connect_timeout_s:g} s"
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    reason = cause or error
    if isinstance(reason, OSError) and reason.errno and reason.errno > 0:
        return os.strerror(reason.errno)  # the text of the error would repeat the address
    return str(reason)


def line_of(error: DosError) -> str:
    """Return the text of an error for a list of servers. Of TLS with the remedy, which differs by server."""
    return str(error if isinstance(error, TlsError | TlsRequiredError) else error.args[0])


def broken(address: str, error: OSError) -> BrokenConnectionError:
    """Return the error for a broken connection, with its cause."""
    broken = BrokenConnectionError(f"the connection to {address} broke: {error}")
    broken.__cause__ = error
    return broken


def fresh_failure(failure: DosError) -> DosError:
    """Return a new exception for the same failure, for one more waiter. RefusedError and TlsError keep their
    classes.
    """
    if isinstance(failure, RefusedError):
        return type(failure)(
            str(failure.args[0]), code=ErrorCode(failure.code), actual=failure.actual, record=failure.record
        )
    if isinstance(failure, TlsError):
        return type(failure)(str(failure.args[0]), remedy=failure.remedy)
    fresh = ClosedError(str(failure.args[0])) if isinstance(failure, ClosedError) else None
    fresh_error = fresh or BrokenConnectionError(str(failure.args[0]))
    fresh_error.__cause__ = failure
    return fresh_error
