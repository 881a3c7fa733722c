"""A checkpoint that is requested contains everything that was read before the request."""

from functools import partial

import pytest

from checkpoint.coordinator.control import RegionControl
from checkpoint.core.region import RegionSpec, RegionState
from tests.dataflow.test_region_processes import WAIT_S
from tests.dataflow.test_region_scenarios import Scenario, scenario, slowly
from tests.support.polling import until

__all__ = ["scenario"]


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_checkpoint_that_is_under_way_is_not_the_one_that_is_requested(scenario: Scenario) -> None:
    """It may lack rows that were read before the request."""
    graph = scenario.graph(after=partial(slowly, scenario.gate))
    with scenario.running(graph, checkpoint_interval=3600.0) as (handle, watch):
        watch.wait(lambda event: getattr(event, "state", None) is RegionState.RUNNING)
        control = handle._control
        under_way = control.request_checkpoint()
        shell = control._shell
        assert shell is not None
        until(
            lambda: shell.core.checkpoints.pending is not None, "a checkpoint is under way", within_s=WAIT_S
        )
        assert handle.checkpoint(WAIT_S) == under_way + 1


def test_a_number_that_is_requested_is_above_the_last_commit_even_if_the_status_is_older() -> None:
    spec = RegionSpec(name="r", workers=1, store_url="dos://h", job_key=b"k" * 32, operators={})
    control = RegionControl(spec)
    control._checkpoint = 3  # its commit was reported, and the status is updated next
    assert control.request_checkpoint() == 4
