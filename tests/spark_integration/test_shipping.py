"""The user's functions reach executors that cannot import them, and what cannot travel is named at once."""

import dataclasses
import importlib.util
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dataflow
from dos_protocol.errors import DosError
from spark_integration.errors import ExecutorMismatchError
from spark_integration.shipping import executors_have, ship

HELPER = """
FACTOR = 3

class Scale:
    def __init__(self, by):
        self.by = by

def times(x):
    return FACTOR * x
"""
USER = """
import math

import dos_test_helper
from dos_test_helper import Scale

def work(x):
    return dos_test_helper.times(x) + Scale(1).by + math.floor(0.5)
"""


def module(directory: Path, name: str, text: str) -> ModuleType:
    path = directory / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def user(tmp_path: Path) -> Iterator[ModuleType]:
    module(tmp_path, "dos_test_helper", HELPER)
    yield module(tmp_path, "dos_test_user", USER)
    for name in ("dos_test_helper", "dos_test_user"):
        del sys.modules[name]


def load_elsewhere(data: bytes, expression: str) -> str:
    """Unpickle in a process that knows none of the modules, and say what the expression gives."""
    program = f"import pickle, sys\nvalue = pickle.load(sys.stdin.buffer)\nprint({expression})"
    done = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def test_a_function_of_a_file_that_executors_do_not_have_travels_with_all_that_it_uses(
    user: ModuleType,
) -> None:
    assert load_elsewhere(ship(user.work, "work"), "value(5)") == "16"


def test_a_plain_pickle_would_not_have_done(user: ModuleType) -> None:
    with pytest.raises(AssertionError, match="No module named 'dos_test_user'"):
        load_elsewhere(pickle.dumps(user.work), "value(5)")


def test_modules_are_sent_by_name_again_afterwards(user: ModuleType) -> None:
    before = len(ship(user.work, "work"))
    assert len(pickle.dumps(user.work)) < before / 4


def test_several_threads_send_functions_of_one_file_at_a_time(user: ModuleType) -> None:
    together = threading.Barrier(4)

    def shipped(_: int) -> bytes:
        together.wait()
        data = [ship(user.work, "the graph") for _ in range(25)]
        assert len({*data}) == 1
        return data[0]

    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(shipped, range(4))]
    assert all(b"FACTOR" in data for data in found), "by value"


def test_classes_and_their_objects_travel_too(user: ModuleType) -> None:
    scale: Any = sys.modules["dos_test_helper"].Scale(7)
    assert load_elsewhere(ship(scale, "scale"), "value.by") == "7"


def test_functions_of_installed_packages_go_by_name() -> None:
    assert b"prefix_digest" in ship(sys.modules["dos_protocol.digests"].prefix_digest, "it")
    assert len(ship(subprocess.run, "it")) < 100


@pytest.mark.parametrize(
    ("name", "known"), [("json", True), ("pyspark", True), ("dos_protocol", True), ("dos_test_user", False)]
)
def test_executors_have_python_and_what_is_installed_and_nothing_else(
    user: ModuleType, name: str, known: bool
) -> None:
    assert executors_have(sys.modules.get(name) or importlib.import_module(name)) is known


def test_what_cannot_be_sent_is_refused_with_a_remedy() -> None:
    lock = threading.Lock()

    def holds_a_lock(x: int) -> int:
        with lock:
            return x

    with pytest.raises(DosError, match=r"the graph 'g' cannot be sent .* inside the function"):
        ship(holds_a_lock, "the graph 'g'")


@dataclasses.dataclass(frozen=True, slots=True)
class Former:
    """A dataclass as a version has it."""

    first: int
    third: str = "3"


@dataclasses.dataclass(frozen=True, slots=True)
class Later:
    """The same, with a field between the others, as the next version has it."""

    first: int
    second: int = 2
    third: str = "3"
    fourth: list[int] = dataclasses.field(default_factory=list)


def carried(value: object, to: type) -> Any:
    """Ship a value, and load it where its class is another version of it."""
    kind = type(value)
    for one in (kind, to):
        one.__module__, one.__qualname__ = "dataflow.carried", "Carried"
    there = ModuleType("dataflow.carried")
    there.__file__ = dataflow.__file__  # what is installed is sent by name
    there.Carried = kind  # type: ignore[attr-defined]
    sys.modules["dataflow.carried"] = there
    try:
        data = ship(value, "a value")
        there.Carried = to  # type: ignore[attr-defined]
        return pickle.loads(data)
    finally:
        del sys.modules["dataflow.carried"]


def test_fields_reach_another_version_of_their_class_by_name() -> None:
    assert carried(Former(1, "x"), Later) == Later(1, 2, "x", [])
    assert carried(Later(7, 2, "y"), Former) == Former(7, "y"), "what has its default value is not stated"


def test_a_field_that_another_version_does_not_know_or_lacks_is_refused_by_name() -> None:
    with pytest.raises(ExecutorMismatchError, match="the driver sets second of Former, which is unknown"):
        carried(Later(7, 9), Former)
    needs = dataclasses.make_dataclass("Needs", [("first", int), ("fifth", int)], slots=True, frozen=True)
    with pytest.raises(ExecutorMismatchError, match="does not state fifth of Needs, which is necessary here"):
        carried(Former(1), needs)
