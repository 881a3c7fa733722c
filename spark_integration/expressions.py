"""The expressions behind the Columns of a session, whatever its kind: one interface with two readers.

`catalyst.py` reads those of classic PySpark, `connect.py` those of a client of Spark Connect. Both make the
same tree (`Expression`), of which everything else is decided.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it
from pyspark.util import PythonEvalType

from dataflow.schema import quoted
from spark_integration.core.dividing import Expression, ExpressionKind

GROUPED_FUNCTIONS: Final = frozenset(
    value for name, value in vars(PythonEvalType).items() if "GROUPED_AGG" in name
)
"""Of functions of the user that aggregate."""
_BUILTIN: Final = frozenset({"", "builtin", "system.builtin"})
STATEFUL_PLANS: Final = frozenset(
    [
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsInPandasWithState",
        "FlatMapGroupsWithState",
        "GlobalLimit",
        "Intersect",
        "Except",
        "Join",
        "TransformWithState",
        "TransformWithStateInPySpark",
    ]
)
TWO_SIDED_PLANS: Final = ("Join", "Intersect", "Except")

Replaced: TypeAlias = Callable[[Expression], Column | None]


def state_column(expression: Expression) -> Column | None:
    return F.col(quoted(expression.name)) if expression.kind is ExpressionKind.STATE else None


def known_function(parts: Sequence[str]) -> str:
    """Return the name of a function of Spark in lower case. One of another catalog is not the one of that
    name that Spark has.
    """
    *catalog, name = parts
    return name.lower() if ".".join(catalog).lower() in _BUILTIN else ".".join(parts)


class Expressions(ABC):
    """Reads and makes Columns of a session."""

    @abstractmethod
    def read(self, column: Column) -> Expression:
        """Return the expression of a Column. Nothing is resolved: Spark decides what a name means."""

    @abstractmethod
    def column(self, expression: Expression, replaced: Replaced = state_column) -> Column:
        """Return the Column of an expression; `STATE` stands for the column of that name. replaced: returns
        the Column in place of an expression inside it, or None.
        """

    @abstractmethod
    def stateful_parts(self, df: DataFrame) -> list[str]:
        """Return the names of the parts of a stream's plan that keep state in Spark."""

    @abstractmethod
    def rebinding(self) -> "Rebinding": ...


class Rebinding(ABC):
    """Columns of Spark's own DataFrame (the shadow) inside expressions, replaced by those of the result.

    `sold["mean"]` is a column of the shadow, by an identifier that no other column has. The result of the
    region has another one under the same name.
    """

    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions

    @abstractmethod
    def add(self, shadow: DataFrame, result: DataFrame) -> None:
        """Columns of `shadow` are those of `result` that have their names, except those that are known
        already, and those that both have: they are of another DataFrame, with which both were joined.
        """

    @abstractmethod
    def bound(self, expression: Expression, others: Sequence[DataFrame]) -> Column | None:
        """Return the column of the result for one of the shadow, None for anything else. Raises as
        `rebound`.
        """

    def rebound(self, value: Any, others: Sequence[DataFrame] = ()) -> Any:
        """Return an argument of a call, with columns replaced. others: further DataFrames in the call. Raises
        FrameError for a column of both sides.
        """
        if isinstance(value, Column):
            read = self._expressions.read(value)
            return self._expressions.column(read, lambda one: self.bound(one, others))
        if isinstance(value, (list, tuple)):
            return type(value)(self.rebound(one, others) for one in value)
        if isinstance(value, dict):
            return {key: self.rebound(one, others) for key, one in value.items()}
        return value
