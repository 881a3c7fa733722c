"""Mutants: their names, which do not depend on line numbers, samples of them, and their code.

A mutant is named by its module, the function that it changes, the operator, and the statement's header before
and after. So an edit elsewhere in the file neither renames it nor moves it into or out of a sample. A sample
consists of the mutants with the lowest digests, computed together with the seed.
"""

import ast
import gc
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from tests.mutation.operators import Edit, children, edits_of, is_fixed_by_tests

ROOT = Path(__file__).parent.parent.parent
TEXT_MAX = 400
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
SCOPES = FUNCTIONS | ast.ClassDef


class Key(NamedTuple):
    """The identity of a mutant. `nth`: its index among mutants that are equal otherwise, in source order."""

    module: str
    where: str
    operator: str
    before: str
    after: str
    nth: int = 0


class Mutant(NamedTuple):
    """A mutant. `first`, `last`: the lines of the changed statement. `at_import`: it runs when the module is
    imported, not in a function."""

    key: Key
    first: int
    last: int
    at_import: bool
    edit: Edit

    @property
    def lines(self) -> range:
        return range(self.first, self.last + 1)

    @property
    def id(self) -> str:
        return hashlib.sha256("\0".join(map(str, self.key)).encode()).hexdigest()[:8]

    def __str__(self) -> str:
        key = self.key
        return f"{self.id} {key.module}:{self.first} {key.where}\n    - {key.before}\n    + {key.after}"


class Source:
    """A module, its tree, and all its mutants."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.path = ROOT / module
        self.tree = ast.parse(self.path.read_text(encoding="utf-8"))
        self.mutants: list[Mutant] = []
        self._alike: Counter[Key] = Counter()
        self._walk(self.tree, self.tree, (), inside=False)

    def _walk(self, node: ast.AST, statement: ast.AST, names: tuple[str, ...], *, inside: bool) -> None:
        """`statement`: the innermost one that the node is part of; `inside`: of a function's body."""
        for field, index, operator, old, new in edits_of(node, in_function=inside):
            changed = old if is_statement(old) else statement
            # a default of an argument is computed when the function is defined
            at_import = not inside or isinstance(changed, SCOPES)
            self._add(Edit(operator, node, field, index, new), changed, names, at_import=at_import)
        for field, _, child in children(node):
            if not is_fixed_by_tests(node, field, child):
                continue
            scope = isinstance(child, SCOPES)
            self._walk(
                child,
                child if is_statement(child) else statement,
                (*names, child.name) if scope else names,
                inside=inside or isinstance(child, FUNCTIONS),
            )

    def _add(self, edit: Edit, statement: ast.AST, names: tuple[str, ...], *, at_import: bool) -> None:
        before = header(statement)
        old = edit.put(edit.new)
        after = header(edit.new if old is statement else statement)
        edit.put(old)
        if before == after:  # a part that the header does not show
            before, after = f"{before} {ast.unparse(old)}", f"{before} {ast.unparse(edit.new)}"
        key = Key(self.module, ".".join(names), edit.operator, before[:TEXT_MAX], after[:TEXT_MAX])
        nth = self._alike[key]
        self._alike[key] += 1
        first, last = lines_of(statement)
        self.mutants.append(Mutant(key._replace(nth=nth), first, last, at_import, edit))

    def compiled(self, mutant: Mutant | None) -> CodeType:
        """Return the code of the module with the edit of the mutant."""
        if mutant is None:
            return compile(self.tree, str(self.path), "exec", dont_inherit=True)
        old = mutant.edit.put(ast.copy_location(mutant.edit.new, place_of(mutant)))
        try:
            ast.fix_missing_locations(self.tree)
            return compile(self.tree, str(self.path), "exec", dont_inherit=True)
        finally:
            mutant.edit.put(old)


def place_of(mutant: Mutant) -> ast.AST:
    """Return a node with the line of the replaced node."""
    return ast.Pass(lineno=mutant.first, col_offset=0, end_lineno=mutant.first, end_col_offset=0)


def is_statement(node: ast.AST) -> bool:
    return isinstance(node, ast.stmt | ast.match_case | ast.ExceptHandler)


def header(node: ast.AST) -> str:
    """Return the text of a statement on one line, without the statements inside it."""
    if isinstance(node, ast.Match):
        return (
            f"match {ast.unparse(node.subject)}: {' | '.join(ast.unparse(one.pattern) for one in node.cases)}"
        )
    if isinstance(node, ast.match_case):
        guard = f" if {ast.unparse(node.guard)}" if node.guard is not None else ""
        return f"case {ast.unparse(node.pattern)}{guard}:"
    if isinstance(node, ast.ExceptHandler):
        what = f" {ast.unparse(node.type)}" if node.type is not None else ""
        return f"except{what}: {header(node.body[0])}"
    if isinstance(node, ast.Try):
        return f"try: {header(node.body[0])} finally: {' '.join(header(one) for one in node.finalbody)}"
    if isinstance(node, ast.Module):
        return "module"
    text = ast.unparse(node)
    if isinstance(node, SCOPES):
        rows = text.splitlines()[len(node.decorator_list) :]
        return rows[0]
    if isinstance(node, ast.If | ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith):
        return text.splitlines()[0]
    return " ".join(row.strip() for row in text.splitlines())


def lines_of(node: ast.AST) -> tuple[int, int]:
    """Return the first and last line of a statement's own part."""
    if isinstance(node, ast.match_case):
        return node.pattern.lineno, (node.guard or node.pattern).end_lineno or node.pattern.lineno
    if isinstance(node, ast.Module):
        return 1, 1
    first = node.lineno  # type: ignore[attr-defined]
    body = getattr(node, "body", None) or getattr(node, "cases", None)
    if not isinstance(body, list):
        return first, node.end_lineno  # type: ignore[attr-defined]
    inner = body[0].pattern.lineno if isinstance(body[0], ast.match_case) else body[0].lineno
    return first, max(first, inner - 1) if not isinstance(node, ast.ExceptHandler | ast.Try) else inner


def names_at_import(mutant: Mutant) -> set[str]:
    """Return the names that the mutated statement binds when the module is imported, those that the module
    computes from them, and the class that they belong to."""
    body = source_of(mutant.key.module).tree.body
    names = {mutant.key.where.rpartition(".")[2]} - {""}
    for node in (inner for one in body for inner in (one, *getattr(one, "body", ()))):
        if isinstance(node, SCOPES) and node.lineno == mutant.first:
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and (
            node.lineno == mutant.first or names & identifiers(node.value)
        ):
            names |= identifiers(node.target if isinstance(node, ast.AnnAssign) else ast.Tuple(node.targets))
    return names


def identifiers(node: ast.AST | None) -> set[str]:
    return {one.id for one in ast.walk(node or ast.Pass()) if isinstance(one, ast.Name)}


@cache
def source_of(module: str) -> Source:
    return Source(module)


def sample(mutants: Iterable[Mutant], count: int | None, seed: int) -> list[Mutant]:
    """Return `count` mutants, the same ones for the same seed; None: all."""
    drawn = sorted(mutants, key=lambda one: hashlib.sha256(f"{seed} {one.id}".encode()).digest())
    return drawn if count is None else drawn[:count]


# Running a mutant instead of the original code


def codes_in(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from codes_in(one)


def by_name(functions: Iterable[tuple[str, int, Any]]) -> dict[tuple[str, int], list[Any]]:
    """Return functions by qualified name and the number of functions of that name before them in the file."""
    functions = list(functions)
    lines = {name: sorted({line for one, line, _ in functions if one == name}) for name, _, _ in functions}
    found: dict[tuple[str, int], list[Any]] = {}
    for name, line, function in functions:
        found.setdefault((name, lines[name].index(line)), []).append(function)
    return found


def functions_of(code: CodeType) -> dict[tuple[str, int], list[CodeType]]:
    return by_name((one.co_qualname, one.co_firstlineno, one) for one in codes_in(code))


def can_replace(new: CodeType, old: CodeType) -> bool:
    """Whether the new code can be installed in a process that has imported the module."""
    news, olds = functions_of(new), functions_of(old)
    return news.keys() >= olds.keys() and all(
        [one.co_freevars for one in news[name]] == [one.co_freevars for one in olds[name]] for name in olds
    )


def live_functions() -> dict[str, list[FunctionType]]:
    """Return every function of this process, by file."""
    gc.unfreeze()  # the collector does not list frozen objects
    found: dict[str, list[FunctionType]] = {}
    for one in gc.get_objects():
        if isinstance(one, FunctionType):
            found.setdefault(one.__code__.co_filename, []).append(one)
    return found


def replace_functions(live: Iterable[FunctionType], new: CodeType) -> None:
    """Install the new code in the functions of a file. Tables, decorators and other modules refer to the
    function objects, which stay the same."""
    old = by_name((one.__code__.co_qualname, one.__code__.co_firstlineno, one) for one in live)
    for name, codes in functions_of(new).items():
        for function in old.get(name, ()):
            function.__code__ = codes[0]


class MutantFinder(importlib.abc.MetaPathFinder):
    """An import hook that imports one module from other code."""

    def __init__(self, module: str, code: CodeType) -> None:
        self._path = ROOT / module
        self._name = module.removesuffix(".py").replace("/", ".")
        self._code = code

    def find_spec(
        self, fullname: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        code = self._code

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> CodeType:
                return code

        loader = Loader(fullname, str(self._path))
        return importlib.util.spec_from_file_location(fullname, self._path, loader=loader)

    def install(self) -> None:
        assert self._name not in sys.modules, f"{self._name} was imported before its mutant was installed"
        sys.meta_path.insert(0, self)
