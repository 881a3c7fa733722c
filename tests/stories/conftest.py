"""A story is a run of the simulator: the same rules hold, so that it goes alike in any process."""

from tests.sim.conftest import no_garbage_collection

__all__ = ["no_garbage_collection"]
