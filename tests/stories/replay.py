"""Replay one story and compare its text.

It reads a file, performs its steps one after the other, and compares the text with that of the file.
"""

from collections.abc import Callable
from difflib import unified_diff
from pathlib import Path
from typing import Protocol

from tests.stories.markers import play as markers_play
from tests.stories.markers.table import WORDS as MARKERS_WORDS
from tests.stories.region import play as region_play
from tests.stories.region.table import WORDS as REGION_WORDS
from tests.stories.script import StoryError, parse, render
from tests.stories.store import play as store_play
from tests.stories.store.table import WORDS as STORE_WORDS
from tests.stories.words import UnknownStepError, Vocabulary, WrongStepError

FOLDER = Path(__file__).parent


class Play(Protocol):
    """What tells one kind of story. `told`: what happened since it was emptied."""

    told: list[str]

    def end(self) -> None:
        """Nothing runs any more."""


PLAYS: list[tuple[Vocabulary, Callable[[], Play]]] = [
    (STORE_WORDS, store_play.Play),
    (REGION_WORDS, region_play.Play),
    (MARKERS_WORDS, markers_play.Play),
]
"""A kind of story is known by its first step."""


def stories() -> list[Path]:
    """All of them, in the order of their names."""
    return sorted(FOLDER.glob("*.txt"))


def retell(path: Path, text: str) -> str:
    """The same story, with what happens now. Raises StoryError."""
    lines = parse(path, text)
    steps = [line for line in lines if line.step]
    words, make = _kind_of(path, steps[0].number, steps[0].text)
    told: dict[int, list[str]] = {}
    play = make()
    try:
        for step in steps:
            play.told = []
            try:
                words.do(play, step.text)
            except (UnknownStepError, WrongStepError) as error:
                raise StoryError(path, step.number, str(error)) from error
            told[step.number] = play.told
    finally:
        play.end()
    return render(lines, told)


def check(path: Path, *, rewrite: bool = False) -> str:
    """What changed since the file was written, as a diff; '' when nothing did. Raises StoryError."""
    before = path.read_text(encoding="utf-8")
    after = retell(path, before)
    if rewrite and before != after:
        path.write_text(after, encoding="utf-8")
        return ""
    lines = unified_diff(
        before.splitlines(), after.splitlines(), f"{path}", "as it is printed now", lineterm=""
    )
    return "\n".join(lines)


def _kind_of(path: Path, number: int, step: str) -> tuple[Vocabulary, Callable[[], Play]]:
    for words, make in PLAYS:
        if words.begins(step):
            return words, make
    forms = " or ".join(f"'{words.forms[0].form}'" for words, _ in PLAYS)
    raise StoryError(path, number, f"the first step of a story is {forms}, not '{step}'")
