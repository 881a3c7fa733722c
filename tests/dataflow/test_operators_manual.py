"""Run the examples of operators.md, state.md and sources-and-sinks.md, and those of operating-regions.md that
need no Spark.
"""

from pathlib import Path

import pytest

from tests.support.examples import MANUAL, RUN_BY, examples, run_example

EXAMPLES = [
    (page, name)
    for page, files in RUN_BY.items()
    if MANUAL in files
    for name in files[MANUAL] or examples(page)
]


@pytest.mark.parametrize(("page", "name"), EXAMPLES)
def test_the_example_runs(page: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_example(page, name)
