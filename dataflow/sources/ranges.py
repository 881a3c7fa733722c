"""Sets of whole numbers as text: 3-7,9. Checkpoints name splits that are done so.

Rules of this file: numbers and text.
"""

from collections.abc import Sequence


def text_of_ranges(numbers: Sequence[int]) -> str:
    """Whole numbers in rising order as text: 3-7,9."""
    parts: list[list[int]] = []
    for index in numbers:
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in parts)


def ranges_of_text(text: str) -> set[int]:
    """The numbers in such a text."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
