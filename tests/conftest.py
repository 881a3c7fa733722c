"""What every test shares: hypothesis profiles. Fixtures that start real servers are in `tests/support`."""

import os

from hypothesis import HealthCheck, settings

for name, examples in (("near", 100), ("long", 2_000)):
    settings.register_profile(
        name, deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile(os.environ.get("DOS_TEST_PROFILE", "near"))
