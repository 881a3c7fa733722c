"""The origin of a batch in a circuit: for error messages, and for the watermark of its split.

The value accompanies a batch from operator to operator, up to the first exchange.
"""

from dataclasses import dataclass, replace

from dataflow.sources.base import SourceBatch, SourceReader


@dataclass(frozen=True, slots=True)
class BatchOrigin:
    """The origin of a batch. `exact`: its rows are the source's rows, one by one."""

    text: str
    reader: SourceReader | None = None
    source: SourceBatch | None = None
    exact: bool = False
    name: str = ""
    """The name of the source."""

    def describe(self, row: int | None) -> str:
        within = "" if row is None or self.exact else f", row {row} of the batch"
        if self.reader is None or self.source is None:
            return f"{self.text}{within}"
        return f"{self.text}, {self.reader.describe(self.source, row if self.exact else None)}{within}"

    def coarse(self) -> "BatchOrigin":
        """Return the origin of an operator's output: other rows of the same origin."""
        return replace(self, exact=False) if self.exact else self
