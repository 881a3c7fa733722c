"""The section of docs/benchmarks.md about autoscale: it is calculated, so it must be as the policy is now."""

import autoscale_page as page
from rows import Effort


def test_the_page_has_the_figures_of_the_present_policy() -> None:
    rows = page.measure_autoscale(Effort(*[0] * 13))
    text, files = page.PLACE.apart(page.section_of(rows))
    written = page.PLACE.found_in((page.DOCS / "benchmarks.md").read_text(encoding="utf-8"))
    assert written == text, "run ./run bench autoscale"
    assert all(path.read_text(encoding="utf-8") == figures for path, figures in files.items())
