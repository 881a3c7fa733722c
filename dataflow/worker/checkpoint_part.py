"""What one worker contributes to a checkpoint."""

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dataflow.state.snapshot_spool import SnapshotSpool


@dataclass(slots=True)
class OwnPart:
    """What this worker contributes to checkpoint `checkpoint` at the end of `step`: state changes and
    prepared output.

    `snapshot` receives the whole state as of this checkpoint, if a snapshot was requested.
    """

    checkpoint: int = 0
    snapshot: SnapshotSpool | None = None
    blocks: dict[str, pa.RecordBatch] = field(default_factory=dict)
    sinks: dict[str, Any] = field(default_factory=dict)
    step: int = 0
