"""What every test shares: hypothesis profiles. Fixtures that start real servers are in `tests/support`."""

import os

import pytest
from hypothesis import HealthCheck, settings

for name, examples in (("near", 100), ("long", 2_000)):
    settings.register_profile(
        name, deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile(os.environ.get("DOS_TEST_PROFILE", "near"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's tests come first and stay in one process, where they share a session (`--dist loadgroup`)."""
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)
