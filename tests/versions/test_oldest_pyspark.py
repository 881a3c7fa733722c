"""The oldest supported PySpark in each run of all tests: the main job, sources, the sink, `through`, frames.

`./run versions` runs more tests, with the versions between it and the pinned one, too.
"""

import re
from pathlib import Path

import pytest

from spark_integration import versions
from tests.versions.older_spark import VERSIONS, run_tests

pytestmark = [pytest.mark.process, pytest.mark.timeout(1900)]


@pytest.mark.long
def test_the_main_job_sources_sink_through_and_frames_run_with_the_oldest_pyspark(tmp_path: Path) -> None:
    oldest = VERSIONS[0]
    assert oldest.startswith(f"{versions.SUPPORTED['pyspark'].first}.")
    done = run_tests(oldest, tmp_path / "tests", "-m", "every_pyspark")
    assert done.returncode == 0, done.stdout[-20_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    assert int(passed[1]) >= 14
