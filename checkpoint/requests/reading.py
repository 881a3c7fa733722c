"""What is known of a region at one moment: its manifest, and the status that its driver reports."""

from dataclasses import dataclass, replace
from typing import Any

from checkpoint import limits
from checkpoint.chains.manifest_reading import ManifestView, read_manifest
from checkpoint.core.checkpoint_views import checkpoint_row
from checkpoint.core.region import RegionState, answers_directory
from checkpoint.core.request_records import Answer
from checkpoint.errors import NoAnswerError
from checkpoint.requests.client import Reply, RequestClient
from checkpoint.requests.queue import newest_records
from dos_client import Store


@dataclass(frozen=True, slots=True)
class RegionReading:
    """One reading. `reply`: the driver's answer, None if it was not asked or is silent; `silence`: which.
    `last_report`: of a silent driver, the last status that one has reported to anybody; None: there is none.
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
        """Read the manifest, and with `ask` the status, for which the driver has `patience_s` seconds.

        The request and its answer are small records in the store. A driver that has ended the region is not
        asked: it has written in which state. Raises as `read_manifest`, and
        QuorumUnavailableError if the request cannot be written.
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
