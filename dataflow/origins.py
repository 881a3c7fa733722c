"""Where a batch in a circuit came from: for people, and for the watermark of its split.

Rules of this file: a value that travels beside a batch from operator to operator, up to the first exchange.
"""

from dataclasses import dataclass, replace

from dataflow.sources.base import SourceBatch, SourceReader


@dataclass(frozen=True, slots=True)
class BatchOrigin:
    """Where a batch came from, for people. `exact`: its rows are the source's rows one by one."""

    words: str
    reader: SourceReader | None = None
    source: SourceBatch | None = None
    exact: bool = False
    name: str = ""
    """Of the source."""

    def say(self, row: int | None) -> str:
        if self.reader is None or self.source is None:
            return self.words
        return f"{self.words}, {self.reader.describe(self.source, row if self.exact else None)}"

    def coarse(self) -> "BatchOrigin":
        """The origin of what an operator made of the batch: other rows, the same place."""
        return replace(self, exact=False) if self.exact else self
