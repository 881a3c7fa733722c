"""Nothing acknowledged through the log is lost, whenever the process or the machine ends."""

import pytest

from tests.dos_server.group_log.small_server import crash_run


# EVIDENCE-OF: P-1, P-2
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_nothing_acknowledged_is_lost(first: int) -> None:
    for seed in range(first, first + 100):
        try:
            assert crash_run(seed) > 1
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
