"""The driver's side of requests through the store: performs what `core/verbs.py` decides.

It reads and answers only while this driver holds the manifest; pending answers wait until it does again, or
are dropped if it was fenced. Failures here are logged and never end a region.
"""

import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from typing import Any, Final, Protocol

import trio

from checkpoint import limits
from checkpoint.core.coordination.vocabulary import Event
from checkpoint.core.progress import driver_report
from checkpoint.core.region import (
    RegionEvent,
    RegionSpec,
    RegionState,
    RegionStatus,
    answers_directory,
    requests_directory,
)
from checkpoint.core.requests import Answer, Request, Skipped, encode_record
from checkpoint.core.verbs import (
    CommandRegion,
    QueueRead,
    RegionEnded,
    RegionNotified,
    RequestArrived,
    RequestEvent,
    RequestHandler,
    WriteAnswer,
)
from checkpoint.requests.queue import QueueReader, QueueRepair, write_records
from checkpoint.runtime import this_driver, wall_time_ms
from dos_client import Store
from dos_protocol.errors import DosError
from journal import ChainWatch

logger: Final = logging.getLogger("dos.checkpoint")


class ServedRegion(Protocol):
    """The region that requests are about."""

    def post(self, event: Event) -> None:
        """Pass an event to the region's core."""

    def status(self) -> RegionStatus:
        """Return the current status."""

    def held(self) -> int:
        """Return the incarnation in which the driver holds the manifest, 0 if it does not."""

    def last_progress(self) -> dict[str, Any] | None:
        """Return the newest progress report."""


class RequestServer:
    """Answers the requests to one driver. `run` is its task; `on_event` receives the region's events, on its
    thread.
    """

    def __init__(self, store: Store, spec: RegionSpec, region: ServedRegion) -> None:
        self._store = store
        self._spec = spec
        self._region = region
        self._handler = RequestHandler(spec.name, without_checkpoints=spec.without_checkpoints)
        self._queue = QueueReader(store, requests_directory(spec.name))
        self._copies = [
            QueueRepair(store, directory)
            for directory in (requests_directory(spec.name), answers_directory(spec.name))
        ]
        self._repair_at = 0.0
        self._outbox: deque[WriteAnswer] = deque(maxlen=limits.requests_open_max)
        self._wake = trio.Event()
        self._settled = trio.Event()
        """Set by an outcome that came after the last poll began."""
        self._failure = ""

    def on_event(self, event: RegionEvent) -> None:
        """Process an event of the region. Does not block."""
        if self._handle(RegionNotified(event)):
            self._settled.set()
            self._wake.set()

    async def run(self) -> None:
        """Read and answer requests until cancelled."""
        try:
            await self._repeat(self._queue.skip_present, until_done=True)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_queue)
                while True:
                    await self._repeat(self._poll_once, until_done=False)
                    await self._wake.wait()
                    # Not after the next poll: an answer that comes while it writes would wait in the outbox.
                    self._wake = trio.Event()
        except Exception:  # a bug here must not end a region that runs well
            logger.exception("region %s: requests through the store are no longer answered", self._spec.name)

    async def _watch_queue(self) -> None:
        """Wake the server when a request is there, and at regular intervals: the first request is in an
        object that is not watched, and after the loss of a member each one is.
        """
        with closing(ChainWatch(self._store, self._queue)) as watch:
            while True:
                await watch.wait(limits.requests_poll_s)
                self._wake.set()

    async def write_last_answers(self) -> None:
        """Answer the open requests after the region has ended, within `limits.last_answers_s`."""
        status = self._region.status()
        self._handle(RegionEnded())
        if status.state is RegionState.FENCED or not status.incarnation:
            return
        with trio.CancelScope(shield=True), trio.move_on_after(limits.last_answers_s):
            try:
                await self._write_answers(status.incarnation)
            except DosError as error:
                self._log_failure(error)
        if self._outbox:
            logger.warning(
                "region %s ended before %d answers were written", self._spec.name, len(self._outbox)
            )

    async def _repeat(self, what: Callable[[], Any], *, until_done: bool) -> None:
        while True:
            try:
                await what()
            except DosError as error:  # the store is unavailable: the region also waits for it and reports it
                self._log_failure(error)
            else:
                self._failure = ""
                return
            if not until_done:
                return
            await trio.sleep(limits.requests_poll_s)

    async def _poll_once(self) -> None:
        """Read new requests, then write the pending answers."""
        if not self._region.held():
            return
        self._settled = trio.Event()
        for found in await self._queue.poll():
            if isinstance(found, Request):
                logger.info("region %s: %s requested by %s", self._spec.name, found.what, found.asked_by)
                self._handle(RequestArrived(found, wall_time_ms()))
            else:
                self._log_skipped(found)
        self._handle(QueueRead())
        if any(one.verdict == "accepted" for one in self._outbox):
            # A write takes about as long as a checkpoint, whose outcome would wait for it.
            with trio.move_on_after(limits.outcome_wait_s):
                await self._settled.wait()
        held = self._region.held()
        if self._outbox and held:
            with trio.move_on_after(limits.request_write_s):
                await self._write_answers(held)
        await self._repair_copies()

    async def _repair_copies(self) -> None:
        if trio.current_time() < self._repair_at:
            return
        with trio.move_on_after(limits.request_write_s):
            for copies in self._copies:
                await copies.repair()
        self._repair_at = trio.current_time() + limits.queue_repair_s

    def _log_skipped(self, found: Answer | Skipped) -> None:
        what = f"{found.count} bytes: {found.why}" if isinstance(found, Skipped) else "an answer"
        directory = requests_directory(self._spec.name)
        logger.warning(
            "region %s: skipped a record in the requests directory %s: %s", self._spec.name, directory, what
        )

    def _handle(self, event: RequestEvent) -> bool:
        """Process an event; return whether it added an answer."""
        answers = False
        for effect in self._handler.handle(event, self._region.status(), trio.current_time()):
            if isinstance(effect, CommandRegion):
                self._region.post(effect.event)
            else:
                self._outbox.append(effect)
                answers = True
        return answers

    async def _write_answers(self, incarnation: int) -> None:
        """Write all pending answers at once. Answers that are not acknowledged stay pending."""
        pending = tuple(self._outbox)
        if not pending:
            return
        data = b"".join(encode_record(self._record_of(answer, incarnation)) for answer in pending)
        await write_records(self._store, answers_directory(self._spec.name), data)
        # Removed earlier, an answer that is lost with a failed write would never be written again.
        for answer in pending:  # only now: answers that were not acknowledged are written again
            self._outbox.remove(answer)

    def _record_of(self, answer: WriteAnswer, incarnation: int) -> Answer:
        result = dict(answer.result)
        if answer.with_status:
            result = self._status()
        return Answer(
            requests=answer.requests,
            region=self._spec.name,
            incarnation=incarnation,
            verdict=answer.verdict,
            wall_time_ms=wall_time_ms(),
            driver=this_driver(),
            reason=answer.reason,
            result=result,
        )

    def _status(self) -> dict[str, Any]:
        return driver_report(self._spec, self._region.status(), self._region.last_progress())

    def _log_failure(self, error: DosError) -> None:
        """Log a failure once, until it is over."""
        text = type(error).__name__
        if text != self._failure:
            self._failure = text
            logger.warning(
                "region %s: requests cannot be read or answered at present: %s", self._spec.name, error
            )


@asynccontextmanager
async def answering(store: Store, spec: RegionSpec, region: ServedRegion) -> AsyncGenerator[RequestServer]:
    """Answer requests in the background. The end of the context, when the region has ended, writes the last
    answers.
    """
    server = RequestServer(store, spec, region)
    async with trio.open_nursery() as nursery:
        if spec.answer_requests:
            nursery.start_soon(server.run)
        yield server
        nursery.cancel_scope.cancel()
    if spec.answer_requests:
        await server.write_last_answers()
