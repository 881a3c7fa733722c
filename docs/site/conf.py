"""How Sphinx makes a site of the Markdown of this repository: `./run docs`.

The Markdown is the source, as it is read in the repository. Added here are the signatures on docs/api, and
the tables that have another source (tests/support/site_tables.py). The source directory is the root of the
repository, so that links between documents are the same in both. A link or an anchor
that leads nowhere is an error.
"""

from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]

project = "DOS"
author = "the DOS developers"
copyright = author  # noqa: A001 - the name that Sphinx reads
html_title = "DOS, the durable object service"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = [
    "README.md", "protocol.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**.md", "tests/README.md",
    "tests/stories/README.md",
]  # fmt: skip
exclude_patterns = [".venv", ".git", "build"]  # not even walked through
source_suffix = {".md": "markdown"}
myst_heading_anchors = 6
html_theme = "alabaster"
html_theme_options = {"page_width": "1100px", "sidebar_width": "260px", "show_powered_by": False}
html_sidebars = {"**": ["about.html", "searchfield.html", "navigation.html"]}
html_copy_source = False
html_static_path: list[str] = []
smartquotes = False
nitpicky = True

CONTENTS = (
    ("Begin", ["docs/HOW-IT-WORKS", "docs/ARCHITECTURE", "docs/PATHS", "docs/installing",
               "docs/cookbook", "docs/GLOSSARY"]),
    ("Programs", ["docs/operators", "docs/state", "docs/sources-and-sinks", "docs/inputs", "docs/spark",
                  "docs/gateway", "docs/journaled-files", "docs/testing", "docs/api"]),
    ("Operation", ["docs/operating-stores", "docs/security", "docs/watching", "docs/operating-regions",
                   "docs/changing-regions", "docs/going-back", "docs/losing-the-store", "docs/sites",
                   "docs/metrics", "docs/looking-into-journals"]),
    ("Background", ["protocol", "docs/protocol/wire", "docs/protocol/store", "docs/protocol/journals",
                    "docs/robustness", "docs/other-bugs", "docs/simulation", "docs/benchmarks",
                    "docs/papers", "docs/benchmarks/replication", "docs/decisions/README",
                    "tests/stories/README", "tests/README", "CONTRIBUTING", "CHANGELOG"]),
)  # fmt: skip
"""The navigation: title -> documents. A document that is missing here is an error of the build."""


def add_contents(app: Sphinx, document: str, source: list[str]) -> None:
    """Append the navigation to the first page and the signatures to docs/api; fill in tables."""
    del app
    if document == root_doc:
        source[0] += "".join(contents(title, each) for title, each in CONTENTS)
    elif document == "docs/decisions/README":
        pages = sorted(path.stem for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
        source[0] += contents("", pages)
    elif document == "docs/api":
        from tests.dataflow.api_page import signatures  # only here: it imports all packages

        source[0] += signatures()
    if "\n<!-- generated: " in source[0]:
        from tests.support.site_tables import with_tables

        source[0] = with_tables(source[0])


def contents(title: str, documents: list[str]) -> str:
    lines = [
        "",
        "```{toctree}",
        ":hidden:",
        *([f":caption: {title}"] if title else []),
        "",
        *documents,
        "```",
        "",
    ]
    return "\n".join(lines)


def add_entrance(app: Sphinx, error: Exception | None) -> None:
    """Lead a browser that opens the directory to the first page."""
    if error is None:
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect what is above. Diagrams are shown as the text that they are."""
    app.connect("source-read", add_contents)
    app.connect("build-finished", add_entrance)
    app.add_lexer("mermaid", TextLexer)
    return {"parallel_read_safe": True}
