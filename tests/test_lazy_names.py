"""The names of packages that are imported on first use: all there, and imported when they are used."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import checkpoint
import dataflow
import dos_client
import journal

lazy = pytest.mark.parametrize(
    "package", [dos_client, journal, checkpoint, dataflow], ids=lambda one: one.__name__
)


@lazy
def test_the_names_for_type_checkers_and_for_those_who_run_are_the_same(package: ModuleType) -> None:
    tree = ast.parse(Path(str(package.__file__)).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    named = {
        str(one.module): tuple(alias.name for alias in one.names)
        for one in checked.body
        if isinstance(one, ast.ImportFrom)
    }
    assert named == package.MODULES
    assert sorted(name for names in named.values() for name in names) == sorted(package.__all__)


@lazy
def test_every_name_is_that_of_its_module(package: ModuleType) -> None:
    for module, names in package.MODULES.items():
        for name in names:
            assert getattr(package, name) is getattr(importlib.import_module(module), name)
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="has no attribute 'Grahp'"):
        _ = package.Grahp


@pytest.mark.parametrize(
    ("wanted", "not_needed"),
    [
        ("from dataflow import open_producer", "dataflow.graph.builder"),
        ("import spark_integration.data_source", "spark_integration.writing.committing"),
        ("import spark_integration.data_source", "pandas"),
        ("import spark_integration.reading.batch_reader", "dos_client.membership.replacing"),
        ("import spark_integration.reading.batch_reader", "journal.files"),
    ],
)
def test_what_is_not_needed_is_not_imported(wanted: str, not_needed: str) -> None:
    program = f"import sys; {wanted}; print({not_needed!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
