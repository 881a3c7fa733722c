"""A model says of each payment how odd it is; rows reach it as batches, which is what makes it quick."""

from pathlib import Path

import numpy as np
import pyarrow as pa

import dos
from examples.cookbook.parsing import read_csv

PAYMENT = "at timestamp, id bigint, account string, amount double"
WEIGHTS = np.array([0.9, 0.35])
BIAS = -6.0


def score(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """A logistic regression over the logarithm of the amount and the hours from noon. Any model with a
    `predict` for arrays goes here; load it once, outside the function."""
    amount = batch["amount"].to_numpy()
    hours = batch["at"].cast(pa.int64()).to_numpy() / 3_600e6 % 24
    features = np.column_stack([np.log1p(amount), np.abs(hours - 12)])
    odd = 1 / (1 + np.exp(-(features @ WEIGHTS + BIAS)))
    return {"id": batch["id"], "odd": pa.array(np.round(odd, 3))}


def make_graph(data: Path, out: Path) -> dos.Graph:
    graph = dos.Graph("scoring")
    payments = read_csv(graph, "payments", data / "payments.csv", PAYMENT)
    scores = payments.map("scores", score, schema="id bigint, odd double", takes="batch")
    scores.filter("odd", lambda row: row["odd"] >= 0.5).sink("out", dos.FileSink(out / "odd"))
    return graph
