"""Edits of state from plain threads, with DataFrames of Spark or pandas, or Arrow tables.

    counts = spark.read.format("dos-state").option("operator", "counts").load("dos://h1,h2,h3/wordcount")
    dos.edit_state(graph, {"counts": counts.where("word = 'teh'").withColumn("_deleted", lit(True))}, ...)

A DataFrame of Spark is collected on the driver: the rows that change must fit into its memory.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import dataflow.editing
from dataflow.editing import StateEdit, collected
from dataflow.graph.builder import Graph
from dos_client.blocking import open_store


def edit_state(
    graph: Graph,
    tables: Mapping[str, Any],
    *,
    store: str,
    name: str | None = None,
    token: bytes = b"",
    to: str = "",
    savepoint: str = "",
    why: str = "",
    allow_republish: bool = False,
    dry_run: bool = False,
) -> StateEdit:
    """Write rows into the state of a stopped region, as `dataflow.editing.edit_state` does.

    The next `run` begins with the edited state. Keys that are not given stay as they are; rows with a column
    `_deleted` that is set delete their keys.

    - `graph`, `name`, `store`, `token`: as for `run`.
    - `tables`: operator -> rows, as a DataFrame or an Arrow table.
    - `to`: the checkpoint whose state is edited; default: the last one.
    - `savepoint`: the name of a savepoint that holds that checkpoint, so that the edit can be taken back.
    - `dry_run`: only validate, and return what would change.

    Raises EditRefusedError if a row is not valid, with nothing changed; and the errors of that function.
    """
    call = partial(
        dataflow.editing.edit_state,
        name=name,
        to=to,
        savepoint=savepoint,
        why=why,
        allow_republish=allow_republish,
        dry_run=dry_run,
    )
    with open_store(store, token=token) as opened:
        return opened.portal.call(call, opened.store, graph, collected(tables))


def bootstrap_state(
    graph: Graph,
    tables: Mapping[str, Any],
    positions: Mapping[str, Any],
    *,
    store: str,
    workers: int,
    name: str | None = None,
    token: bytes = b"",
    why: str = "",
) -> StateEdit:
    """Create a region whose first checkpoint has this state, as `bootstrap_state` of `dataflow.editing`
    does.

    The next `run` of that name begins with it.

    - `graph`, `name`, `store`, `token`: as for `run`.
    - `tables`: operator -> rows, as a DataFrame or an Arrow table; other operators begin without state.
    - `positions`: source -> where it begins: `"first"`, `"latest"`, or split -> position.
    - `workers`: their number in the first checkpoint.

    Raises EditRefusedError if a row or a position is not valid, or the region exists; and the errors of that
    function.
    """
    call = partial(dataflow.editing.bootstrap_state, name=name, workers=workers, why=why)
    with open_store(store, token=token) as opened:
        return opened.portal.call(call, opened.store, graph, collected(tables), positions)


__all__ = ["StateEdit", "bootstrap_state", "edit_state"]
