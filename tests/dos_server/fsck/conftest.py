"""Fixtures of the tests in this folder."""

from pathlib import Path

import pytest

from tests.dos_server.fsck.data_directories import written


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two good objects."""
    return written(tmp_path / "data", "a", "b")
