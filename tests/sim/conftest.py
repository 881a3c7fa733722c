"""For all tests of the simulator."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_garbage_is_looked_for() -> Iterator[None]:
    """A run makes little, and looking for it among all modules is a tenth of its time."""
    gc.disable()
    yield
    gc.enable()
