"""What a user makes has an example in its docstring, and the example runs."""

import inspect
from datetime import timedelta
from pathlib import Path

import pytest

import dataflow
from dataflow.operators.base import OperatorSpec

MADE = {
    name: kind
    for name, kind in vars(dataflow).items()
    if inspect.isclass(kind) and issubclass(kind, OperatorSpec) and not inspect.isabstract(kind)
} | {"Tumbling": dataflow.Tumbling}


def example_of(kind: type) -> str:
    """The lines of its docstring that are indented."""
    lines = inspect.cleandoc(kind.__doc__ or "").splitlines()
    return inspect.cleandoc("\n".join(line for line in lines if line.startswith("    ")))


@pytest.mark.parametrize("name", MADE)
def test_a_source_or_sink_shows_how_it_is_made(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    monkeypatch.chdir(tmp_path)
    example = example_of(MADE[name])
    assert example.startswith(f"{name}("), f"{name} has no example"
    made = eval(example, {**vars(dataflow), "timedelta": timedelta})
    assert isinstance(made, MADE[name])
