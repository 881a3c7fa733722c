"""`frame_methods.pyi` has the signatures of the installed PySpark, for type checkers and editors."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

import spark_integration
from spark_integration.frame_class import METHODS, MethodClass

STUB: Final = Path(spark_integration.__file__).parent / "frame_methods.pyi"
HEAD: Final = '''\
"""Methods of `DataFrame` that return a frame, with the signatures of PySpark. Generated: `./run test
tests/spark_integration/test_frame_stub.py --rewrite` writes this file. What the methods do is in
`frame_class.py`; at run time there is no such module.
"""

'''
FRAME: Final = "RegionFrame"
DEFINED: Final = {MethodClass.STATEFUL, MethodClass.OWN, MethodClass.REFUSED}
"""The methods of these classes are not generated from their names: they have types in `frame_class.py`."""


class _Plain(ast.NodeTransformer):
    """Annotations without quotes."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.parse(node.value, mode="eval").body if isinstance(node.value, str) else node


class _Returned(_Plain):
    """The same of what a method returns, which is a frame."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        found = super().visit_Constant(node)
        return ast.Name(FRAME) if isinstance(found, ast.Name) and found.id == "DataFrame" else found


def _signature(method: ast.FunctionDef, *, is_overload: bool) -> str:
    for one in ast.walk(method.args):
        if isinstance(one, ast.arg) and one.annotation is not None:
            one.annotation = _Plain().visit(one.annotation)
    method.returns = _Returned().visit(method.returns)
    method.args.defaults = [ast.Constant(...) for _ in method.args.defaults]
    method.args.kw_defaults = [one and ast.Constant(...) for one in method.args.kw_defaults]
    method.body = [ast.Expr(ast.Constant(...))]
    method.decorator_list = [ast.Name("overload")] if is_overload else []
    text = ast.unparse(ast.fix_missing_locations(method)).replace(":\n    ...", ": ...")
    return "".join(f"    {line}\n" for line in text.splitlines())


def _imports(tree: ast.Module, used: set[str]) -> Iterator[str]:
    """Imports of a module that the names need."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.col_offset <= 4 and node.module:
            names = [one for one in node.names if (one.asname or one.name) in used]
            for one in names:
                used.discard(one.asname or one.name)
            if names:
                yield ast.unparse(ast.ImportFrom(node.module, names, 0))


def made() -> str:
    module = import_module("pyspark.sql.dataframe")
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    (parent,) = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == "DataFrame"]
    by_name: dict[str, list[ast.FunctionDef]] = {}
    texts = {}
    for node in parent.body:
        if isinstance(node, ast.Assign) and ast.unparse(node) == "orderBy = sort":
            texts["sort "] = "    orderBy = sort\n"
        if not isinstance(node, ast.FunctionDef) or METHODS.get(node.name) in {*DEFINED, None}:
            continue
        if node.returns is not None and ast.unparse(_Returned().visit(node.returns)) == FRAME:
            by_name.setdefault(node.name, []).append(node)
    for name, group in by_name.items():
        # A stub has no implementation beside overloads.
        shown = [one for one in group if "overload" in map(ast.unparse, one.decorator_list)] or group
        texts[name] = "".join(_signature(one, is_overload=len(group) > 1) for one in shown)
    body = "".join(text for _, text in sorted(texts.items()))
    used = {one.id for one in ast.walk(ast.parse(f"class X:\n{body}")) if isinstance(one, ast.Name)}
    imports = sorted(_imports(tree, used - {FRAME}))
    ours = [
        "from pyspark.sql.dataframe import DataFrame",
        f"from spark_integration.frame_class import {FRAME}",
    ]
    lines = "\n".join([*imports, *ours])
    return f"{HEAD}{lines}\n\nclass FrameMethods(DataFrame):  # type: ignore[misc]\n{body}"


def test_the_stub_has_the_signatures_of_this_pyspark(pytestconfig: pytest.Config) -> None:
    text = made()
    if pytestconfig.getoption("--rewrite"):
        STUB.write_text(text, encoding="utf-8")
    said = "it is not current; write it with ./run test tests/spark_integration/test_frame_stub.py --rewrite"
    assert STUB.read_text(encoding="utf-8") == text, said
    returning = {MethodClass.ROW, MethodClass.TWO_SIDED, MethodClass.WHOLE, MethodClass.TIME}
    methods = {*re.findall(r"^    (?:def )?(\w+)[( ]", text, re.MULTILINE)}
    assert methods >= {name for name, kind in METHODS.items() if kind in returning}


PROGRAM: Final = """\
import dos
from pyspark.sql import DataFrame

def sold(df: DataFrame) -> DataFrame:
    frame = dos.frame(df)
    selected = frame.select("a", "b").where(frame["a"] > 1).withWatermark("at", "1 hour")
    reveal_type(selected.join(df, "a").named("x"))
    reveal_type(selected.groupBy("a").agg({"b": "sum"}).orderBy("a").limit(3).named("x"))
    frame.withColumn(1, frame["a"])
    frame.filter(a=3)
    return frame.dropDuplicates(["a"])
"""
FOLLOWED: Final = (
    "dos,spark_integration,spark_integration.frame_class,spark_integration.frame_methods,pyspark.sql,"
    "pyspark.sql.column,pyspark.sql.dataframe,pyspark.sql.group"
)
SETTINGS: Final = f"""\
[mypy]
follow_imports = skip
ignore_missing_imports = True
[mypy-{FOLLOWED}]
follow_imports = silent
"""
"""Only what the program needs: all of PySpark takes mypy two minutes."""


def test_a_type_checker_knows_what_a_frame_takes_and_returns(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(STUB.parents[1])},
        capture_output=True,
        text=True,
    )
    revealed = 'Revealed type is "spark_integration.frame_class.RegionFrame"'
    wrong = 'Argument 1 to "withColumn" of "FrameMethods" has incompatible type "int"; expected "str"'
    said = {7: revealed, 8: revealed, 9: wrong, 10: 'Unexpected keyword argument "a" for "filter"'}
    found = [re.match(r"program\.py:(\d+): \w+: (.*)", line) for line in done.stdout.splitlines()]
    texts = {int(one[1]): one[2] for one in reversed(found) if one}
    assert texts.keys() == said.keys(), done.stdout
    for number, text in said.items():
        assert texts[number].startswith(text), done.stdout
