"""Opens stores for the source, on the driver and in tasks; no other module of the source does.

Nothing that is opened here outlives its `with` block; `store_cache` keeps stores beyond a task.
"""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from checkpoint import input_register, output_register
from checkpoint.chains.consumer_register import QueryRegistration
from checkpoint.chains.manifest_log import StoreHost
from dos_client import blocking, randomness
from dos_client.blocking import BlockingStore
from dos_protocol.arguments import token_in
from dos_protocol.errors import LocalProtocolError
from dos_tls import warn_if_open
from spark_integration import on_executor
from spark_integration.core.option_texts import StoreOptions, TokenOptions
from spark_integration.core.options import SourceOptions
from spark_integration.errors import BadOptionError, ExecutorMismatchError
from spark_integration.reading.inputs import InputOrigin
from spark_integration.reading.objects import ObjectOrigin
from spark_integration.reading.origin import Origin
from spark_integration.reading.outputs import OutputOrigin

Options = TypeVar("Options", bound=TokenOptions)


@contextmanager
def opened(options: StoreOptions) -> Iterator[BlockingStore]:
    """Open the store of the options. Raises StoreNotReadyError, and what opening a store raises."""
    with blocking.open_store(options.servers, token=options.token, client="spark") as store:
        yield store


def origin_of(store: BlockingStore, options: SourceOptions) -> Origin:
    """Return what the options read. Its methods must be called in the store's trio thread."""
    if options.output is not None:
        return OutputOrigin(store.store, options)
    if options.input is not None:
        return InputOrigin(store.store, options)
    return ObjectOrigin(store.store, options)


def registration_of(store: BlockingStore, options: SourceOptions) -> QueryRegistration | None:
    """Return the registration of a stream, not made yet; None without the option `consumer`."""
    if options.consumer is None:
        return None
    if options.output is not None:
        place = output_register(options.directory, options.output)
    else:
        assert options.input is not None, "the options guarantee it"
        place = input_register(options.directory, options.input)
    return QueryRegistration(
        StoreHost(store.store),
        place,
        options.consumer,
        session=randomness.fresh_id().hex(),
        retain_s=options.consumer_retain_s,
    )


def check_executor(expected: on_executor.Expected) -> None:
    """Raise ExecutorMismatchError if this process differs from the driver. For tasks, before reading."""
    problem = _problem(expected)
    if problem is not None:
        raise ExecutorMismatchError(f"{on_executor.MISMATCH} on {platform.node()}: {problem}")


@cache
def _problem(expected: on_executor.Expected) -> str | None:
    return on_executor.executor_problem(expected)


def with_token(options: Options) -> Options:
    """Replace the name of a token file by the token itself, because tasks may not have the file.

    Raises BadOptionError.
    """
    if options.token_file is None:
        return options
    try:
        warn_if_open(options.token_file, "the token file")
        token = token_in(Path(options.token_file).read_bytes(), options.token_file)
    except LocalProtocolError as error:
        raise BadOptionError(f"option 'tokenFile': {error}") from error
    except OSError as error:
        raise BadOptionError(f"cannot read the file of the option 'tokenFile': {error}") from error
    return msgspec.structs.replace(options, token=token, token_file=None)
