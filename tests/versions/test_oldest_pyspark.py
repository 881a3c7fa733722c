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
def test_the_main_job_sources_sink_through_and_frames_run_with_the_oldest_pyspark(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    oldest = VERSIONS[0]
    assert oldest.startswith(f"{versions.SUPPORTED['pyspark'].first}.")
    code = run_tests(oldest, tmp_path / "tests", "-m", "every_pyspark", limit_s=1800)
    output = capfd.readouterr().out
    assert code == 0, output[-20_000:]
    passed = re.search(r"(\d+) passed", output)
    assert passed is not None, output
    assert int(passed[1]) >= 14
