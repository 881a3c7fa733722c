"""What docs/protocol/journals.md says of this package is what the code does."""

from tests.checkpoint.protocol_tables import JOURNALS, TABLES, with_tables


def test_the_tables_of_protocol_md_are_the_code() -> None:
    text = JOURNALS.read_text(encoding="utf-8")
    for name in TABLES:
        assert f"<!-- table: checkpoint/{name} -->" in text, f"journals.md lost the table {name}"
    assert with_tables(text) == text, (
        "run: python -m tests.checkpoint.protocol_tables, and review the difference"
    )
