"""The methods of a keyed stream: operators that keep state for each key.

Each method adds one operator; the operators themselves are in `operators/`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from dataflow.operators.aggregate import AggregateSpec
from dataflow.operators.aggregates import Aggregate
from dataflow.operators.base import OperatorSpec
from dataflow.operators.count import CountSpec
from dataflow.operators.count_windows import CountWindow, CountWindowSpec
from dataflow.operators.dedup import DedupSpec, WindowDedupSpec
from dataflow.operators.emitting import declared_side_outputs
from dataflow.operators.join import JoinSpec
from dataflow.operators.map_state import MapStateSpec, OnRow, OnTimer
from dataflow.operators.processor import ProcessorSpec, Takes, check_time_mode, state_columns
from dataflow.operators.sorting import TopKSpec
from dataflow.operators.spark_functions import GroupStateSpec, check_mode
from dataflow.operators.window_assignment import Tumbling, Window
from dataflow.operators.windows import WindowSpec
from dataflow.schema import parse_schema
from dataflow.state.migration import Migration, parse_state
from dataflow.state.value_store import StateLocation

StreamT = TypeVar("StreamT")


class KeyedOperators(ABC, Generic[StreamT]):
    """The keyed half of `KeyedStream`. `StreamT`: the class of the streams that the methods return."""

    __slots__ = ()

    @abstractmethod
    def _then(self, name: str, spec: OperatorSpec) -> StreamT: ...

    @abstractmethod
    def _keys(self) -> tuple[str, ...]: ...

    @abstractmethod
    def _with(self, other: Self, name: str, spec: OperatorSpec) -> StreamT: ...

    def count(self, name: str) -> StreamT:
        """Count the rows of each key: (key columns, count bigint), once a step for each key in it.

        Example:

            by_item.count("counts")
        """
        return self._then(name, CountSpec(self._keys()))

    def aggregate(
        self, name: str, window: Window | CountWindow | None = None, /, **aggregates: Aggregate
    ) -> StreamT:
        """Compute aggregates of the rows of each key (`dataflow.operators.aggregates`).

            by_item.aggregate("sold", orders=Count(), income=Sum("price"))
            by_item.aggregate("hourly", Tumbling("at", timedelta(hours=1)), orders=Count())
            by_item.aggregate("smooth", CountWindow("at", 3, slide=1), mean=Mean("price"))

        Without a window: over all rows so far, once a step for each key in it: (key columns, a column for
        each aggregate, by its name). With a window: over its rows, once, when it closes: (key columns,
        window_start, window_end, aggregates). With a CountWindow: over that many rows of the key in
        event-time order, once the last of them has passed: (key columns, window_number, aggregates). Late
        rows go to the side output "late".
        """
        if window is None:
            return self._then(name, AggregateSpec(self._keys(), tuple(aggregates.items())))
        if isinstance(window, CountWindow):
            return self._then(name, CountWindowSpec(self._keys(), window, tuple(aggregates.items())))
        return self._then(name, WindowSpec(self._keys(), window, tuple(aggregates.items())))

    def dedup(self, name: str, window: Tumbling | None = None, /) -> StreamT:
        """Emit the first row of each key when it arrives.

        With a window: the first row of each key in each window; the key is forgotten when the window closes,
        and later rows go to the side output "late".

        If rows with the same key differ otherwise, the first to arrive is emitted, which depends on the order
        of arrival: use all columns that distinguish rows as the key.

            by_item.dedup("items")
            by_item.dedup("items_of_a_day", Tumbling("at", timedelta(days=1)))
        """
        if window is None:
            return self._then(name, DedupSpec(self._keys()))
        return self._then(name, WindowDedupSpec(self._keys(), window))

    def join(
        self,
        name: str,
        right: Self,
        *,
        times: tuple[str, str],
        within: timedelta,
        suffix: str = "_right",
    ) -> StreamT:
        """Join with `right`: all pairs of rows with the same key whose times are less than `within` apart.

        times: the time columns of both streams. The result has the columns of this stream, then those of the
        other without its key; `suffix` is appended to names that both have. Late rows go to the side outputs
        "late" and "late_right".

            by_item.join(
                "near",
                prices.key_by("prices_by_item", "item"),
                times=("at", "at"),
                within=timedelta(minutes=30),
                suffix="_now",
            )
        """
        spec = JoinSpec((self._keys(), right._keys()), times, within, suffix)
        return self._with(right, name, spec)

    def top_k(self, name: str, window: Tumbling, k: int, *, by: str) -> StreamT:
        """Emit the `k` rows with the largest `by` of each key in each window, when the window closes.

        The largest is first. Equal rows are in the order of all columns, nulls last. Late rows go to the side
        output "late".

            by_item.top_k("dearest", Tumbling("at", timedelta(days=1)), 3, by="price")
        """
        return self._then(name, TopKSpec(self._keys(), window, k, by))

    def map_state(
        self,
        name: str,
        on_row: OnRow,
        *,
        time: str,
        schema: "str | pa.Schema",
        state: "str | pa.Schema",
        on_timer: OnTimer | None = None,
        state_version: int = 1,
        migrations: Sequence[Migration] = (),
        ttl: timedelta | None = None,
        state_on: StateLocation = "memory",
        side_outputs: "Mapping[str, str | pa.Schema] | None" = None,
    ) -> StreamT:
        """Call functions that keep state for each key.

        `on_row(row, state)` is called for each row, in event-time order; `on_timer(key, time, state)` after
        the watermark has passed `state.timer`, which both may set. Both return or yield rows of `schema`.

        `state.value` is a dict with the columns of the schema `state`, initially None. The state is deleted
        when it is None again and no timer is set. `state.timer` is a datetime or None. Late rows go to the
        side output "late".

        state_version, migrations: for changes of the schema `state` (`Migration`).
        side_outputs: side outputs, name -> columns; both functions get `emit(port, row)` as last argument.
        ttl: how long a value is kept after the last call for its key, in event time.
        state_on: "memory"; or "disk", the local disk of each worker, for values that do not fit into memory.

            def on_row(row, state):
                state.value = {"n": (state.value["n"] if state.value else 0) + 1}
                state.timer = row["at"] + timedelta(minutes=30)

            def on_timer(key, time, state):
                yield key["item"], state.value["n"]
                state.value = None

            state, rows = "n bigint", "item string, n bigint"
            by_item.map_state("visits", on_row, on_timer=on_timer, time="at", state=state, schema=rows)
        """
        spec = MapStateSpec(
            self._keys(),
            time,
            on_row,
            on_timer,
            parse_schema(schema),
            parse_state(state),
            state_version=state_version,
            migrations=tuple(migrations),
            ttl=ttl,
            state_on=state_on,
            side_outputs=declared_side_outputs(side_outputs),
        )
        return self._then(name, spec)

    def apply_in_pandas_with_state(
        self,
        name: str,
        func: Callable[..., Any],
        outputStructType: Any,  # noqa: N803 - these are Spark's names
        stateStructType: Any,  # noqa: N803
        outputMode: str,  # noqa: N803
        timeoutConf: str = "NoTimeout",  # noqa: N803
        *,
        time: str,
        state_version: int = 1,
        migrations: Sequence[Migration] = (),
        ttl: timedelta | None = None,
        state_on: StateLocation = "memory",
    ) -> StreamT:
        """Call a function written for Spark's `applyInPandasWithState`, unchanged.

        It is called with (key, DataFrames, GroupState) for each row, in event-time order, and after a
        timeout. docs/state.md lists what is not supported. The other arguments are those of `map_state`.

            def numbered(key, frames, state):
                n = (state.get[0] if state.exists else 0) + sum(map(len, frames))
                state.update((n,))
                yield pd.DataFrame({"item": [key[0]], "n": [n]})

            by_item.apply_in_pandas_with_state(
                "numbered", numbered, "item string, n bigint", "n bigint", "append", time="at"
            )
        """
        check_mode(outputMode)
        spec = GroupStateSpec(
            self._keys(),
            time,
            func,
            None,
            parse_schema(outputStructType),
            parse_schema(stateStructType),
            state_version=state_version,
            migrations=tuple(migrations),
            ttl=ttl,
            state_on=state_on,
            timeout=timeoutConf,
        )
        return self._then(name, spec)

    def transform_with_state(
        self,
        name: str,
        processor: Any,
        outputStructType: Any,  # noqa: N803 - these are Spark's names
        outputMode: str,  # noqa: N803
        timeMode: str,  # noqa: N803
        *,
        time: str,
        takes: Takes = "row",
        state_version: int = 1,
        migrations: Sequence[Migration] = (),
        ttl: timedelta | None = None,
        state_on: StateLocation = "memory",
    ) -> StreamT:
        """Run a `StatefulProcessor` written for Spark's `transformWithState`, unchanged.

        With takes="pandas" it is one for `transformWithStateInPandas`. `handleInputRows` is called for each
        row, in event-time order, `handleExpiredTimer` after a timer has passed. docs/state.md lists what is
        not supported. The other arguments are those of `map_state`.

            class Numbered:  # a StatefulProcessor, where Spark is installed
                def init(self, handle):
                    self.n = handle.getValueState("n", "n bigint")

                def handleInputRows(self, key, rows, timerValues):
                    n = (self.n.get()[0] if self.n.exists() else 0) + sum(1 for _ in rows)
                    self.n.update((n,))
                    yield key[0], n

            by_item.transform_with_state(
                "numbered", Numbered(), "item string, n bigint", "append", "none", time="at"
            )
        """
        check_mode(outputMode)
        timers = check_time_mode(timeMode)
        columns = state_columns(processor, timers=timers)
        spec = ProcessorSpec(
            self._keys(),
            time,
            processor.handleInputRows,
            None,
            parse_schema(outputStructType),
            columns,
            state_version=state_version,
            migrations=tuple(migrations),
            ttl=ttl,
            state_on=state_on,
            processor=processor,
            takes=takes,
            timers=timers,
        )
        return self._then(name, spec)
