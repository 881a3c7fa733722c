"""Run every example of docs/operators.md, state.md and sources-and-sinks.md unchanged, and the examples of
docs/operating-regions.md that need no Spark.
"""

import re
from pathlib import Path

import pytest

_docs = Path(__file__).parents[2] / "docs"
_pages = ("operators.md", "state.md", "sources-and-sinks.md")
_text = "".join((_docs / page).read_text(encoding="utf-8") for page in _pages)
_marked = re.compile(r"<!-- example: (\w+) -->\n```python\n(.*?)```", re.DOTALL)
_examples = dict(_marked.findall(_text))
_regions = dict(_marked.findall((_docs / "operating-regions.md").read_text(encoding="utf-8")))


def test_every_example_is_marked() -> None:
    assert _text.count("```python") == len(_examples) > 0


@pytest.mark.parametrize("name", [*_examples, *_regions])
def test_the_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = compile({**_examples, **_regions}[name], f"the manual, {name}", "exec")
    exec(code, {"__name__": "example"})
