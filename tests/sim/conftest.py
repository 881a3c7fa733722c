"""For all tests of the simulator."""

import gc
import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_garbage_collection() -> Iterator[None]:
    """A run makes little garbage, and a collection that includes all modules costs a tenth of its time."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Servers that lose their disks, and circuits whose region has ended, log much."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
