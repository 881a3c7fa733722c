"""A stopped region goes on with another number of workers, on real servers and real worker processes."""

from pathlib import Path

import pytest

from tests.dataflow.support import rows_of, true_counts
from tests.dataflow.test_region_processes import (
    finished,
    hurry,
    running,
    slow_word_count,
    texts,
    three_servers,
)

__all__ = ["texts", "three_servers"]
pytestmark = pytest.mark.process


def counts_in(directory: Path) -> dict[str, int]:
    """Word -> its last count, wherever its worker was. Fails if any count is missing or there twice."""
    found: dict[str, list[int]] = {}
    for _, (word, count) in rows_of(directory):
        assert word is not None
        assert count is not None
        found.setdefault(word, []).append(int(count))
    for word, counts in found.items():
        assert len(set(counts)) == len(counts), f"{word!r}: a count is there twice: {sorted(counts)}"
    return {word: max(counts) for word, counts in found.items()}


@pytest.mark.usefixtures("forks")
def test_a_stopped_region_goes_on_with_other_numbers_of_workers(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    graph = slow_word_count(texts, tmp_path / "out")
    for workers in (2, 3, 1):
        with running(graph, shared_store, tmp_path, workers=workers) as (control, watch):
            watch.cuts(3)
            assert len(control.status.workers) == workers
    hurry(tmp_path / "out")
    with running(graph, shared_store, tmp_path, workers=5) as (control, _):
        assert finished(control), control.status
    assert counts_in(tmp_path / "out") == dict(true_counts(texts, 3))
