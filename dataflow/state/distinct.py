"""Approximate distinct counts with the theta sketch of Apache DataSketches. It maps hashes to sketches.

A theta sketch keeps the k smallest hashes it saw, and the next one above them (theta). So it is a function of
the set of values, whatever their order and however often each occurred. HyperLogLog is not used because its
better estimator depends on the order. The stored form is the library's compact form, which its releases in
C++, Java and Python can read.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from checkpoint.key_hash import hash_keys
from dataflow.state.accumulators import Accumulator, present
from dataflow.state.columns import Slots
from dos_protocol.lazy_names import MissingExtraError, install_command


def sketch_library() -> Any:
    """Return the module `datasketches`, which only graphs that use it need. Raises MissingExtraError."""
    try:
        import datasketches
    except ModuleNotFoundError as error:
        missing = MissingExtraError(
            "ApproxDistinct needs the library datasketches, which is not installed",
            remedy=f"{install_command('dataflow')}; Python 3.14 has no release of it: use 3.11 to 3.13",
        )
        missing.name = error.name
        raise missing from None
    return datasketches


class DistinctAccumulator(Accumulator):
    """A compact sketch per slot. Hashes are buffered and added, each once, when the sketches are needed."""

    def __init__(self, name: str, precision: int) -> None:
        self._library = sketch_library()
        self._name = name
        self._precision = precision
        self._sketches: list[Any] = []
        self._waiting: list[tuple[Slots, Any]] = []

    def fields(self) -> list[pa.Field]:
        return [pa.field(self._name, pa.binary())]

    def update(self, slots: Slots, column: pa.Array | None) -> None:
        assert column is not None
        slots, column = present(slots, column)
        if len(slots):
            self._waiting.append((slots, hash_keys([column])))

    def _settle(self) -> None:
        if not self._waiting:
            return
        slots = np.concatenate([slots for slots, _ in self._waiting])
        hashes = np.concatenate([hashes for _, hashes in self._waiting])
        self._waiting = []
        order = np.lexsort((hashes, slots))
        slots, hashes = slots[order], hashes[order]
        new = np.ones(len(slots), np.bool_)
        new[1:] = (slots[1:] != slots[:-1]) | (hashes[1:] != hashes[:-1])
        slots, signed = slots[new], hashes[new].view(np.int64)
        begins = np.flatnonzero(np.r_[True, slots[1:] != slots[:-1]])
        for slot, part in zip(slots[begins].tolist(), np.split(signed, begins[1:]), strict=True):
            sketch = self._library.update_theta_sketch(lg_k=self._precision)
            for value in part.tolist():
                sketch.update(value)
            union = self._library.theta_union(lg_k=self._precision)
            union.update(sketch)
            if self._sketches[slot] is not None:
                union.update(self._sketches[slot])
            self._sketches[slot] = union.get_result()

    def results(self, slots: Slots) -> pa.Array:
        self._settle()
        found = [self._sketches[slot] for slot in slots.tolist()]
        return pa.array([0 if one is None else round(one.get_estimate()) for one in found], pa.int64())

    def reach(self, slots: int) -> None:
        self._sketches += [None] * (slots - len(self._sketches))

    def clear(self, slots: Slots) -> None:
        self._settle()
        for slot in slots.tolist():
            self._sketches[slot] = None

    def keep(self, slots: Slots) -> None:
        self._settle()
        self._sketches = [self._sketches[slot] for slot in slots.tolist()]

    def store(self, slots: Slots) -> list[pa.Array]:
        self._settle()
        found = [self._sketches[slot] for slot in slots.tolist()]
        return [pa.array([None if one is None else one.serialize() for one in found], pa.binary())]

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        for slot, data in zip(slots.tolist(), columns[0].to_pylist(), strict=True):
            if data is not None:
                self._sketches[slot] = self._library.compact_theta_sketch.deserialize(data)

    @property
    def bytes_held(self) -> int:
        return 8 * sum(int(one.num_retained) for one in self._sketches if one is not None)
