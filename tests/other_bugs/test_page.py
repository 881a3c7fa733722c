"""docs/other-bugs.md: each row has a report and a test that exists."""

import re

from tests.test_repository import ROOT

PAGE = (ROOT / "docs" / "other-bugs.md").read_text(encoding="utf-8")
TEST = re.compile(r"`(\w+/test_\w+\.py)::(test_\w+)`")


def test_each_row_of_the_page_names_a_report_and_a_test_that_exists() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| [")]
    assert all(TEST.search(row) and "](https://github.com/" in row for row in rows)
    reports = re.findall(r"\]\((https://\S+)\)", PAGE)
    assert len(set(reports)) == len(reports) >= 30
    for path, name in TEST.findall(PAGE):
        source = (ROOT / "tests" / path).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {name}\(", source, re.M), f"{path} has no {name}"
