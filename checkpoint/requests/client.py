"""Sends requests to a region from any machine that reaches its store, and reads what is known of a region.

An answer names the incarnation of its driver. If the manifest has been claimed with a higher epoch since, the
driver may be fenced without knowing it: what it reports of itself is not believed.
"""

import logging
import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import trio

from checkpoint import limits
from checkpoint.chains.manifest_log import ManifestView, manifest_epoch, read_manifest
from checkpoint.core.records.views import checkpoint_row
from checkpoint.core.region import RegionState, answers_directory, requests_directory
from checkpoint.core.requests import Answer, Request, encode_record
from checkpoint.errors import NoAnswerError
from checkpoint.requests.queue import QueueReader, newest_records, write_records
from checkpoint.runtime import runtime, wall_time_ms
from dos_client import QuorumUnavailableError, Store, randomness
from dos_protocol.errors import BrokenConnectionError
from journal import ChainWatch

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
        """Send a request and wait `patience_s` seconds for the first answer, and `wait_s` more for the final
        one. fields: of the `Request`.

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
        with closing(ChainWatch(self._store, self._queue)) as watch:
            while trio.current_time() < deadline:
                for answer in await self._new_answers(request.id):
                    if answer.verdict == "accepted":
                        if not begun:
                            deadline = trio.current_time() + wait_s
                            accepted(answer)
                        begun = True
                        continue
                    newer = await self._newer_epoch(answer)
                    if answer.verdict == "done" and (not newer or what != "status"):
                        return Reply(answer, newer)
                    if not newer:
                        return Reply(answer)
                    doubt = (
                        f"incarnation {answer.incarnation}, {answer.driver}, answered,"
                        f" but epoch {newer} has it"
                    )
                    # That driver will not answer it again: send it to the driver that holds the manifest now.
                    if what == "status":
                        request = self._request(what, incarnation, patience_s, fields)
                        await self._write(request)
                await watch.wait(limits.answers_poll_s)
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
    """Return which driver runs a region, "" if none answers. Raises as `RequestClient.send`, except
    NoAnswerError.
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


@dataclass(frozen=True, slots=True)
class RegionReading:
    """One reading. reply: the driver's answer, None if it was not asked or is silent (`silence`).
    last_report: of a silent driver, the last status that one has reported.
    """

    view: ManifestView
    reply: Reply | None = None
    silence: str = ""
    last_report: Answer | None = None

    @property
    def ended(self) -> bool:
        """Whether the last report is of the end of the region, and no driver has taken it over since."""
        last = self.last_report
        return last is not None and last.incarnation == self.view.epoch and _state_of(last).is_end

    @property
    def finished(self) -> bool:
        """Whether all input was read, and no driver has taken the region over since."""
        last = self.view.last
        return last is not None and last.final and last.incarnation == self.view.epoch

    def as_json(self) -> dict[str, Any]:
        """Return the reading as `dos region status --json` prints it."""
        view, answer, last = self.view, None if self.reply is None else self.reply.answer, self.last_report
        return {
            "name": view.region,
            "answered": answer is not None,
            "problem": self.silence,
            "driver": None if answer is None else answer.driver,
            "status": None if answer is None else answer.result,
            "ended": self.ended,
            "lastReport": None
            if last is None
            else {"timeMs": last.wall_time_ms, "driver": last.driver, "status": last.result},
            "manifest": {
                "epoch": view.epoch,
                "checkpoints": len(view.checkpoints),
                "lastCheckpoint": None if view.last is None else checkpoint_row(view.last),
                "unproved": view.unproved,
            },
        }


class RegionReader:
    """Reads one region again and again, one reading at a time."""

    def __init__(self, store: Store, region: str) -> None:
        self._store = store
        self._region = region
        self._client = RequestClient(store, region)
        self._answered = 0
        """The incarnation whose driver answered last time; 0: none did."""

    async def read(self, *, ask: bool = True, patience_s: float = limits.request_patience_s) -> RegionReading:
        """Read the manifest, and with `ask` the status, for which the driver has `patience_s` seconds. Raises
        as `read_manifest`, and QuorumUnavailableError if the request cannot be written.
        """
        view = await read_manifest(self._store, self._region)
        if not ask:
            return RegionReading(view)
        if self._answered != view.epoch and (found := await self._silent(view, "")).ended:
            return found  # nobody would answer
        try:
            reply = await self._client.send("status", patience_s=patience_s)
        except NoAnswerError as silence:
            self._answered = 0
            return await self._silent(view, str(silence))
        self._answered = reply.answer.incarnation
        return RegionReading(await read_manifest(self._store, self._region), reply)

    async def _silent(self, view: ManifestView, why: str) -> RegionReading:
        """Return the reading of a region whose driver does not answer, with the last report of any."""
        records = await newest_records(self._store, answers_directory(self._region))
        reports = [
            one for one in records if isinstance(one, Answer) and {"state", "workers"} <= one.result.keys()
        ]
        found = RegionReading(view, None, why, reports[-1] if reports else None)
        return replace(found, silence=_end_text(found.last_report)) if found.ended else found


def _state_of(report: Answer) -> RegionState:
    return RegionState(report.result["state"])


def _end_text(report: Answer | None) -> str:
    assert report is not None
    reason = f": {report.result['reason']}" if report.result["reason"] else ""
    return f"driver {report.driver} ended region {report.region} as {_state_of(report).value}{reason}"
