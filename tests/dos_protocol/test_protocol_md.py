"""protocol.md and its parts say what the code does: their tables, vectors and diagrams are the code's."""

import re

from tests.support.protocol_tables import PAGES, TABLES, with_tables


def test_the_tables_of_protocol_md_are_those_of_the_code() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert with_tables(text) == text, (
            f"{page.name}: run python -m tests.support.protocol_tables, and review the difference"
        )


def test_every_table_is_on_one_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert sorted(re.findall(r"<!-- table: ([\w ]+) -->", text)) == sorted(TABLES)
