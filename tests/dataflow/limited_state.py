"""A process that keeps a state of 80 MB where it may use 24 MB more: `... limited_state memory | disk`.

What is mapped from files does not count (RLIMIT_DATA): the machine takes it back when it needs memory.
"""

import resource
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from dataflow import CallSink, Graph, InputSource, KeyState
from dataflow.testing import Trial

MIB = 1 << 20
KEYS, KEYS_A_STEP = 2_000, 50


def keep(row: dict[str, Any], state: KeyState) -> Iterator[Any]:
    """40 KB for each key, the same when it is found again."""
    expected = f"{row['key']:08}" * 5_000
    if state.value is not None:
        assert state.value["text"] == expected
        yield row["key"], True
    state.value = {"text": expected}


def trial_of(state_on: Any) -> Trial:
    graph = Graph("wide")
    rows = graph.source("rows", InputSource("rows", "at timestamp, key bigint"))
    timed = rows.event_time("timed", "at", lateness=timedelta(0))
    schema = "key bigint, again boolean"
    timed.key_by("by_key", "key").map_state(
        "wide", keep, time="at", schema=schema, state="text string", state_on=state_on
    ).sink("out", CallSink(print))
    return Trial(graph)


def main(place: str) -> None:
    trial = trial_of(place)
    begin = datetime(2026, 1, 1, tzinfo=UTC)

    def step(number: int) -> None:
        keys = range(number * KEYS_A_STEP, (number + 1) * KEYS_A_STEP)
        at = begin + timedelta(seconds=number)
        trial.step({"rows": [{"at": at, "key": key % KEYS} for key in keys]}, end=number == last)

    last = 2 * KEYS // KEYS_A_STEP - 1
    step(0)
    step(1)
    used = Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]
    limit = int(used) * 1024 + 24 * MIB
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    for number in range(2, last + 1):
        step(number)
    print(trial.counters()[0]["wide"]["keys"], len(trial.rows("out")))


if __name__ == "__main__":
    main(sys.argv[1])
