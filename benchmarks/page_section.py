"""A section of docs/benchmarks.md that one benchmark writes, between two comments.

Text that a person adds after a third comment is kept when the figures are renewed.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "benchmarks.md"


@dataclass(frozen=True, slots=True)
class Section:
    """That of `./run bench NAME`."""

    name: str

    @property
    def begin(self) -> str:
        """The comment that it begins with."""
        return f"<!-- {self.name}: written by ./run bench {self.name} -->"

    @property
    def end(self) -> str:
        """The comment that it ends with."""
        return f"<!-- {self.name}: end -->"

    @property
    def by_hand(self) -> str:
        """The comment behind which a person wrote."""
        return f"<!-- {self.name}: by hand -->"

    def found_in(self, page: str) -> str:
        """The one that a page has, comments included; an empty one if it has none."""
        begin, end = page.find(self.begin), page.find(self.end)
        return page[begin : end + len(self.end)] if 0 <= begin < end else f"{self.begin}\n{self.end}"

    def put_into(self, page: str, text: str) -> str:
        """The page with this text, from comment to comment, instead of its own, and what a person wrote
        there. Raises ValueError if it has no place for it.
        """
        before = self.found_in(page)
        if before not in page:
            raise ValueError(f"docs/benchmarks.md has no line {self.begin!r}: run ./run bench once")
        _, sign, written = before.partition(self.by_hand)
        if sign:
            text = f"{text.removesuffix(self.end).rstrip()}\n\n{sign}{written}"
        return page.replace(before, text)

    def filled(self, text: str, rounds: int, **parts: Any) -> str:
        """The text between its comments, with the date, how often each was measured, and how busy the machine
        was, where it names them; `parts` are its measure's.
        """
        return text.format(
            begin=self.begin,
            end=self.end,
            date=time.strftime("%Y-%m-%d"),
            rounds=rounds_text(rounds),
            load=os.getloadavg()[1],
            **parts,
        )

    def write(self, text: str) -> None:
        """Renew it in the docs. Raises ValueError if they have no place for it."""
        PAGE.write_text(self.put_into(PAGE.read_text(), text))


def rounds_text(rounds: int) -> str:
    """How often each was measured."""
    return "each once" if rounds == 1 else f"medians of {rounds} rounds in turn"
