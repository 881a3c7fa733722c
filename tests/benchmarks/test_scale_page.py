"""The section of docs/benchmarks.md about other numbers of workers."""

import scale_page as page
from rows import Row


def test_the_section_has_the_layouts_and_then_the_regions() -> None:
    rows = page.layout_rows()
    measured = Row("9 keys, 2 to 3 workers", "pause 7 ms", "gap 8 ms; whole change 9 ms", "at most 1,000 ms")
    text = page.section_of([*rows, measured], 2)
    first, second = text.split("A region that runs")
    assert all(f"| {row.what} | {row.figure} |" in first for row in rows)
    assert (
        "| 9 keys, 2 to 3 workers | pause 7 ms | gap 8 ms; whole change 9 ms | at most 1,000 ms |" in second
    )
    assert "and back, 2 times" in second
