"""Every promise of protocol.md has evidence: a test that cites it. And no test cites an unknown promise.

A promise is defined in protocol.md as `**P-n**`. A test that demonstrates it has a comment: `# EVIDENCE-OF:
P-3`, or several with commas. Whether the test is any good the comment cannot show: that is the reviewer's
part.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROMISE = re.compile(r"\*\*(P-\d+)\*\*")
CITATION = re.compile(r"#\s*EVIDENCE-OF:\s*(P-\d+(?:\s*,\s*P-\d+)*)")


def promises_made() -> set[str]:
    return set(PROMISE.findall((ROOT / "protocol.md").read_text(encoding="utf-8")))


def citations() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for group in CITATION.findall(line):
                for promise in re.split(r"\s*,\s*", group):
                    found.setdefault(promise, []).append(f"{path.relative_to(ROOT)}:{number}")
    return found


def in_order(promises: set[str]) -> list[str]:
    return sorted(promises, key=lambda promise: int(promise[2:]))


def test_protocol_makes_promises() -> None:
    made = promises_made()
    assert made, "protocol.md defines no promise as **P-n**"
    assert in_order(made) == [f"P-{n}" for n in range(1, len(made) + 1)], "promises are numbered without gaps"


def test_every_promise_is_cited_by_a_test() -> None:
    without = promises_made() - citations().keys()
    assert not without, f"no test has '# EVIDENCE-OF:' for {in_order(without)}"


def test_no_test_cites_an_unknown_promise() -> None:
    unknown = {promise: where for promise, where in citations().items() if promise not in promises_made()}
    assert not unknown


def test_citations_are_read_with_commas_and_without() -> None:
    assert CITATION.findall("# EVIDENCE-OF: P-3") == ["P-3"]
    assert CITATION.findall("    # EVIDENCE-OF: P-3, P-10  (the size)") == ["P-3, P-10"]
    assert CITATION.findall("# see P-3") == []
