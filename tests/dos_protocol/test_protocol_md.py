"""protocol.md says what the code does: its tables, vectors and diagram are the code's."""

from tests.support.protocol_tables import PROTOCOL, TABLES, with_tables


def test_the_tables_of_protocol_md_are_those_of_the_code() -> None:
    text = PROTOCOL.read_text()
    assert with_tables(text) == text, (
        "run: python -m tests.support.protocol_tables, and review the difference"
    )


def test_every_table_is_visible() -> None:
    text = PROTOCOL.read_text()
    assert [name for name in TABLES if f"<!-- table: {name} -->" not in text] == []
