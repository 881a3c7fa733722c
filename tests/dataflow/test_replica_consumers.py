"""A consumer that is registered at the sites of replicas finds all that it has not acknowledged."""

from collections import Counter

import pytest

from checkpoint import limits
from dataflow.core.event_time import END
from dataflow.merged import MergedBatch, open_merged
from tests.dataflow.test_merged_replicas import TokenReader, run


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "output_segment_bytes_max", 300)
    monkeypatch.setattr(limits, "output_poll_s", 0.0)
    monkeypatch.setattr(limits, "query_publish_s", 0.1)


class Consumer(TokenReader):
    """An application that is registered at the sites. It commits several batches at once, and dies."""

    registered = True

    async def read(self) -> None:
        """Read until it is cancelled, then begin again after the last commit."""
        connect = self._connect_to
        async with open_merged(self._order(), connect, after=self.token, consumer="app") as self.output:
            uncommitted: list[MergedBatch] = []
            async for batch in self.output:
                uncommitted.append(batch)
                if batch.mark_us == END or self.rng.random() < 0.1:
                    for one in uncommitted:
                        if one.table is not None:
                            self._take_rows(one.table)
                        self.mark = one.mark_us
                    uncommitted = []
                    self.token = batch.token
                    self.output.acknowledge(batch.token)
        self.over = True


def test_nothing_is_trimmed_that_a_consumer_has_not_acknowledged() -> None:
    counts = Counter[str]()
    for seed in range(6):
        counts += run(seed, "trim", Consumer)
    assert counts["over"] == 6, "it never waits for rows that no replica has"
    assert min(counts["reader died"], counts["trimmed"]) >= 3
