"""`dos-checkpoints`: the committed checkpoints of a region, one row each, as in `dos checkpoint ls` and `dos
checkpoint show`.

This file has the columns; `checkpoint.core.records.views` defines their values.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from checkpoint import Checkpoint, checkpoint_full, checkpoint_row
from checkpoint.chains.manifest_log import read_manifest
from dos_client import Store
from dos_client.blocking import BlockingStore
from spark_integration.core.inside_options import CheckpointsOptions
from spark_integration.inside.table import TableColumns

_POSITION: Final = pa.struct([("epoch", pa.int64()), ("size", pa.int64()), ("digest", pa.string())])
_SPLIT: Final = pa.struct([("position", pa.int64()), ("digest", pa.string()), ("done", pa.bool_())])
_SECONDS: Final = pa.map_(pa.string(), pa.float64())
_EDIT: Final = pa.struct(
    [
        ("by", pa.string()),
        ("timeMs", pa.int64()),
        ("why", pa.string()),
        ("tables", pa.map_(pa.string(), pa.map_(pa.string(), pa.int64()))),
    ]
)
_DEFAULT: Final = pa.schema(
    [
        ("checkpoint", pa.int64()),
        ("step", pa.int64()),
        ("incarnation", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("retained", pa.bool_()),
        ("savepoints", pa.list_(pa.string())),
        ("final", pa.bool_()),
        ("rolledBackTo", pa.int64()),
        ("line", pa.int64()),
        ("edit", _EDIT),
        ("driver", pa.string()),
        ("stateBytes", pa.int64()),
        ("workerStateBytes", pa.list_(pa.int64())),
        ("splits", pa.int64()),
        ("phaseSeconds", _SECONDS),
    ]
)
_EXTRA: Final = pa.schema(
    [
        ("parent", pa.int64()),
        ("fingerprint", pa.string()),
        ("operators", pa.map_(pa.string(), pa.string())),
        (
            "shards",
            pa.list_(
                pa.struct(
                    [
                        ("begin", pa.int64()),
                        ("end", pa.int64()),
                        ("worker", pa.int32()),
                        ("operator", pa.string()),
                        ("replica", pa.int32()),
                    ]
                )
            ),
        ),
        (
            "workers",
            pa.list_(
                pa.struct(
                    [
                        ("worker", pa.int32()),
                        ("state", _POSITION),
                        ("steps", _POSITION),
                        ("sources", pa.map_(pa.string(), pa.map_(pa.string(), _SPLIT))),
                        ("sinks", pa.map_(pa.string(), pa.string())),
                        ("phaseSeconds", _SECONDS),
                    ]
                )
            ),
        ),
    ]
)


class CheckpointsTable:
    """The format `dos-checkpoints`; the methods are those of `InsideTable`."""

    def __init__(self, options: CheckpointsOptions) -> None:
        self.options = options

    @property
    def what(self) -> str:
        return f"checkpoints of region {self.options.region}"

    async def columns(self, store: Store) -> TableColumns:
        del store
        return TableColumns(_DEFAULT, _EXTRA)

    async def parts(self, store: Store) -> Sequence[int]:
        """Return the number of the last checkpoint: later ones are not read."""
        last = (await read_manifest(store, self.options.region)).last
        return [last.number] if last is not None else []

    def read(self, store: BlockingStore, part: int, names: frozenset[str]) -> Iterator[pa.RecordBatch]:
        view = store.portal.call(read_manifest, store.store, self.options.region)
        retained, savepoints = view.retained, view.last.savepoints if view.last is not None else {}
        rows = [
            _row(checkpoint, checkpoint_row(checkpoint, retained, savepoints))
            for checkpoint in view.checkpoints
            if checkpoint.number <= part
        ]
        columns = pa.schema([field for field in (*_DEFAULT, *_EXTRA) if field.name in names] or [_DEFAULT[0]])
        yield from pa.Table.from_pylist(rows, columns).combine_chunks().to_batches()


def _row(checkpoint: Checkpoint, listed: dict[str, Any]) -> dict[str, Any]:
    row = checkpoint_full(checkpoint) | listed
    row["time"] = row["timeMs"] * 1000
    row["shards"] = row["layout"]["ranges"]
    row["workers"] = [_worker(one) for one in row["workers"]]
    for name in ("phaseSeconds", "operators"):
        row[name] = list(row[name].items())
    return row


def _worker(one: dict[str, Any]) -> dict[str, Any]:
    return {
        **one,
        "sources": [(source, list(splits.items())) for source, splits in one["sources"].items()],
        "sinks": [(sink, msgspec.json.encode(prepared).decode()) for sink, prepared in one["sinks"].items()],
        "phaseSeconds": list(one["phaseSeconds"].items()),
    }
