"""The language of the project: phrases that do not come back, names that exist, one class of a name.

The standard is plain technical English: the subject first, one fact in a sentence, the terms of
docs/GLOSSARY.md. Phrases of `BANNED` were common here once and had to be decoded by readers; the message of
the test says what to write instead.
"""

import ast
import builtins
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator

from checkpoint.core.region import CheckpointCommitted, RegionStatus, ResetReport, SavepointSettled
from dataflow.handle import RegionHandle
from dataflow.sinks.base import SinkWriter
from tests.test_architecture import ROOT, name_of, source_files, tree_of

BANNED: dict[str, str] = {
    r"[Ss]ee the module\b": "describe the class in one line",
    r"Rules of this file:": "say in the module docstring what belongs here, or nothing",
    r"\bgoes? on (?!to\b)": "continues",
    r"\b(?:is|are|was|were|be) told\b": "receives; is notified; knows",
    r"\bsays? so\b": "names the reason; reports it",
    r"\bmakes? good\b": "repairs; completes",
    r"\bis held to\b": "must",
    r"\bjust now\b": "currently",
    r"\bby itself\b(?! or)": "automatically; on its own; alone",
    r"\bput (?:down|out)\b": "stores; writes; emits; publishes",
    r"\bgiven out\b": "emitted; published",
    r"\b[Ww]ho(?:so)?ever\b": "any client; regardless of which",
    r"\b[Ss]omebody\b": "a person; a client; another writer",
    r"\bin the place of\b": "instead of; replaces",
    r"\b(?:letterbox|teller)\b": "a term of docs/GLOSSARY.md",
    r"(?<![.\"'])\b(?:mends?|mended|mending)\b": "repair",
    r"\bcontrol table\b": "broadcast table",
    r"\bpinned cut\b": "savepoint",
}
"""phrase -> what to write instead."""

QUOTED = re.compile(r"`[^`]*`|\([^)]*\.md[^)]*\)|<!--.*?-->|\*\*[A-Z]+\*\*")
"""Code, links, and names on the wire, which stay (docs/GLOSSARY.md, "Stored names")."""

OLD_WORDS = ("docs/GLOSSARY.md", "tests/test_language.py", "tests/mutation/equivalents.toml")
"""Files that name old terms to say what replaced them."""


CUT = re.compile(r"(?<![A-Za-z])cuts?(?![A-Za-z])|Cut(?=[A-Z])|(?<=[a-z])Cut")
"""The theory's word for a checkpoint; protocol.md, checkpoint/core and stored names keep it."""


def prose() -> Iterator[tuple[str, int, str]]:
    """(file, line number, text) of everything people read: documents, docstrings, comments and messages."""
    paths = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *source_files()]
    paths += [path for top in ("tests", "benchmarks", "examples") for path in (ROOT / top).rglob("*.py")]
    for path in sorted(paths):
        name = path.relative_to(ROOT).as_posix()
        if name in OLD_WORDS:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            text = QUOTED.sub("", line)
            yield name, number, re.sub('"[^"]*"', "", text) if path.suffix == ".md" else text


def test_no_text_has_a_banned_phrase() -> None:
    patterns = {re.compile(phrase): instead for phrase, instead in BANNED.items()}
    any_of_them = re.compile("|".join(BANNED))  # one search of each line
    found = [
        f"{name}:{number}: {line.strip()[:100]!r}: write {instead!r}"
        for name, number, line in prose()
        if any_of_them.search(line)
        for pattern, instead in patterns.items()
        if pattern.search(line)
    ]
    assert not found, f"{len(found)} lines\n" + "\n".join(found)


def test_users_read_of_checkpoints_and_not_of_cuts() -> None:
    """In what a user copies, prints or calls: the examples, and the API of the page that lists it."""
    paths = [
        ROOT / "docs" / "api.md",
        *(ROOT / "examples").rglob("*.py"),
        *(ROOT / "examples").rglob("*.ipynb"),
    ]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in sorted(paths)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if CUT.search(line)
    ]
    for shown in (RegionStatus, CheckpointCommitted, ResetReport, SavepointSettled, RegionHandle, SinkWriter):
        found += [f"{shown.__name__}.{name}" for name in dir(shown) if name[0] != "_" and CUT.search(name)]
        found += [
            f"{shown.__name__}: {name}" for name in inspect.signature(shown).parameters if CUT.search(name)
        ]
    assert not found, "write checkpoint:\n" + "\n".join(found)


def public_classes() -> Iterator[tuple[str, str]]:
    for path in source_files():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, name_of(path)


def test_no_two_public_classes_have_one_name() -> None:
    modules = defaultdict(list)
    for name, module in public_classes():
        modules[name].append(module)
    assert not {name: found for name, found in modules.items() if len(found) > 1}


def test_docstrings_and_comments_name_errors_that_exist() -> None:
    """An error that was renamed must be renamed in the text that promises it."""
    known = {*dir(builtins), *(name for name, _ in public_classes())}
    unknown = []
    for path in source_files():
        text = path.read_text(encoding="utf-8")
        used = {node.id for node in ast.walk(tree_of(path)) if isinstance(node, ast.Name)}
        used |= {node.attr for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute)}
        named = set(re.findall(r"\b[A-Z]\w*Error\b", text)) - known - used
        unknown += [f"{path.relative_to(ROOT)} names {one}" for one in named]
    assert not unknown, "\n".join(sorted(unknown))
