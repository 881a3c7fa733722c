"""Sends requests to a region from any machine that reaches its store: without Spark, without a port of the
driver.

This file writes one request, reads its answers and decides which answer to believe. An answer names the
incarnation in which its driver held the manifest. If the manifest has been claimed with a higher epoch by the
time the answer arrives, its driver may be fenced without knowing it: what it reports about itself is not
believed, and another answer is waited for. What was `done` remains done, and is returned with that epoch.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import trio

from checkpoint import limits
from checkpoint.chains.manifest_reading import manifest_epoch
from checkpoint.core.region import answers_directory, requests_directory
from checkpoint.core.request_records import Answer, Request, encode_record
from checkpoint.errors import NoAnswerError
from checkpoint.requests.queue import QueueReader, write_records
from checkpoint.runtime import runtime, wall_time_ms
from dos_client import QuorumUnavailableError, Store, randomness
from dos_protocol.errors import BrokenConnectionError

logger = logging.getLogger("dos.checkpoint")


@dataclass(frozen=True, slots=True)
class Reply:
    """The final answer to a request."""

    answer: Answer
    superseded_by: int = 0
    """The epoch with which the manifest was claimed since, 0 if it was not."""


class RequestClient:
    """Sends requests to one region. Create it once, then call `send` any number of times, one at a time."""

    def __init__(self, store: Store, region: str) -> None:
        self._store = store
        self._region = region
        self._queue = QueueReader(store, answers_directory(region))
        self._began = False

    async def send(
        self,
        what: str,
        *,
        incarnation: int = 0,
        patience_s: float = limits.request_patience_s,
        wait_s: float = math.inf,
        accepted: Callable[[Answer], None] = lambda _: None,
        **fields: Any,
    ) -> Reply:
        """Send a request and wait for the final answer: at most `patience_s` seconds for the first answer,
        and `wait_s` more for the final one. fields: what else the `Request` says.

        Raises NoAnswerError, whose text says whether the request may still be carried out;
        QuorumUnavailableError if it could not be written in time.
        """
        if not self._began:
            await self._queue.skip_present()
            self._began = True
        request = self._request(what, incarnation, patience_s, fields)
        await self._write(request)
        doubt, begun = "", False
        deadline = trio.current_time() + patience_s
        while trio.current_time() < deadline:
            for answer in await self._new_answers(request.id):
                newer = await self._newer_epoch(answer)
                if answer.verdict == "accepted":
                    if not begun:
                        deadline = trio.current_time() + wait_s
                        accepted(answer)
                    begun = True
                elif answer.verdict == "done" and (not newer or what != "status"):
                    return Reply(answer, newer)
                elif not newer:
                    return Reply(answer)
                else:
                    doubt = (
                        f"incarnation {answer.incarnation}, {answer.driver}, answered,"
                        f" but epoch {newer} has it"
                    )
                    # That driver will not answer it again: send it to the driver that holds the manifest now.
                    if what == "status":
                        request = self._request(what, incarnation, patience_s, fields)
                        await self._write(request)
            await trio.sleep(limits.answers_poll_s)
        raise NoAnswerError(self._no_answer_text(request, doubt, patience_s, wait_s, begun=begun))

    def _request(
        self,
        what: str,
        incarnation: int,
        patience_s: float,
        fields: dict[str, Any],
    ) -> Request:
        return Request(
            id=randomness.fresh_id().hex(),
            region=self._region,
            what=what,
            wall_time_ms=wall_time_ms(),
            patience_ms=int(1000 * patience_s),
            incarnation=incarnation,
            asked_by=requester(),
            **fields,
        )

    async def _write(self, request: Request) -> None:
        try:
            with trio.fail_after(limits.request_write_s):
                await write_records(self._store, requests_directory(self._region), encode_record(request))
        except trio.TooSlowError as error:
            errors = [f"{one.address}: {one.error}" for one in self._store.members() if one.error]
            raise QuorumUnavailableError(
                f"the request could not be written within {limits.request_write_s:g} s;"
                f" {_expiry_text(request)}",
                errors,
            ) from error

    async def _new_answers(self, request: str) -> list[Answer]:
        try:
            found = await self._queue.poll()
        except (QuorumUnavailableError, BrokenConnectionError):
            return []  # a member may be available again within our patience, and nothing is lost
        return [one for one in found if isinstance(one, Answer) and request in one.requests]

    async def _newer_epoch(self, answer: Answer) -> int:
        """Return the manifest's epoch if it is above the answer's, otherwise 0."""
        epoch = await manifest_epoch(self._store, self._region)
        return epoch if epoch > answer.incarnation else 0

    def _no_answer_text(
        self, request: Request, doubt: str, patience_s: float, wait_s: float, *, begun: bool
    ) -> str:
        if begun:
            return (
                f"{request.what} of region {self._region} was accepted but not done within {wait_s:g} s:"
                " it may still be done"
            )
        text = (
            f"no driver of region {self._region} answered within {patience_s:g} s: none runs, it hangs, or"
            " the store does not serve it (its log names the reason, for example a revoked token)"
        )
        if doubt:
            text += f" ({doubt}: a driver that lost the region is not believed)"
        return text if request.what == "status" else f"{text}; {_expiry_text(request)}"


def _expiry_text(request: Request) -> str:
    """Describe how long the request may still be carried out."""
    latest = (request.wall_time_ms + request.patience_ms) / 1000 + limits.request_clock_slack_s
    return f"a running driver may still start it until {time.strftime('%H:%M:%S', time.localtime(latest))}"


async def running_text(store: Store, region: str, patience_s: float) -> str:
    """Return which driver runs a region, "" if none answers within `patience_s` seconds. Raises as
    `RequestClient.send`, except NoAnswerError.
    """
    try:
        answer = (await RequestClient(store, region).send("status", patience_s=patience_s)).answer
    except NoAnswerError as silence:
        logger.info("%s", silence)
        return ""
    return f"region {region!r} is running: {answer.driver} answered, in incarnation {answer.incarnation}"


def requester() -> str:
    """Return user@host of this process, as requests and the notes of savepoints name it."""
    return f"{runtime().user_name()}@{runtime().host_name()}"
