"""What the driver does for the sink: a commit, and what is left over.

Rules of this file: the order of a commit, and no decision of its own (`core/sink_commits.py`).

    1  become the producer: whoever was it can record nothing more
    2  judge: was it recorded before? may this one record at all?
    3  send the parts of every partition as one batch, those in the store read and compared first
    4  wait until it is recorded: the commit
    5  take away what lies in the store for it, and older

Dying between two of them leaves nothing recorded, before 4, or all; Spark commits again. The process in which
Spark commits is used for the next micro-batch too, so the producer stays open in it: a take-over reads a
segment of the chain for each time that it was opened. If Spark takes another process, that one fences this.
"""

import logging
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing, suppress

import pyarrow as pa

from checkpoint.core.inputs import producer_directory
from checkpoint.core.staged import Unit, encode_mark, is_orphan, staging_prefix
from checkpoint.input_log import InputLog
from dos_client.blocking import BlockingStore
from dos_protocol.digests import digest64
from dos_protocol.errors import FencedError, NotFoundError, PastEndError
from spark_integration.core.sink_commits import Verdict, judge_commit
from spark_integration.core.sink_options import SinkOptions
from spark_integration.errors import StagedRowsGoneError
from spark_integration.limits import SINK_COMMIT_ATTEMPTS_MAX, SINK_PRODUCERS_HELD_MAX, SINK_SWEEP_S
from spark_integration.reading.session import opened
from spark_integration.writing.staging import Part, Prepared, claim_above, collect_orphans, empty_part

log = logging.getLogger("dos.spark_integration")


class Committer:
    """One producer of one handle, open in this process. A context manager."""

    def __init__(self, options: SinkOptions, producer: str) -> None:
        self._options = options
        self._producer = producer
        self._where = producer_directory(options.application, options.input, producer)
        self._stack = ExitStack()
        self._swept = False
        with ExitStack() as stack:
            self._store = stack.enter_context(opened(options))
            self._log = stack.enter_context(self._store.portal.hold(_Opening(self._store, options, producer)))
            self._stack = stack.pop_all()

    def commit(self, unit: Unit, prepared: Sequence[Prepared], schema: pa.Schema) -> Verdict:
        """Record what was prepared, or find that it was recorded. Raises FencedError, StagedRowsGoneError and
        as `judge_commit` does; it may be called again, on a new one.
        """
        last, mark = self._store.portal.call_sync(lambda: (self._log.last, self._log.last_mark))
        verdict = judge_commit(unit, last, mark, self._where)
        if verdict is Verdict.APPEND:
            ordered = sorted(prepared, key=lambda one: one.partition)
            number = unit.number or last + 1
            self._store.portal.call(self._record, number, ordered, schema, encode_mark(unit))
        self._sweep(unit, {one.directory for one in prepared if one.directory})
        return verdict

    async def _record(
        self, number: int, prepared: Sequence[Prepared], schema: pa.Schema, mark: bytes
    ) -> None:
        async with aclosing(self._parts(prepared, schema)) as parts:
            await self._log.append_from(parts, number=number, mark=mark)
        await self._log.recorded(number)

    async def _parts(
        self, prepared: Sequence[Prepared], schema: pa.Schema
    ) -> AsyncGenerator[tuple[int, bytes]]:
        """All parts, in the order of partitions; one without rows if there is none."""
        if not any(one.parts for one in prepared):
            yield empty_part(schema)
        for one in prepared:
            at = 0
            for part in one.parts:
                yield part.rows, await self._data(one, part, at) if part.data is None else part.data
                at += part.size

    async def _data(self, prepared: Prepared, part: Part, at: int) -> bytes:
        """A part that lies in the store. Raises StagedRowsGoneError."""
        where, found = f"{prepared.directory}/{prepared.name}", b""
        try:
            while len(found) < part.size:
                data = await self._store.store.read(
                    prepared.directory, prepared.name, at + len(found), part.size - len(found)
                )
                if not data:
                    break
                found += data
        except (NotFoundError, PastEndError) as error:
            raise StagedRowsGoneError(f"{where} is gone: another attempt took it away ({error})") from error
        if digest64(found) != part.digest:
            raise StagedRowsGoneError(f"{where}, {at} to {at + part.size}: not the bytes that were put there")
        return found

    def _sweep(self, unit: Unit, used: set[str]) -> None:
        """Take away what is recorded, and, once in each process, what earlier ones left. What cannot go now
        goes with a later commit.
        """
        to = self._options
        directories = used
        if not self._swept:
            prefix = staging_prefix(to.application, to.input, self._producer)
            directories = used | set(self._store.list_directories(prefix))
            self._swept = True
        for directory in sorted(directories):
            objects = {name for held in self._store.look(directory).answers.values() for name in held}
            if any(is_orphan(name, unit, recorded=True) for name in objects):
                with suppress(FencedError), claim_above(self._store, directory) as claim:
                    collect_orphans(self._store, claim, unit, recorded=True)
                    self._store.portal.call(claim.claim.wait_collected, SINK_SWEEP_S)

    def close(self) -> None:
        """Give the producer up. What was recorded is."""
        self._stack.close()


class _Opening:
    """`InputLog.open` as a context manager, for a portal to hold."""

    def __init__(self, store: BlockingStore, options: SinkOptions, producer: str) -> None:
        self._store, self._options, self._producer = store, options, producer

    async def __aenter__(self) -> InputLog:
        to = self._options
        self._log = await InputLog.open(self._store.store, to.application, to.input, self._producer)
        return self._log

    async def __aexit__(self, *error: object) -> None:
        await self._log.aclose()


# --- the producers of this process ------------------------------------------------------------------------

_held: dict[tuple[SinkOptions, str], Committer] = {}
_lock = threading.Lock()


def commit(options: SinkOptions, prepared: Sequence[Prepared], schema: pa.Schema) -> Verdict:
    """Commit what the tasks of one unit prepared; when it returns all of it is recorded, once, whoever did it
    and how often it was tried. Failed, it is recorded or not: call it again.

    Raises OtherWriterError, OtherCheckpointError, StagedRowsGoneError, InputClosedError, FencedError when
    others keep opening the same producer, and what opening a store raises. Waits for a quorum; a producer
    that is new needs every member.
    """
    first = prepared[0]
    key = options, first.producer
    with _lock:
        for attempt in range(1, SINK_COMMIT_ATTEMPTS_MAX + 1):
            kept = _held.pop(key, None)
            committer = kept or Committer(options, first.producer)
            try:
                verdict = committer.commit(first.unit, prepared, schema)
            except (FencedError, StagedRowsGoneError) as error:
                committer.close()
                fenced = isinstance(error, FencedError) or kept is not None  # and did not know it yet
                if attempt == SINK_COMMIT_ATTEMPTS_MAX or not fenced:
                    raise
            except BaseException:
                committer.close()
                raise
            else:
                _keep(key, committer)
                return verdict
    raise AssertionError("the last attempt returns or raises")


def _keep(key: tuple[SinkOptions, str], committer: Committer) -> None:
    """For the next commit; the one that was used least recently goes."""
    _held[key] = committer
    while len(_held) > SINK_PRODUCERS_HELD_MAX:
        _held.pop(next(iter(_held))).close()


def release_producers() -> None:
    """Give up the producers that this process keeps open. The next commit opens its own again."""
    with _lock:
        while _held:
            _held.popitem()[1].close()
