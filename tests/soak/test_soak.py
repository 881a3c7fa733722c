"""Nothing grows in ten minutes of real processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(1_500)]


# EVIDENCE-OF: P-6
@pytest.mark.long(ci=False)  # servers and workers for ten minutes
def test_nothing_grows_in_ten_minutes(tmp_path: Path) -> None:
    """A process of its own, because a soak shortens limits for good."""
    options = ("--minutes", "10", "--sampled", "2", "--disturbed", "6", "--report", tmp_path, "--json")
    done = subprocess.run([sys.executable, "-m", "tests.soak", *options], stdout=subprocess.PIPE, check=False)
    assert done.returncode == 0, (tmp_path / "table.md").read_text()
    report = json.loads(done.stdout)
    assert report["grown"] == []
    assert report["checkpoints"] > 200
    assert min(map(len, report["restarts"].values())) > 5
