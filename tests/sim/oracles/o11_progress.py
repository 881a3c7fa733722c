"""O11: after the heal, work goes on without a person (P-10). How long is waited for what, `run` says."""

from tests.sim.oracles.oracle import Oracle


class Progress(Oracle):
    """Checks that work continues after the heal."""

    number = "O11"

    def stuck(self, what: str) -> None:
        self.object(what)
