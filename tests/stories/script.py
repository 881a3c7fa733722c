"""The file of a story: introduction, steps, and below each step what happened.

Three kinds of lines:

    # a comment, or nothing     kept as it is
    a step                      kept as it is
        what happened           four blanks and more: generated again by each replay
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

INDENT = "    "
WIDTH = 120


class StoryError(Exception):
    """A story cannot be replayed: the file, the line and the reason."""

    def __init__(self, path: Path, line: int, why: str) -> None:
        super().__init__(f"{path}:{line}: {why}")


@dataclass(frozen=True)
class Line:
    """One line that is kept. `step`: it is one."""

    number: int
    text: str

    @property
    def step(self) -> bool:
        return bool(self.text) and not self.text.startswith("#")


def parse(path: Path, text: str) -> list[Line]:
    """The lines that were written by hand. Raises StoryError."""
    lines = [
        Line(number, line.rstrip())
        for number, line in enumerate(text.splitlines(), 1)
        if not line.startswith(INDENT)
    ]
    first_step = next((line.number for line in lines if line.step), None)
    if not lines or not lines[0].text.startswith("#"):
        raise StoryError(path, 1, "a story begins with an introduction: lines with #")
    if first_step is None:
        raise StoryError(path, lines[-1].number, "a story has at least one step")
    for line in lines:
        if line.text.startswith(" "):
            raise StoryError(path, line.number, "a step begins at the margin, what happened with four blanks")
    told = [number for number, line in enumerate(text.splitlines(), 1) if line.startswith(INDENT)]
    if told and told[0] < first_step:
        raise StoryError(path, told[0], "something happens before the first step")
    return lines


def render(lines: list[Line], told: Mapping[int, list[str]]) -> str:
    """The whole text: each step, and below it what happened, by the number of its line."""
    written: list[str] = []
    for line in lines:
        written.append(line.text)
        for one in told.get(line.number, []):
            written += wrap(one, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT + "    ")
    return "\n".join(written) + "\n"
