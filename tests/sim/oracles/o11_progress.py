"""O11: after the heal, work continues without a person (P-10). `run` has the time limits."""

from tests.sim.oracles.oracle import Oracle


class Progress(Oracle):
    """Checks that work continues after the heal."""

    number = "O11"

    def stuck(self, what: str) -> None:
        self.object(what)
