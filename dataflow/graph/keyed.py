"""What a keyed stream can do: the operators that keep something per key.

Rules of this file: methods that users call, one operator each; what it does is in `operators/`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dataflow.operators.aggregate import AggregateSpec
from dataflow.operators.aggregate_functions import Aggregate
from dataflow.operators.base import OperatorSpec
from dataflow.operators.count import CountSpec
from dataflow.operators.count_windows import CountWindow, CountWindowSpec
from dataflow.operators.dedup import DedupSpec, WindowDedupSpec
from dataflow.operators.emitting import declared_side_outputs
from dataflow.operators.group_state import GroupStateSpec, check_mode
from dataflow.operators.join import JoinSpec
from dataflow.operators.map_state import MapStateSpec, OnRow, OnTimer
from dataflow.operators.processor import ProcessorSpec, Takes, check_time_mode, state_columns
from dataflow.operators.top_k import TopKSpec
from dataflow.operators.window_assignment import Tumbling, Window
from dataflow.operators.windows import WindowSpec
from dataflow.schema import parse_schema
from dataflow.state.migration import Migration, parse_state
from dataflow.state.value_store import Place

if TYPE_CHECKING:
    from dataflow.graph.stream import KeyedStream, Stream


class KeyedOperators(ABC):
    """The keyed half of `KeyedStream`."""

    __slots__ = ()

    @abstractmethod
    def _then(self, name: str, spec: OperatorSpec) -> "Stream": ...

    @abstractmethod
    def _keys(self) -> tuple[str, ...]: ...

    @abstractmethod
    def _with(self, other: "KeyedStream", name: str, spec: OperatorSpec) -> "Stream": ...

    def count(self, name: str) -> "Stream":
        """How often each key came: (key columns, count bigint), once a step for each key that came in it.

        Example:

            by_item.count("counts")
        """
        return self._then(name, CountSpec(self._keys()))

    def aggregate(
        self, name: str, window: Window | CountWindow | None = None, /, **aggregates: Aggregate
    ) -> "Stream":
        """What is computed of the rows of each key (`dataflow.operators.aggregate_functions`).

            by_item.aggregate("sold", orders=Count(), income=Sum("price"))
            by_item.aggregate("hourly", Tumbling("at", timedelta(hours=1)), orders=Count())
            by_item.aggregate("smooth", CountWindow("at", 3, slide=1), mean=Mean("price"))

        Without a window, of all its rows so far, once a step for each key that came in it: (key columns, a
        column for each aggregate, by its name). With one, of the rows in each window, once, when the window
        is over: (key columns, window_start, window_end, aggregates). With a CountWindow, of so many rows of
        the key in the order of event time, once the last of them is passed: (key columns, window_number,
        aggregates). Rows that come too late are on the side output "late".
        """
        if window is None:
            return self._then(name, AggregateSpec(self._keys(), tuple(aggregates.items())))
        if isinstance(window, CountWindow):
            return self._then(name, CountWindowSpec(self._keys(), window, tuple(aggregates.items())))
        return self._then(name, WindowSpec(self._keys(), window, tuple(aggregates.items())))

    def dedup(self, name: str, window: Tumbling | None = None, /) -> "Stream":
        """The first row of each key, as soon as it comes; with a window, of each key in each window, and the
        key is forgotten when the window is over. Rows behind that are on the side output "late".

        Of rows that share a key and differ otherwise, the first to come goes on, and which that is depends on
        the order of arrival: take as key all that tells rows apart.

            by_item.dedup("items")
            by_item.dedup("items_of_a_day", Tumbling("at", timedelta(days=1)))
        """
        if window is None:
            return self._then(name, DedupSpec(self._keys()))
        return self._then(name, WindowDedupSpec(self._keys(), window))

    def join(
        self,
        name: str,
        right: "KeyedStream",
        *,
        times: tuple[str, str],
        within: timedelta,
        suffix: str = "_right",
    ) -> "Stream":
        """All pairs of a row of this stream and one of `right` with the same key whose times, in these
        columns, are less than `within` apart: the columns of this one, then those of the other without its
        key; `suffix` is appended to names that both have. Rows that come behind the event time of their
        stream are on the side outputs "late" and "late_right".

            by_item.join(
                "near",
                prices.key_by("prices_by_item", "item"),
                times=("at", "at"),
                within=timedelta(minutes=30),
                suffix="_now",
            )
        """
        spec = JoinSpec((self._keys(), right._keys()), times, within, suffix)  # noqa: SLF001 - of one class
        return self._with(right, name, spec)

    def top_k(self, name: str, window: Tumbling, k: int, *, by: str) -> "Stream":
        """Of each key in each window the `k` rows that are largest in column `by`, largest first, when the
        window is over; those that are equal in it in the order of all columns, nulls last. Rows that come
        behind that are on the side output "late".

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
        state_on: Place = "memory",
        side_outputs: "Mapping[str, str | pa.Schema] | None" = None,
    ) -> "Stream":
        """Functions that keep something for each key: `on_row(row, state)` for each row, in the order of
        event time; `on_timer(key, time, state)` when event time has passed `state.timer`, which either may
        set. Both return or yield rows of `schema`.

        `state.value` is a dict with the columns of the schema `state`, None at first, and forgotten when it
        is None again and no timer is set. `state.timer` is a datetime or None. Late rows are on the side
        output "late". state_version, migrations: when the schema `state` changes (`Migration`).
        side_outputs: side outputs, name -> columns, for which both functions get `emit(port, row)` as their
        last argument. ttl: how long a value is kept in event time, from the last call for its key on.
        state_on: "memory"; or "disk", for more values than fit into it, on the local disk of each worker.

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
        state_on: Place = "memory",
    ) -> "Stream":
        """A function written for Spark's `applyInPandasWithState`, as it is: called with (key, DataFrames,
        GroupState) for each row, in the order of event time, and when a timeout has passed. docs/state.md
        says what is not supported. The other arguments are those of `map_state`.

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
        state_on: Place = "memory",
    ) -> "Stream":
        """A `StatefulProcessor` written for Spark's `transformWithState`, or with takes="pandas" for
        `transformWithStateInPandas`, as it is: `handleInputRows` is called for each row, in the order of
        event time, `handleExpiredTimer` when a timer has passed. docs/state.md says what is not supported.
        The other arguments are those of `map_state`.

            class Numbered:  # made from StatefulProcessor, where there is Spark
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
