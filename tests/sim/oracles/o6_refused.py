"""O6: a take-over finds members that have everything that was acknowledged, or waits for them. It is never
refused permanently while no more is damaged than the promise allows (P-5).
"""

from tests.sim.oracles.oracle import Oracle


class Refused(Oracle):
    """Checks the refusals of take-overs."""

    number = "O6"

    def refused(self, directory: str, why: str) -> None:
        self.object(f"a take-over of {directory} was refused: {why}")
