"""What is known of a region at one moment: its manifest, and the status that its driver reports."""

from dataclasses import dataclass
from typing import Any

from checkpoint import limits
from checkpoint.chains.manifest_reading import ManifestView, read_manifest
from checkpoint.core.checkpoint_views import checkpoint_row
from checkpoint.errors import NoAnswerError
from checkpoint.requests.client import Reply, RequestClient
from dos_client import Store


@dataclass(frozen=True, slots=True)
class RegionReading:
    """One reading. `reply`: the driver's answer, None if it was not asked or is silent; `silence`: which."""

    view: ManifestView
    reply: Reply | None = None
    silence: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the reading as `dos region status --json` prints it."""
        view, answer = self.view, None if self.reply is None else self.reply.answer
        return {
            "name": view.region,
            "answered": answer is not None,
            "problem": self.silence,
            "driver": None if answer is None else answer.driver,
            "status": None if answer is None else answer.result,
            "manifest": {
                "epoch": view.epoch,
                "checkpoints": len(view.cuts),
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

    async def read(self, *, ask: bool = True, patience_s: float = limits.request_patience_s) -> RegionReading:
        """Read the manifest, and with `ask` the status, for which the driver has `patience_s` seconds.

        The request and its answer are small records in the store. Raises as `read_manifest`, and
        QuorumUnavailableError if the request cannot be written.
        """
        view = await read_manifest(self._store, self._region)
        if not ask:
            return RegionReading(view)
        try:
            reply = await self._client.send("status", patience_s=patience_s)
        except NoAnswerError as silence:
            return RegionReading(view, None, str(silence))
        return RegionReading(await read_manifest(self._store, self._region), reply)
