"""The recipes of examples/cookbook run on Spark, and docs/cookbook.md shows what they print.

When what they print is meant to change: `./run test tests/spark_integration/test_cookbook.py --rewrite`.
"""

import re
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.cookbook.__main__ import DATA, RECIPES, recipe, run_recipe, shown, written

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(300)]
PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"
CRASHING = "crashing_word_count"


def block(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- output: {name} -->\n```text\n)(.*?)(```)", re.DOTALL)


def test_each_recipe_is_on_the_page_with_its_program_and_its_output() -> None:
    page = PAGE.read_text()
    for name in RECIPES:
        assert f"(../examples/cookbook/{name}.py)" in page
        assert block(name).search(page), f"docs/cookbook.md has no output of {name}"
        assert recipe(name).__doc__.splitlines()[0], name


@pytest.mark.long  # a page of docs
@pytest.mark.parametrize("name", RECIPES)
def test_the_page_shows_what_the_recipe_prints(
    name: str, spark: SparkSession, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    found = shown(run_recipe(spark, name, tmp_path / name))
    if pytestconfig.getoption("rewrite"):
        PAGE.write_text(block(name).sub(lambda part: part[1] + found + part[3], PAGE.read_text()))
    shown_there = block(name).search(PAGE.read_text())
    assert shown_there is not None
    assert shown_there[2] == found
    if name == CRASHING:
        assert (tmp_path / name / "first").exists(), "nobody crashed before the words were exchanged"
        assert (tmp_path / name / "second").exists(), "nobody crashed behind the counts"


def test_the_crashes_leave_no_trace_in_the_page() -> None:
    words = Counter(word for path in (DATA / "poems").iterdir() for word in path.read_text().split())
    true = {"counts": sorted(f"{word}\t{count}" for word, count in words.items())}
    found = block(CRASHING).search(PAGE.read_text())
    assert found is not None
    assert found[2] == shown(true)


def test_of_lines_with_one_key_only_the_last_counts(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-w0000.tsv").write_text("b\t1\na\t1\nb\t2\n")
    (tmp_path / "out" / "part-w0001.tsv").write_text("c\t1\n")
    assert written(tmp_path) == {"out": ["a\t1", "b\t1", "b\t2", "c\t1"]}
    assert written(tmp_path, last_of_key=True) == {"out": ["a\t1", "b\t2", "c\t1"]}
