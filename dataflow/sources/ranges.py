"""Sets of integers as text such as 3-7,9. Checkpoints use it for the numbers of fully read splits."""

from collections.abc import Sequence


def text_of_ranges(numbers: Sequence[int]) -> str:
    """Return integers in increasing order as text: 3-7,9."""
    parts: list[list[int]] = []
    for index in numbers:
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in parts)


def ranges_of_text(text: str) -> set[int]:
    """Return the integers in such a text."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers
