"""Every example of operators.md, state.md and sources-and-sinks.md in docs runs, as it stands there."""

import re
from pathlib import Path

import pytest

_docs = Path(__file__).parents[2] / "docs"
_pages = ("operators.md", "state.md", "sources-and-sinks.md")
_text = "".join((_docs / page).read_text(encoding="utf-8") for page in _pages)
_examples = dict(re.findall(r"<!-- example: (\w+) -->\n```python\n(.*?)```", _text, re.DOTALL))


def test_every_example_is_marked() -> None:
    assert _text.count("```python") == len(_examples) > 0


@pytest.mark.parametrize("name", _examples)
def test_the_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = compile(_examples[name], f"the manual, {name}", "exec")
    exec(code, {"__name__": "example"})
