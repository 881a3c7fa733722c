"""Orders get the name and the country of their customer from a table; strangers go to a file apart."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

import dos
from examples.cookbook.parsing import read_csv

ORDER = "at timestamp, customer string, price double"


def looked_up(customers: pa.Table) -> Callable[[pa.RecordBatch], dict[str, pa.Array]]:
    """The table travels to the workers with the function. A table that changes comes in as a stream instead:
    `graph.broadcast_table(...)`."""
    table = customers.combine_chunks()

    def look_up(batch: pa.RecordBatch) -> dict[str, pa.Array]:
        rows = pc.index_in(batch["customer"], value_set=table["customer"])
        found = {name: table[name].take(rows).combine_chunks() for name in ("name", "country")}
        return {**{name: batch[name] for name in batch.schema.names}, **found}

    return look_up


def make_graph(data: Path, out: Path) -> dos.Graph:
    graph = dos.Graph("enrichment")
    customers = csv.read_csv(data / "customers.csv")
    orders = read_csv(graph, "orders", data / "orders.csv", ORDER)
    named = orders.map(
        "named", looked_up(customers), schema=f"{ORDER}, name string, country string", takes="batch"
    )
    named.filter("known", lambda batch: pc.is_valid(batch["name"]), takes="batch").sink(
        "out", dos.FileSink(out / "orders")
    )
    named.filter("unknown", lambda batch: pc.is_null(batch["name"]), takes="batch").sink(
        "strangers", dos.FileSink(out / "strangers")
    )
    return graph
