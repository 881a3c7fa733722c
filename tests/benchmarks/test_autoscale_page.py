"""The section of docs/benchmarks.md about autoscale: it is calculated, so it must be as the policy is now."""

import autoscale_page as page
from rows import Effort


def test_the_page_has_the_figures_of_the_present_policy() -> None:
    rows = page.measure_autoscale(Effort(*[0] * 13))
    written = page.PLACE.found_in((page.DOCS / "benchmarks.md").read_text(encoding="utf-8"))
    assert written == page.section_of(rows), "run ./run bench autoscale"
