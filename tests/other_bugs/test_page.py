"""The tables of docs/other-bugs.md: each row has a report and a test. That the test exists is shown by
tests/models/test_decisions.py.
"""

import re

from tests.support.site_tables import MARKED, ROOT, rows_of

TEST = re.compile(r"`\w+/test_\w+\.py::test_\w+`")
REPORT = re.compile(r"\]\((https://github\.com/\S+)\)")


def test_each_row_of_the_page_names_a_report_and_a_test() -> None:
    page = (ROOT / "docs" / "other-bugs.md").read_text(encoding="utf-8")
    rows = [row for name in MARKED.findall(page) for row in rows_of(name)[1:]]
    reports = [report for row in rows for report in REPORT.findall(row[0])]
    assert all(REPORT.search(row[0]) and TEST.search(row[-1]) for row in rows)
    assert len(set(reports)) == len(reports) >= 30
