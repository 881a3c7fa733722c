"""The names of the package: all there, and imported when they are used."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import dataflow


def test_the_names_for_type_checkers_and_for_those_who_run_are_the_same() -> None:
    tree = ast.parse(Path(dataflow.__file__).read_text())
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    named = {
        str(one.module): tuple(alias.name for alias in one.names)
        for one in checked.body
        if isinstance(one, ast.ImportFrom)
    }
    assert named == dataflow._MODULES
    assert sorted(name for names in named.values() for name in names) == sorted(dataflow.__all__)


def test_every_name_is_that_of_its_module() -> None:
    for module, names in dataflow._MODULES.items():
        for name in names:
            assert getattr(dataflow, name) is getattr(importlib.import_module(module), name)
    assert set(dataflow.__all__) <= set(dir(dataflow))
    with pytest.raises(AttributeError, match="has no attribute 'Grahp'"):
        _ = dataflow.Grahp  # type: ignore[attr-defined]


def test_who_produces_rows_imports_no_graph() -> None:
    program = "import sys; from dataflow import open_producer; print('dataflow.graph' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
