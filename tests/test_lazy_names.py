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
import dos
import dos.blocking
import dos.testing
import dos_client
import journal

lazy = pytest.mark.parametrize(
    "package",
    [dos_client, journal, checkpoint, dataflow, dos, dos.blocking, dos.testing],
    ids=lambda one: one.__name__,
)


@lazy
def test_every_name_is_that_of_its_module(package: ModuleType) -> None:
    tree = ast.parse(Path(str(package.__file__)).read_text())
    imports = next(node for node in tree.body if isinstance(node, ast.If)).body
    found = []
    for one in imports:
        assert isinstance(one, ast.ImportFrom)
        module = importlib.import_module(str(one.module))
        for alias in one.names:
            assert getattr(package, alias.name) is getattr(module, alias.name)
            found.append(alias.name)
    assert package.__all__ == sorted(found)
    assert set(found) <= set(dir(package))
    with pytest.raises(AttributeError, match="has no attribute 'Grahp'"):
        _ = package.Grahp


@pytest.mark.parametrize(
    ("wanted", "not_needed"),
    [
        ("import dos", "pyspark"),
        ("import dos", "pyarrow"),
        ("import dos", "trio"),
        ("from dos import Graph", "pyspark"),
        ("from dataflow import open_producer", "dataflow.graph.builder"),
        ("import spark_integration.data_source", "spark_integration.writing.committing"),
        ("import spark_integration.data_source", "pandas"),
        ("import spark_integration.reading.readers", "dos_client.membership.replacing"),
        ("import spark_integration.reading.readers", "journal.files"),
        ("import spark_integration.batches", "dataflow.graph.builder"),
        ("import spark_integration.batches", "checkpoint.coordinator"),
    ],
)
def test_what_is_not_needed_is_not_imported(wanted: str, not_needed: str) -> None:
    program = f"import sys; {wanted}; print({not_needed!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
