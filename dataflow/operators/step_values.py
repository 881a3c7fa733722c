"""A number as of the end of each recent step, for operators that may run ahead of the checkpoint.

Stage 0 runs ahead: when the checkpoint of a step is collected, its operators may have processed later steps.
So an operator there records its number at the end of each step, and the checkpoint takes the number of its
own step.
"""


class StepValues:
    """The values of one number by step."""

    def __init__(self) -> None:
        self._values: dict[int, int] = {}
        self._selected = 0

    def remember(self, step: int, value: int) -> None:
        """Record the value at the end of this step."""
        self._values[step] = value

    def forget(self, step: int) -> None:
        """Discard the values of steps before this one; no later checkpoint describes them."""
        for old in [one for one in self._values if one < step]:
            del self._values[old]

    def select(self, step: int) -> None:
        """Select the step that the next checkpoint describes."""
        self._selected = step

    def selected(self, default: int) -> int:
        """Return the value of the selected step, `default` if none was recorded."""
        return self._values.get(self._selected, default)
