"""The signatures of everything that users call to build a graph, from the source.

docs/api.md has the names; the site (`./run docs`) adds the signatures. `test_api_page.py` checks both.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias, is_typeddict

import dataflow
import dos
from dataflow import testing
from dataflow.graph.plan import GraphPlan
from dataflow.handle import RegionHandle
from dataflow.operators.aggregates import Aggregate
from dataflow.operators.base import OperatorSpec
from dataflow.sinks.sql import SqlSink

PAGE: Final = Path(__file__).parents[2] / "docs" / "api.md"
_WIDTH: Final = 110
Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_HEAD: Final = """\
# Names and signatures

Everything that is called to run, build and test a graph. The site of the documentation (`./run docs`) has all
signatures and docstrings on this page, generated from the source. In Python, `help(dos.Stream.map)` shows the
same. `./run test tests/dataflow/test_api_page.py --rewrite` writes this page.

| what | names | described in |
|---|---|---|
"""
_DESCRIBED: Final = {
    "Regions": "[operating regions](operating-regions.md), [Spark](spark.md#through-a-region)",
    "Graphs": "[operators](operators.md)",
    "Streams": "[operators](operators.md)",
    "Sources": "[sources and sinks](sources-and-sinks.md)",
    "Sinks": "[sources and sinks](sources-and-sinks.md)",
    "Windows": "[windows](operators.md#event-time-and-windows), [count windows](operators.md#count-windows)",
    "Aggregates": "[aggregates](operators.md#aggregates-of-a-key)",
    "Everything else": "[operators](operators.md), [inputs](inputs.md), [sites](sites.md),"
    " [testing](testing.md)",
}
_MACHINERY: Final = ("dataflow.operators.base", "dataflow.sources.base", "dataflow.sinks.base")
"""Modules with the methods of sources and sinks that workers call, and users do not."""
_LEFT_OUT: Final = {
    GraphPlan,
    dataflow.MergedBatch,
    dataflow.MergedOutput,
    dataflow.Producer,
    dataflow.StepRows,
}
"""Classes that users receive and do not create; docs/inputs.md, operators.md and sites.md describe them."""


def api_page() -> str:
    """Return the text of docs/api.md: the names."""
    groups, _ = _grouped()
    rows = [
        f"| {title} | {', '.join(f'`{name}`' for name in names)} | {_DESCRIBED[title]} |"
        for title, names in groups.items()
    ]
    return _HEAD + "\n".join(rows) + "\n"


def signatures() -> str:
    """Return what the site adds to the page."""
    groups, every = _grouped()
    known = _Aliases()
    parts = [""]
    for title, names in groups.items():
        parts.append(f"## {title}\n")
        parts += [_entry(every[name], name, known) for name in names]
    parts.append("## Names of types\n\n```text\n" + "\n".join(known.lines()) + "\n```\n")
    return "\n".join(parts)


def _grouped() -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Return the names by group, and what each name is."""
    groups: dict[str, list[str]] = {
        "Regions": [
            *("run", "run_local", "through", "frame", "RegionOptions", "RegionHandle", "AutoScale"),
            *("edit_state", "bootstrap_state", "fork", "delete_region"),
        ],
        "Graphs": ["Graph"],
        "Streams": ["Stream", "KeyedStream"],
        "Sources": _named("Source"),
        "Sinks": [*_named("Sink"), "SqlSink"],
        "Windows": ["Tumbling", "Sliding", "CountWindow"],
    }
    every = {name: getattr(dataflow, name) for name in dataflow.__all__}
    every |= {name: getattr(dos, name) for name in groups["Regions"] if name != "RegionHandle"}
    every["RegionHandle"] = RegionHandle
    every |= {"SqlSink": SqlSink, "Trial": testing.Trial, "assert_crash_safe": testing.assert_crash_safe}
    taken = {name for names in groups.values() for name in names}
    left = [name for name, one in every.items() if name not in taken and not _is_left_out(one)]
    aggregates = [
        name for name in left if getattr(every[name], "__module__", "") == "dataflow.operators.aggregates"
    ]
    groups["Aggregates"] = aggregates
    groups["Everything else"] = [name for name in left if name not in aggregates]
    return groups, every


def _named(suffix: str) -> list[str]:
    return [name for name in dataflow.__all__ if name.endswith(suffix)]


def _is_left_out(one: Any) -> bool:
    is_error = inspect.isclass(one) and issubclass(one, Exception)
    return is_error or not (inspect.isclass(one) or inspect.isfunction(one)) or one in _LEFT_OUT


class _Aliases:
    """The type aliases in signatures. Aliases of literal texts are written out; the others are listed."""

    def __init__(self) -> None:
        self._listed: dict[str, str] = {}

    def text(self, module: ModuleType, annotation: ast.expr) -> str:
        """Return an annotation of `module` as the page shows it."""
        return ast.unparse(_Shown(module, self).visit(annotation))

    def shown(self, module: ModuleType, name: str) -> ast.expr:
        """Return the expression that the page shows for a name: the name, or the value of the alias."""
        found = _definition_of_alias(module, name)
        if found is None:
            return ast.Name(name)
        where, value = found
        made: ast.expr = _Shown(where, self).visit(value)
        text = ast.unparse(made)
        if _is_choice(value) or self._listed.setdefault(name, text) != text:
            return made
        return ast.Name(name)

    def lines(self) -> list[str]:
        return [f"{name} = {text}" for name, text in sorted(self._listed.items())]


_CLASS_OF = {"StreamT": "Stream", "Self": "KeyedStream"}
"""What stands for a class in `KeyedOperators`, which imports none of the classes of streams."""


class _Shown(ast.NodeTransformer):
    """Removes quotes, replaces aliases, and writes Literal["a", "b"] as 'a' | 'b'."""

    def __init__(self, module: ModuleType, aliases: _Aliases) -> None:
        self._module = module
        self._aliases = aliases

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._aliases.shown(self._module, _CLASS_OF.get(node.id, node.id))

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, str):
            return node
        found: ast.AST = self.visit(ast.parse(node.value, mode="eval").body)
        return found

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if not _is_choice(node):
            return self.generic_visit(node)
        choices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        made = choices[0]
        for choice in choices[1:]:
            made = ast.BinOp(made, ast.BitOr(), choice)
        return made


def _is_choice(node: ast.expr) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal"


@cache
def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _definition_of_alias(module: ModuleType, name: str) -> tuple[ModuleType, ast.expr] | None:
    """Return the module that defines an alias, and its value; None if the project does not define it."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            is_alias = isinstance(node.annotation, ast.Name) and node.annotation.id == "TypeAlias"
            return (module, deepcopy(node.value)) if is_alias and node.value is not None else None
        if isinstance(node, ast.ImportFrom) and any(one.name == name for one in node.names):
            ours = (node.module or "").split(".")[0] in ("dataflow", "checkpoint", "spark_integration")
            return _definition_of_alias(import_module(node.module or ""), name) if ours else None
    return None


def _entry(one: Any, name: str, known: _Aliases) -> str:
    lines = [_call(name, one, known)] if inspect.isfunction(one) else [*_of_class(one, name, known)]
    first, _, rest = _docstring(one).partition("\n\n")
    parts = [f"### `{name}`", first.replace("\n", " "), "```text\n" + "\n".join(lines) + "\n```"]
    return "\n\n".join([*parts, *([f"```text\n{rest}\n```"] if rest else [])]) + "\n"


def _docstring(one: Any) -> str:
    return inspect.cleandoc(one.__doc__ or "")


def _of_class(one: type, name: str, known: _Aliases) -> Iterator[str]:
    if not issubclass(one, (dataflow.Stream, RegionHandle)):  # users receive these
        yield _made(one, name, known)
    is_described = issubclass(one, (OperatorSpec, Aggregate))  # workers call what else it has
    wanted = one.__abstractmethods__ if is_described and inspect.isabstract(one) else None
    if is_described and wanted is None:
        return
    for method, value in _methods(one):
        if wanted is not None and method not in wanted:
            continue
        if isinstance(value, property):
            yield f"{name}.{method}: {_result(value.fget, known)}"
        else:
            yield _call(f"{name}.{method}", getattr(value, "__func__", value), known)
        if text := _docstring(value):
            yield textwrap.indent(text, "    ")


def _methods(one: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that the project defines, in the order of the source. For a
    keyed stream, leave out those of `Stream`.
    """
    bases = one.__mro__
    if one is dataflow.KeyedStream:
        bases = tuple(base for base in bases if not issubclass(dataflow.Stream, base))
    seen: set[str] = set()
    for base in bases:
        if base.__module__.split(".")[0] != "dataflow" or base.__module__ in _MACHINERY:
            continue
        for name, value in vars(base).items():
            is_method = inspect.isfunction(value) or isinstance(value, (classmethod, staticmethod, property))
            if is_method and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, value


def _module_of(one: Any) -> ModuleType:
    return sys.modules[one.__module__]


def _definition(function: Any) -> Definition:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, Definition)
    return node


def _result(function: Any, known: _Aliases) -> str:
    returns = _definition(function).returns
    return "" if returns is None else known.text(_module_of(function), returns)


def _call(name: str, function: Any, known: _Aliases, *, makes: bool = False) -> str:
    node = _definition(function)
    module = _module_of(function)
    given = node.args
    plain = [one for one in (*given.posonlyargs, *given.args) if one.arg not in ("self", "cls")]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults)) + [*given.defaults]
    shown = [_argument(module, one, value, known) for one, value in zip(plain, defaults, strict=True)]
    only_by_place = sum(one.arg not in ("self", "cls") for one in given.posonlyargs)
    if only_by_place:
        shown.insert(only_by_place, "/")
    if given.vararg is not None:
        shown.append("*" + _argument(module, given.vararg, None, known))
    elif given.kwonlyargs:
        shown.append("*")
    for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        shown.append(_argument(module, one, value, known))
    if given.kwarg is not None:
        shown.append("**" + _argument(module, given.kwarg, None, known))
    waits = _way_to_call(node)
    return _wrapped(f"{waits}{name}(", shown, ")" if makes else f") -> {_result(function, known)}")


def _way_to_call(node: Definition) -> str:
    if not isinstance(node, ast.AsyncFunctionDef):
        return ""
    if any("contextmanager" in ast.unparse(one) for one in node.decorator_list):
        return "async with "
    is_generator = node.returns is not None and "AsyncGenerator" in ast.unparse(node.returns)
    return "async for ... in " if is_generator else "await "


def _argument(module: ModuleType, one: ast.arg, value: ast.expr | None, known: _Aliases) -> str:
    annotation = "" if one.annotation is None else f": {known.text(module, one.annotation)}"
    return f"{one.arg}{annotation}" + ("" if value is None else f" = {ast.unparse(value)}")


def _made(one: type, name: str, known: _Aliases) -> str:
    """Return the signature that creates an instance."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
    assert isinstance(node, ast.ClassDef)
    if any(isinstance(part, ast.FunctionDef) and part.name == "__init__" for part in node.body):
        return _call(name, vars(one)["__init__"], known, makes=True)
    shown = []
    for part in node.body if is_dataclass(one) or is_typeddict(one) else ():
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            text = known.text(_module_of(one), part.annotation)
            if text == "KW_ONLY":
                shown.append("*")
            if part.target.id.startswith("_") or "ClassVar" in text:
                continue
            default = "" if part.value is None else f" = {ast.unparse(part.value)}"
            shown.append(f"{part.target.id}: {text}{default}")
    return _wrapped(f"{name}(", shown, ")")


def _wrapped(begin: str, parts: Sequence[str], end: str) -> str:
    """Join the parts with commas, and break lines between two parts where a line would be too long."""
    lines = [begin]
    for index, part in enumerate(parts):
        text = part + (end if index == len(parts) - 1 else ",")
        fits = len(lines[-1]) + 1 + len(text) <= _WIDTH
        space = "" if lines[-1].endswith("(") else " "
        if fits:
            lines[-1] += space + text
        else:
            lines.append("    " + text)
    if not parts:
        lines[-1] += end
    return "\n".join(lines)


__all__ = ["PAGE", "api_page", "signatures"]
