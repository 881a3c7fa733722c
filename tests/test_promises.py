"""Every promise of protocol.md and every rule of take-over has evidence in the short part of the tests.

A promise is defined in protocol.md as `**P-n**`. A test that demonstrates it has a comment: `# EVIDENCE-OF:
P-3`, or several with commas. The tests of the rules R1 to R18 are in a table of docs/decisions/0003. Tests
that are marked `long` are not in `./run test` and do not count. Whether a test is any good no comment can
show: that is the reviewer's part.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PROMISE = re.compile(r"\*\*(P-\d+)\*\*")
CITATION = re.compile(r"#\s*EVIDENCE-OF:\s*(P-\d+(?:\s*,\s*P-\d+)*)")
RULES = ROOT / "docs" / "decisions" / "0003-take-over.md"
RULE_ROW = re.compile(r"^\| (R\d+) \| `[^|]*` \| (`tests/[^|]*`) \|$", re.MULTILINE)
RULE_COUNT = 18


class Span(NamedTuple):
    """The lines of a test from its decorators on, and whether it is only in the long part."""

    name: str
    first: int
    last: int
    is_long: bool


def is_long_mark(node: ast.expr) -> bool:
    """Return whether it is `pytest.mark.long`, or a list or call of it. A mark of one value of `parametrize`
    leaves the other values in the short part."""
    if isinstance(node, ast.List | ast.Tuple):
        return any(map(is_long_mark, node.elts))
    return ast.unparse(node.func if isinstance(node, ast.Call) else node) == "pytest.mark.long"


def spans(source: str) -> Iterator[Span]:
    """Yield the tests of a file, each with the comments above it."""
    tree = ast.parse(source)
    marks = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    last = 0
    for node in tree.body:
        end = node.end_lineno or node.lineno
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            is_long = any(map(is_long_mark, [*marks, *node.decorator_list]))
            yield Span(node.name, last + 1, end, is_long)
        last = end


@cache
def file_tests(path: Path) -> tuple[str, tuple[Span, ...]]:
    """Return the text of a file and its tests."""
    source = path.read_text(encoding="utf-8")
    return source, tuple(spans(source))


def promises_made() -> set[str]:
    return set(PROMISE.findall((ROOT / "protocol.md").read_text(encoding="utf-8")))


def citations(*, short_only: bool = False) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines() if CITATION.search(text) else (), 1):
            promises = [one for group in CITATION.findall(line) for one in re.split(r"\s*,\s*", group)]
            if promises and short_only:
                named = [span for span in file_tests(path)[1] if span.first <= number <= span.last]
                if not path.name.startswith("test_") or all(span.is_long for span in named):
                    continue
            for promise in promises:
                found.setdefault(promise, []).append(f"{path.relative_to(ROOT)}:{number}")
    return found


def in_order(promises: set[str]) -> list[str]:
    return sorted(promises, key=lambda promise: int(promise[2:]))


def test_protocol_makes_promises() -> None:
    made = promises_made()
    assert made, "protocol.md defines no promise as **P-n**"
    assert in_order(made) == [f"P-{n}" for n in range(1, len(made) + 1)], "promises are numbered without gaps"


def test_every_promise_is_cited_by_a_test_of_the_short_part() -> None:
    without = promises_made() - citations(short_only=True).keys()
    assert not without, f"no test without the mark `long` has '# EVIDENCE-OF:' for {in_order(without)}"


def test_no_test_cites_an_unknown_promise() -> None:
    unknown = {promise: where for promise, where in citations().items() if promise not in promises_made()}
    assert not unknown


def test_every_rule_of_take_over_has_tests_and_all_of_them_are_in_the_short_part() -> None:
    named = dict(RULE_ROW.findall(RULES.read_text(encoding="utf-8")))
    assert sorted(named, key=lambda rule: int(rule[1:])) == [f"R{n}" for n in range(1, 1 + RULE_COUNT)]
    for rule, text in named.items():
        for file, name in re.findall(r"`(tests/[\w/]+\.py):(\w+)`", text):
            (found,) = [span for span in file_tests(ROOT / file)[1] if span.name == name]
            assert not found.is_long, f"{rule}: {file}:{name} is marked `long`"


def test_citations_are_read_with_commas_and_without() -> None:
    assert CITATION.findall("# EVIDENCE-OF: P-3") == ["P-3"]
    assert CITATION.findall("    # EVIDENCE-OF: P-3, P-10  (the size)") == ["P-3, P-10"]
    assert CITATION.findall("# see P-3") == []


@pytest.mark.parametrize(
    ("source", "is_long"),
    [
        ("# above\n@pytest.mark.long\ndef test_x() -> None: ...", True),
        ("@pytest.mark.trio\n@pytest.mark.long(ci=False)\nasync def test_x() -> None: ...", True),
        ("pytestmark = [pytest.mark.spark, pytest.mark.long]\ndef test_x() -> None: ...", True),
        ("pytestmark = pytest.mark.spark\ndef test_x() -> None: ...", False),
        ("@pytest.mark.parametrize('n', with_long([1], [2]))\ndef test_x() -> None: ...", False),
    ],
)
def test_a_mark_at_a_test_or_at_its_file_makes_it_long(source: str, is_long: bool) -> None:
    (found,) = spans(source)
    assert found.is_long is is_long
