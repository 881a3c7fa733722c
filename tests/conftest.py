"""What every test shares: hypothesis profiles. Fixtures that start real servers are in `tests/support`."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("near", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", deadline=None, max_examples=2_000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("DOS_TEST_PROFILE", "near"))
