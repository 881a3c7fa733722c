"""User functions of pandas DataFrames, as functions of batches.

Rules of this file: batch to frame and back; what a function may return is checked by `functions.py`.

Columns are Arrow-backed (`pandas.ArrowDtype`), so that nothing changes on the way: an integer column with
nulls stays one of integers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class OnFrames:
    """Calls `function` with a DataFrame; a DataFrame or Series that it returns becomes Arrow arrays."""

    function: Callable[..., Any]

    def __call__(self, batch: pa.RecordBatch, *more: Any) -> Any:
        import pandas as pd  # only graphs with such functions need it

        result = self.function(batch.to_pandas(types_mapper=pd.ArrowDtype), *more)
        if isinstance(result, pd.DataFrame):
            return {str(name): pa.array(result[name], from_pandas=True) for name in result.columns}
        return pa.array(result, from_pandas=True) if isinstance(result, pd.Series) else result
