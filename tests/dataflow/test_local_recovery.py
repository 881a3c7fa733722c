"""A lost worker is taken over while the others continue, on real servers and worker processes."""

from pathlib import Path

import pytest

from checkpoint.core.region import ResetReport
from tests.dataflow.support import true_counts
from tests.dataflow.test_region_processes import (
    finished,
    hurry,
    kill,
    running,
    slow_word_count,
    texts,
    three_servers,
)
from tests.dataflow.test_rescaled_regions import counts_in

__all__ = ["texts", "three_servers"]
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]


def test_a_killed_worker_is_taken_over_and_the_others_keep_their_state(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    graph = slow_word_count(texts, tmp_path / "out")
    with running(graph, shared_store, tmp_path, workers=3, recovery="local") as (control, watch):
        watch.cuts(2)
        before = control.status
        kill(control, 1, wipe=True)
        watch.wait(lambda event: isinstance(event, ResetReport))
        watch.cuts(4)
        after = control.status
        assert after.incarnation == before.incarnation, "nobody else was reset"
        assert [one.pid for one in after.workers if one.index != 1] == [
            one.pid for one in before.workers if one.index != 1
        ]
        kill(control, 0, wipe=False)
        watch.wait(lambda event: isinstance(event, ResetReport), 2)
        hurry(tmp_path / "out")
        assert finished(control), control.status
        terms = [reset.term - before.incarnation for reset in control.status.resets]
        assert terms == [1, 2], control.status.resets
    assert counts_in(tmp_path / "out") == dict(true_counts(texts, 3))
