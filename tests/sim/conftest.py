"""For all tests of the simulator."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_garbage_collection() -> Iterator[None]:
    """A run makes little garbage, and a collection that includes all modules costs a tenth of its time."""
    gc.disable()
    yield
    gc.enable()
