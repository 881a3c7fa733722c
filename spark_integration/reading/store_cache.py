"""Keeps stores open between tasks: for a micro-batch of a few rows, opening one is most of the work.

A Python worker of Spark runs one task after another. A store that a task has used without error is kept for a
while for the next task. One task uses it at a time. An open store works as well as a new one: it reconnects
to lost members and follows the store record.
"""

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from dos_client.blocking import BlockingStore
from spark_integration import limits
from spark_integration.core.option_texts import StoreOptions
from spark_integration.reading.opening import opened

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
