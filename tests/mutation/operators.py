"""The edits: for each node of a syntax tree, the nodes that may replace it.

This file contains edits that a programmer could make by mistake and a reviewer could miss. Texts of errors
and logs, assertions, annotations and docstrings are left out, because tests should not depend on them.
"""

import ast
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any, NamedTuple


class Edit(NamedTuple):
    """One replacement: `getattr(parent, field)`, or its element `index`, becomes `new`."""

    operator: str
    parent: ast.AST
    field: str
    index: int | None
    new: ast.AST

    def put(self, node: ast.AST) -> ast.AST:
        """Store `node` at the place of the edit and return the previous node."""
        if self.index is None:
            old = getattr(self.parent, self.field)
            setattr(self.parent, self.field, node)
        else:
            nodes = getattr(self.parent, self.field)
            old, nodes[self.index] = nodes[self.index], node
        return old


BOUNDARIES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip
NEGATIONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}  # fmt: skip
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
METHODS = {"popleft": "pop", "appendleft": "append", "startswith": "endswith", "endswith": "startswith"}
LOGGERS = {"log", "logger"}
NOT_FIXED_BY_TESTS = ("__repr__", "__str__")

Replacements = Iterator[tuple[str, ast.AST]]


def constant(value: object) -> ast.Constant:
    return ast.Constant(value=value)


def of_compare(node: ast.Compare) -> Replacements:
    for i, op in enumerate(node.ops):
        for name, table in (("boundary", BOUNDARIES), ("negation", NEGATIONS)):
            if type(op) in table:
                new = copy(node)
                new.ops = [*node.ops[:i], table[type(op)](), *node.ops[i + 1 :]]
                yield name, new


def of_bool_op(node: ast.BoolOp) -> Replacements:
    yield "and-or", ast.BoolOp(op=ast.Or() if isinstance(node.op, ast.And) else ast.And(), values=node.values)
    for i in range(len(node.values)):
        left = [*node.values[:i], *node.values[i + 1 :]]
        yield "operand", left[0] if len(left) == 1 else ast.BoolOp(op=node.op, values=left)


def of_unary_op(node: ast.UnaryOp) -> Replacements:
    if isinstance(node.op, ast.Not):
        yield "not", node.operand


def of_bin_op(node: ast.BinOp) -> Replacements:
    text = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
    if type(node.op) in ARITHMETIC and not text:
        yield "arithmetic", ast.BinOp(left=node.left, op=ARITHMETIC[type(node.op)](), right=node.right)


def of_constant(node: ast.Constant) -> Replacements:
    value = node.value
    if isinstance(value, bool):
        yield "constant", constant(not value)
    elif isinstance(value, int | float):
        yield "constant", constant(value + 1)
        if value > 1:
            yield "constant", constant(value - 1)


def of_call(node: ast.Call) -> Replacements:
    match node.func:
        case ast.Name(id=name) if name in FUNCTIONS:
            yield (
                "min-max",
                ast.Call(func=ast.Name(FUNCTIONS[name], ast.Load()), args=node.args, keywords=node.keywords),
            )
        case ast.Name(id="sorted"):
            listed = ast.Name("list", ast.Load())
            yield "order", ast.Call(func=listed, args=node.args, keywords=[])
        case ast.Name(id="reversed"):
            yield "order", node.args[0]
        case ast.Attribute(attr=name, value=value) if name in METHODS:
            other = ast.Attribute(value, METHODS[name], ast.Load())
            yield "end", ast.Call(func=other, args=node.args, keywords=node.keywords)


def of_subscript(node: ast.Subscript) -> Replacements:
    match node.slice:
        case ast.Constant(value=0):
            yield "end", ast.Subscript(value=node.value, slice=constant(-1), ctx=node.ctx)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)):
            yield "end", ast.Subscript(value=node.value, slice=constant(0), ctx=node.ctx)
        case ast.Slice(lower=lower, upper=upper, step=step):
            for a, b in ((None, upper), (lower, None)):
                if (a, b) != (lower, upper):
                    yield "slice", ast.Subscript(value=node.value, slice=ast.Slice(a, b, step), ctx=node.ctx)


def of_condition(node: ast.If | ast.IfExp | ast.While) -> Replacements:
    """Keep the parts after the condition: a loop that never ends would only cost time."""
    if isinstance(node.test, ast.Constant):
        return
    for value in (False,) if isinstance(node, ast.While) else (True, False):
        new = copy(node)
        new.test = constant(value)
        yield "condition", new


def of_comprehension(node: ast.comprehension) -> Replacements:
    for i in range(len(node.ifs)):
        new = copy(node)
        new.ifs = [*node.ifs[:i], *node.ifs[i + 1 :]]
        yield "filter", new


def of_handler(node: ast.ExceptHandler) -> Replacements:
    if not isinstance(node.body[0], ast.Raise):
        new = copy(node)
        new.body = [ast.Raise()]
        yield "unhandled", new


def of_try(node: ast.Try) -> Replacements:
    if node.finalbody and (node.handlers or len(node.body) > 0):
        new = copy(node)
        new.finalbody = [ast.Pass()]
        yield "finally", new


def of_match(node: ast.Match) -> Replacements:
    for i in range(len(node.cases) if len(node.cases) > 1 else 0):
        new = copy(node)
        new.cases = [*node.cases[:i], *node.cases[i + 1 :]]
        yield "case", new


def of_case(node: ast.match_case) -> Replacements:
    if node.guard is not None:
        new = copy(node)
        new.guard = None
        yield "guard", new


def of_break(node: ast.Break) -> Replacements:
    yield "loop", ast.Continue()


def of_continue(node: ast.Continue) -> Replacements:
    yield "loop", ast.Break()
    yield "delete", ast.Pass()


def of_aug_assign(node: ast.AugAssign) -> Replacements:
    if type(node.op) in ARITHMETIC:
        yield "arithmetic", ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value)
    yield "delete", ast.Pass()


def of_statement(node: ast.stmt) -> Replacements:
    yield "delete", ast.Pass()


def of_assign(node: ast.Assign) -> Replacements:
    if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
        yield "delete", ast.Pass()


def of_expression(node: ast.Expr) -> Replacements:
    if isinstance(node.value, ast.Call | ast.Await):
        yield "delete", ast.Pass()


OF: dict[type[ast.AST], Callable[[Any], Replacements]] = {
    ast.Compare: of_compare, ast.BoolOp: of_bool_op, ast.UnaryOp: of_unary_op, ast.BinOp: of_bin_op,
    ast.Constant: of_constant, ast.Call: of_call, ast.Subscript: of_subscript, ast.If: of_condition,
    ast.IfExp: of_condition, ast.While: of_condition, ast.comprehension: of_comprehension,
    ast.ExceptHandler: of_handler, ast.Try: of_try, ast.Match: of_match, ast.match_case: of_case,
    ast.Break: of_break, ast.Continue: of_continue, ast.AugAssign: of_aug_assign, ast.Raise: of_statement,
    ast.Delete: of_statement, ast.Return: of_statement, ast.Assign: of_assign, ast.Expr: of_expression,
}  # fmt: skip


def of_table(node: ast.AST) -> Replacements:
    """Tables of modules and classes: each row is a separate rule."""
    if isinstance(node, ast.Dict):
        for i in range(len(node.keys)):
            yield (
                "row",
                ast.Dict([*node.keys[:i], *node.keys[i + 1 :]], [*node.values[:i], *node.values[i + 1 :]]),
            )
    elif isinstance(node, ast.Set) and len(node.elts) > 1:
        for i in range(len(node.elts)):
            yield "row", ast.Set([*node.elts[:i], *node.elts[i + 1 :]])


def edits_of(node: ast.AST, *, in_function: bool) -> Iterator[tuple[str, int | None, str, ast.AST, ast.AST]]:
    """Yield (field, index, operator, old, new) for each child of the node that can be replaced."""
    for field, index, child in children(node):
        if not is_fixed_by_tests(node, field, child):
            continue
        for operator, new in OF.get(type(child), nothing_of)(child):
            if operator == "delete" and not matters(node, field, index, child):
                continue
            yield field, index, operator, child, new
        if not in_function:
            for operator, new in of_table(child):
                yield field, index, operator, child, new


def nothing_of(_: ast.AST) -> Replacements:
    return iter(())


def children(node: ast.AST) -> Iterator[tuple[str, int | None, ast.AST]]:
    for field, value in ast.iter_fields(node):
        if isinstance(value, list):
            yield from ((field, i, one) for i, one in enumerate(value) if isinstance(one, ast.AST))
        elif isinstance(value, ast.AST):
            yield field, None, value


def matters(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> bool:
    """Whether a deletion is a distinct edit. Deleting a last `return` changes nothing. Deleting the whole
    body of an `if` is the same as a false condition."""
    body = getattr(parent, field)
    if isinstance(node, ast.Return) and isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    alone = len(body) == 1 and field == "body" and isinstance(parent, ast.If) and not parent.orelse
    return not alone


def is_fixed_by_tests(parent: ast.AST, field: str, node: ast.AST) -> bool:
    """Return False for a node without behavior, whose children are not edited either."""
    if isinstance(parent, ast.ClassDef) and field == "keywords":
        return False
    if field in ("annotation", "returns", "decorator_list", "bases", "type_params", "exc", "cause", "type"):
        return False
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return False
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return False
        case ast.FunctionDef(name=name) if name in NOT_FIXED_BY_TESTS:
            return False
        case ast.Expr(value=ast.Constant()):
            return False
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name))) if name in LOGGERS:
            return False
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if name in LOGGERS:
            return False
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name.endswith("Error"):
            return False
    return True
