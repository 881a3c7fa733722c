"""The state diagrams of protocol.md's section "Store" are those of the tables in the code."""

import re
from pathlib import Path

import pytest

from dos_client.core import claim, replica

PROTOCOL = Path(__file__).parent.parent.parent / "protocol.md"


@pytest.mark.parametrize(("name", "drawn"), [("claim", claim.diagram()), ("replica", replica.diagram())])
def test_the_diagrams_are_drawn_from_the_tables(name: str, drawn: str) -> None:
    text = PROTOCOL.read_text(encoding="utf-8")
    found = re.search(rf"<!-- diagram: {name} -->\s+```mermaid\n(.*?)```", text, re.DOTALL)
    assert found is not None
    assert found[1].strip() == drawn.strip(), f"put this into protocol.md:\n{drawn}"
