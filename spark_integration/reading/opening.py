"""Opens stores for the source, on the driver and in tasks; no other module of the source does.

A Python worker of Spark runs one task after another, and for a micro-batch of a few rows opening a store is
most of the work. So a store that a task has used without error is kept for a while for the next task. One
task uses it at a time. An open store works as well as a new one: it reconnects to lost members and follows
the store record.
"""

import atexit
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from checkpoint import input_register
from checkpoint.chains.consumer_register import QueryRegistration
from checkpoint.chains.manifest_log import StoreHost
from checkpoint.maintenance.retention import output_rows
from dos_client import blocking, randomness
from dos_client.blocking import BlockingStore
from dos_protocol.arguments import token_in
from dos_protocol.errors import LocalProtocolError
from dos_tls import warn_if_open
from spark_integration import limits, on_executor
from spark_integration.core.options import SourceOptions, StoreOptions, TokenOptions
from spark_integration.errors import BadOptionError, ExecutorMismatchError
from spark_integration.reading.chains import InputOrigin, OutputOrigin
from spark_integration.reading.objects import ObjectOrigin
from spark_integration.reading.origin import Origin

Options = TypeVar("Options", bound=TokenOptions)


@contextmanager
def opened(options: StoreOptions) -> Iterator[BlockingStore]:
    """Open the store of the options. Raises StoreNotReadyError, and what opening a store raises."""
    with blocking.open_store(options.servers, token=options.token, client="spark") as store:
        yield store


def origin_of(store: BlockingStore, options: SourceOptions) -> Origin:
    """Return what the options read. Its methods must be called in the store's trio thread."""
    if options.output is not None:
        origin = OutputOrigin(store.store, options)
        store.portal.call(origin.find)
        return origin
    if options.input is not None:
        return InputOrigin(store.store, options)
    return ObjectOrigin(store.store, options)


def registration_of(store: BlockingStore, options: SourceOptions) -> QueryRegistration | None:
    """Return the registration of a stream, not made yet; None without the option `consumer`."""
    if options.consumer is None:
        return None
    if options.output is not None:
        place = store.portal.call(output_rows, store.store, options.directory, options.output).place
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
    """Replace the name of a token file by the token: tasks may not have the file. Raises BadOptionError."""
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


_Key = tuple[str, bytes, int]


@dataclass(slots=True)
class _Kept:
    store: BlockingStore
    stack: ExitStack
    timer: threading.Timer


class StoreCache:
    """The kept stores of one process, for `idle_s` seconds each. Thread-safe."""

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._kept: dict[_Key, _Kept] = {}

    @contextmanager
    def lent(self, options: StoreOptions) -> Iterator[BlockingStore]:
        """Lend the store of the options to a task. Raises as opening a store does."""
        key = (str(options.servers), options.token, os.getpid())  # a forked process opens its own
        stack, store = self._take(key) or _new(options)
        try:
            yield store
        except GeneratorExit:  # Spark ended the task, for example at a limit: no error
            self._keep(key, stack, store)
            raise
        except BaseException:
            stack.close()
            raise
        self._keep(key, stack, store)

    def close(self) -> None:
        """Close the stores that are not in use, and wait for that."""
        with self._lock:
            kept, self._kept = list(self._kept.values()), {}
        for one in kept:
            one.timer.cancel()
            one.stack.close()

    def _take(self, key: _Key) -> tuple[ExitStack, BlockingStore] | None:
        with self._lock:
            kept = self._kept.pop(key, None)
        if kept is None:
            return None
        kept.timer.cancel()
        return kept.stack, kept.store

    def _keep(self, key: _Key, stack: ExitStack, store: BlockingStore) -> None:
        timer = threading.Timer(self._idle_s, self._time_is_up, (key, store))
        timer.daemon = True
        with self._lock:
            spare = key in self._kept
            if not spare:
                self._kept[key] = _Kept(store, stack, timer)
        if spare:
            stack.close()
        else:
            timer.start()

    def _time_is_up(self, key: _Key, store: BlockingStore) -> None:
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept.store is not store:
                return  # a task took it meanwhile
            del self._kept[key]
        kept.stack.close()


def _new(options: StoreOptions) -> tuple[ExitStack, BlockingStore]:
    stack = ExitStack()
    return stack, stack.enter_context(opened(options))


KEPT = StoreCache(limits.STORE_IDLE_S)
"""The kept stores of this process: nothing else of Spark's tasks outlives them."""
atexit.register(KEPT.close)
