"""Adapts user functions of pandas DataFrames to functions of batches.

`functions.py` checks what such a function returns. Columns are Arrow-backed (`pandas.ArrowDtype`), so that
types survive the conversion: an integer column with nulls stays an integer column.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dataflow.errors import UserFault


@dataclass(frozen=True, slots=True)
class OnFrames:
    """Calls `function` with a DataFrame and converts a returned DataFrame or Series to Arrow arrays."""

    function: Callable[..., Any]

    def __call__(self, batch: pa.RecordBatch, *more: Any) -> Any:
        import pandas as pd  # imported late, because only graphs with such functions need pandas

        result = self.function(batch.to_pandas(types_mapper=pd.ArrowDtype), *more)
        if isinstance(result, pd.DataFrame):
            return columns_of_frame(result)
        return column_of_series(result) if isinstance(result, pd.Series) else result


def columns_of_frame(frame: Any) -> dict[str, Any]:
    """Return the columns of a DataFrame by name, as `column_of_series`. Raises UserFault."""
    if not frame.columns.is_unique:
        raise UserFault(f"a DataFrame has a column twice: {', '.join(map(str, frame.columns))}")
    return {str(name): column_of_series(frame[name]) for name in frame.columns}


def column_of_series(series: Any) -> Any:
    """Return a Series as an Arrow array, or a list of Python values if it holds objects.

    Values do not change: NaN in a column of numbers of numpy stays NaN, because it may be one.
    """
    if series.dtype == object:
        return [*series]
    return pa.array(series, from_pandas=False)
