"""Adapts user functions of pandas DataFrames to functions of batches.

`functions.py` checks what such a function returns. Columns are Arrow-backed (`pandas.ArrowDtype`), so that
types survive the conversion: an integer column with nulls stays an integer column.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class OnFrames:
    """Calls `function` with a DataFrame and converts a returned DataFrame or Series to Arrow arrays."""

    function: Callable[..., Any]

    def __call__(self, batch: pa.RecordBatch, *more: Any) -> Any:
        import pandas as pd  # imported late, because only graphs with such functions need pandas

        result = self.function(batch.to_pandas(types_mapper=pd.ArrowDtype), *more)
        if isinstance(result, pd.DataFrame):
            return {str(name): pa.array(result[name], from_pandas=True) for name in result.columns}
        return pa.array(result, from_pandas=True) if isinstance(result, pd.Series) else result
