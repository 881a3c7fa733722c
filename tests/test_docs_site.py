"""The site of the documentation: it is built without a warning, so that no link or anchor leads nowhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.site_tables import MARKED
from tests.test_repository import ROOT

pytestmark = pytest.mark.timeout(300)


def build(source: Path, into: Path) -> "subprocess.CompletedProcess[str]":
    """Build as `./run docs` does."""
    (line,) = re.findall(r'"\$python" -m sphinx (.*) "\$@" \. build/docs', (ROOT / "run").read_text())
    words = line.replace("docs/site", str(source / "docs" / "site")).split()
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *words, source, into], cwd=ROOT, capture_output=True, text=True
    )


@pytest.mark.long
def test_the_site_is_built_and_has_the_documents_and_the_reference(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path / "site")
    assert (done.returncode, done.stderr) == (0, "")
    site = tmp_path / "site"
    for page in (
        "index",
        "README",
        "protocol",
        "docs/installing",
        "docs/api",
        "docs/decisions/0001-writes-on-the-event-loop",
    ):
        assert (site / f"{page}.html").exists(), page
    assert "Stream.flat_map(" in (site / "docs" / "api.html").read_text()
    assert "dos_region_lag_bytes" in (site / "docs" / "metrics.html").read_text()
    assert "bookkeeper #2908" in (site / "docs" / "other-bugs.html").read_text()
    first = (site / "README.html").read_text()
    assert 'href="docs/installing.html"' in first
    assert "http" not in re.sub(r'<a [^>]*>|xmlns="[^"]*"', "", first.partition("<body>")[0])  # works offline


def test_every_table_that_is_no_markdown_is_on_one_page() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")]
    shown = sorted(name for page in pages for name in MARKED.findall(page) if "." in name)
    files = (*(ROOT / "docs").rglob("*.csv"), *(ROOT / "tests" / "evidence").glob("*.csv"))
    assert [name for name in shown if name.endswith(".csv")] == sorted(
        path.relative_to(ROOT).as_posix() for path in files
    )
    text = "".join(pages)
    assert not [name for name in shown if f"{name.rpartition('/')[2]})" not in text], (
        "without the site: a link"
    )


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    """In a copy with one document and the same settings."""
    site = tmp_path / "docs" / "site"
    site.mkdir(parents=True)
    settings = (ROOT / "docs" / "site" / "conf.py").read_text()
    (site / "conf.py").write_text(
        re.sub(r"^CONTENTS = \(.*?^\).*?$", "CONTENTS = ()", settings, flags=re.M | re.S)
    )
    page = tmp_path / "README.md"
    for text, code in (
        ("# One\n\n[two](#one)\n", 0),
        ("# One\n\n[two](#two)\n", 1),
        ("# One\n\n[x](x.md)\n", 1),
    ):
        page.write_text(text)
        assert build(tmp_path, tmp_path / f"site-{code}").returncode == code, text
