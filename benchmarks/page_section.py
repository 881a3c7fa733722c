"""A section of docs/benchmarks.md, or of another page, that one benchmark writes, between two comments.

Text that a person adds after a third comment is kept when the figures are updated.
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
    """The section of `./run bench NAME`."""

    name: str
    page: Path = PAGE

    @property
    def begin(self) -> str:
        """The comment at the beginning of the section."""
        return f"<!-- {self.name}: written by ./run bench {self.name} -->"

    @property
    def end(self) -> str:
        """The comment at the end of the section."""
        return f"<!-- {self.name}: end -->"

    @property
    def by_hand(self) -> str:
        """The comment after which text by a person follows."""
        return f"<!-- {self.name}: by hand -->"

    def found_in(self, page: str) -> str:
        """Return the section of a page, including its comments; an empty section if the page has none."""
        begin, end = page.find(self.begin), page.find(self.end)
        return page[begin : end + len(self.end)] if 0 <= begin < end else f"{self.begin}\n{self.end}"

    def put_into(self, page: str, text: str) -> str:
        """Return the page with this text, from comment to comment, as its section. Text by a person is kept.

        Raises ValueError if the page has no such section.
        """
        before = self.found_in(page)
        if before not in page:
            raise ValueError(
                f"{self.page.relative_to(DOCS.parent)} has no line {self.begin!r}: run ./run bench once"
            )
        _, sign, written = before.partition(self.by_hand)
        if sign:
            text = f"{text.removesuffix(self.end).rstrip()}\n\n{sign}{written}"
        return page.replace(before, text)

    def filled(self, text: str, rounds: int, **parts: Any) -> str:
        """Fill in the comments, the date, the number of rounds and the load average that the text names.

        `parts`: further values that the text names.
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
        """Update the section in its page. Raises ValueError if the page has no such section."""
        self.page.write_text(self.put_into(self.page.read_text(), text))


def rounds_text(rounds: int) -> str:
    """Return how often each figure was measured."""
    return "each once" if rounds == 1 else f"medians of {rounds} alternating rounds"
