"""Nothing grows in ten minutes of real processes."""

import os
from pathlib import Path
from typing import Final

import pytest

from tests.soak.__main__ import Run

pytestmark = pytest.mark.process
LONG: Final = os.environ.get("DOS_TEST_PROFILE") == "long"


# EVIDENCE-OF: P-6
@pytest.mark.skipif(not LONG, reason="DOS_TEST_PROFILE=long only: servers and workers for ten minutes")
def test_nothing_grows_in_ten_minutes(tmp_path: Path) -> None:
    run = Run(10.0, sampled_s=2.0, disturbed_s=6.0)
    run.go(tmp_path)
    assert not run.report["grown"], run.table()
    assert run.report["checkpoints"] > 200
    assert min(map(len, run.report["restarts"].values())) > 5
