"""O4: one epoch at a time has a quorum. An object has one writer, which appends at its end; and what is
acknowledged to a writer after a newer one took over is among what the newer one found.
"""

from typing import TYPE_CHECKING

from tests.sim.oracles.oracle import Oracle

if TYPE_CHECKING:
    from tests.sim.history import History


class OneWriter(Oracle):
    """Remembers the result of the newest take-over of each directory."""

    number = "O4"

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, frozenset[int]]] = {}

    def wrote(self, history: "History", directory: str, name: str, offset: int, data: bytes) -> None:
        size = len(history.segments[directory, name]) - len(data)
        if size != offset:
            self.object(f"{directory}/{name} is written at {offset}, it has {size} bytes")

    def took_over(self, history: "History", directory: str, epoch: int, found: list[int]) -> None:
        if epoch > self._newest.get(directory, (0, frozenset()))[0]:
            self._newest[directory] = epoch, frozenset(found)

    def acknowledged(self, history: "History", directory: str, number: int) -> None:
        epoch, found = self._newest.get(directory, (0, frozenset()))
        mine = history.line(directory).appended[number]
        if mine < epoch and number not in found:
            self.object(f"epoch {mine} of {directory} received an ack of {number}, epoch {epoch} lacks it")
