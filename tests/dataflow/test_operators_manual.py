"""Every example of docs/operators.md and docs/state.md runs, as it stands there."""

import re
from pathlib import Path

import pytest

_docs = Path(__file__).parents[2] / "docs"
_text = "".join((_docs / page).read_text(encoding="utf-8") for page in ("operators.md", "state.md"))
_examples = dict(re.findall(r"<!-- example: (\w+) -->\n```python\n(.*?)```", _text, re.DOTALL))


def test_every_example_is_marked() -> None:
    assert _text.count("```python") == len(_examples) > 0


@pytest.mark.parametrize("name", _examples)
def test_the_example_runs(name: str) -> None:
    code = compile(_examples[name], f"the manual, {name}", "exec")
    exec(code, {"__name__": "example"})
