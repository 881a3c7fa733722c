"""What a user's operator declares for another number of workers: `redistribute` and `split_by` for its state,
`redistribute_directory` for its files.
"""

from collections.abc import Mapping

import pyarrow as pa

from checkpoint.errors import UnsupportedKeyTypeError
from checkpoint.key_hash import hash_keys
from dataflow.errors import SchemaError, UserFault
from dataflow.operators.user_operator import UserOperator
from dataflow.state.migration import StateHistory
from dataflow.state.moving import Share


def check_redistribution(operator: UserOperator, history: StateHistory | None) -> None:
    """Raise SchemaError if the declaration does not fit the state."""
    name, rule, columns = type(operator).__name__, operator.redistribute, tuple(operator.split_by)
    if _moves_files(operator) and not operator.keeps_files:
        raise SchemaError(f"{name} has redistribute_directory() and keeps no files; write keeps_files = True")
    if not (rule is None or rule in ("split", "union") or callable(rule)):
        raise SchemaError(f"{name} has redistribute = {rule!r}; write 'split', 'union' or a method")
    if history is None and rule is not None:
        raise SchemaError(f"{name} declares redistribute but no state; write state = ...")
    if (rule == "split") != bool(columns):
        raise SchemaError(
            f"{name} has redistribute = {rule!r} and split_by = {columns!r}; 'split' needs columns, and"
            " nothing else uses them"
        )
    if history is None or not columns:
        return
    for column in columns:
        if column not in history.columns.names:
            raise SchemaError(f"{name} splits its state by {column!r}, which is no column of the state")
    try:
        hash_keys([pa.array([], history.columns.field(column).type) for column in columns])
    except UnsupportedKeyTypeError as error:
        raise SchemaError(f"{name} cannot split its state by {', '.join(columns)}: {error}") from None


def check_moves(operator: UserOperator) -> None:
    """Raise UserFault if the operator does not say what another number of workers does with its state and
    its files.
    """
    if operator.state is not None and operator.redistribute is None:
        raise UserFault(
            f"{type(operator).__name__} has a state and does not say how another number of workers divides"
            " it",
            remedy="set redistribute in its class: 'split' with split_by, 'union', or a method",
        )
    if operator.keeps_files and not _moves_files(operator):
        raise UserFault(
            f"{type(operator).__name__} keeps files and does not say how another number of workers divides"
            " them",
            remedy="define redistribute_directory in its class",
        )


def _moves_files(operator: UserOperator) -> bool:
    return type(operator).redistribute_directory is not UserOperator.redistribute_directory


def redistributed(
    operator: UserOperator, states: Mapping[int, pa.RecordBatch], share: Share
) -> pa.RecordBatch:
    """Return the state of one worker by the rule "split" or "union". Raises UserFault without a rule."""
    check_moves(operator)
    schema = next(iter(states.values())).schema
    batches = pa.Table.from_batches(states.values()).combine_chunks().to_batches()
    rows = batches[0] if batches else pa.RecordBatch.from_pylist([], schema)
    if operator.redistribute == "union":
        return rows
    hashes = hash_keys([rows.column(name) for name in operator.split_by])
    return rows.filter(pa.array(share.owns(hashes)))


__all__ = ["check_moves", "check_redistribution", "redistributed"]
