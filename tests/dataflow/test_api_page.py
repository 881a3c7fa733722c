"""docs/api.md has every name that users call, and the site has the signatures."""

import inspect
from typing import Any

import pytest

import dataflow
from tests.dataflow.api_page import PAGE, api_page, signatures


def test_the_page_is_current(pytestconfig: pytest.Config) -> None:
    made = api_page()
    if pytestconfig.getoption("--rewrite"):
        PAGE.write_text(made, encoding="utf-8")
    kept = PAGE.read_text(encoding="utf-8")
    said = "docs/api.md is not current; generate it with ./run test tests/dataflow/test_api_page.py --rewrite"
    assert kept.splitlines() == made.splitlines(), said


@pytest.mark.parametrize("kind", [dataflow.Graph, dataflow.Stream, dataflow.KeyedStream])
def test_every_public_method_exists_with_all_its_arguments(kind: Any) -> None:
    """The methods are found in another way than for the page."""
    shown = " ".join(signatures().split())
    for name, method in inspect.getmembers(kind, callable):
        if name.startswith("_"):
            continue
        owner = kind.__name__
        if kind is dataflow.KeyedStream and hasattr(dataflow.Stream, name):
            owner = "Stream"
        begin = shown.index(f"{owner}.{name}(")
        call = shown[begin : shown.index(") ->", begin)]
        assert all(one in call for one in inspect.signature(method).parameters if one != "self"), name


def test_every_source_and_sink_exists() -> None:
    text = signatures()
    for name in (*dataflow.__all__, "SqlSink"):
        if name.endswith(("Source", "Sink")):
            assert f"\n{name}(" in text
            assert f"`{name}`" in PAGE.read_text(encoding="utf-8")
