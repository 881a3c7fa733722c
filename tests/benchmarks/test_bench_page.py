"""docs/benchmarks.md as `./run bench` writes it."""

import re
from types import SimpleNamespace

import bench_page as page


def test_the_page_keeps_every_section_and_has_the_text_of_the_program() -> None:
    """Without the first table and the machine, which are measured anew."""
    before = page.FILE.read_text(encoding="utf-8")
    after = page.page_of([], SimpleNamespace(pairs=5, passes=12, baseline_s=60.0), before)
    assert re.findall("<!-- .* -->", after) == re.findall("<!-- .* -->", before)
    first = page.SECTIONS[0].begin
    assert after.partition(first)[2] == before.partition(first)[2]
