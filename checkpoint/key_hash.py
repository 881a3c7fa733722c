"""`_hash` of key columns, vectorized over Arrow arrays. `core/keys.py` defines it; this is the fast
implementation.

It creates no Python object per key: strings are hashed in their Arrow buffers, numbers as numpy words.
Columns of types without canonical bytes are rejected by name.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkpoint.core.keys import NULL_LENGTH, Kind
from checkpoint.errors import UnsupportedKeyTypeError
from checkpoint.xxh3_vector import I64, U64, hash_slices, hash_words

HASH_COLUMN: Final = "_hash"
_NAN: Final = np.uint64(0x7FF8000000000000)
_OF_BYTES: Final = ("string", "binary", "bool", "decimal")
"""Kinds that are hashed as bytes; the others as words."""
_FACTORS: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93))
"""Odd, so that multiplying loses nothing."""


def kind_of(kind: Any) -> Kind:
    """Return the canonical form of a column of this Arrow type. Raises UnsupportedKeyTypeError."""
    types = pa.types
    table: tuple[tuple[Any, Kind], ...] = (
        (types.is_string, "string"),
        (types.is_large_string, "string"),
        (types.is_binary, "binary"),
        (types.is_large_binary, "binary"),
        (types.is_fixed_size_binary, "binary"),
        (types.is_boolean, "bool"),
        (types.is_signed_integer, "int"),
        (types.is_unsigned_integer, "uint"),
        (types.is_floating, "float"),
        (types.is_decimal128, "decimal"),
        (types.is_date32, "date"),
        (types.is_timestamp, "timestamp"),
    )
    if types.is_dictionary(kind):
        return kind_of(kind.value_type)
    for test, name in table:
        if test(kind):
            return name
    raise UnsupportedKeyTypeError(f"a column of type {kind} cannot be a key")


def hash_keys(columns: Sequence[Any]) -> U64:
    """Return the hash of each row's key. `columns` are pyarrow Arrays (or ChunkedArrays) of one length, in
    key order.
    """
    if not columns:
        raise UnsupportedKeyTypeError("a key needs at least one column")
    arrays = [_plain(column) for column in columns]
    if len(arrays) == 1:
        return _hash_one(arrays[0])
    parts: list[Any] = []
    for array in arrays:
        data = _canonical(array)
        parts += [_lengths(array, data), data.cast(pa.large_binary()).fill_null(b"")]
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    return hash_slices(*_slices(joined))


def hash_rows(columns: Sequence[Any]) -> npt.NDArray[Any]:
    """Return a digest of 16 bytes of each row, as elements of type V16: two hashes of each column, mixed.

    64 bits would be too few: among a million rows a second, two that differ would have the same digest about
    once a year. Values that are equal as keys are equal here: NaN, -0.0 and 0.0. Raises
    UnsupportedKeyTypeError, as `hash_keys`.
    """
    digests = np.zeros((len(columns[0]) if columns else 0, 2), np.uint64)
    for array in map(_plain, columns):
        for half, hashes in enumerate(_two_hashes(array)):
            digests[:, half] = digests[:, half] * _FACTORS[half] + hashes
    return digests.view("V16").reshape(len(digests))


def _two_hashes(array: Any) -> tuple[U64, U64]:
    """Return two hashes of each value, of which neither follows from the other."""
    if kind_of(array.type) in _OF_BYTES:
        data = _canonical(array).fill_null(b"")
        marked = pc.binary_join_element_wise(data, pa.scalar(b"\x01", data.type), pa.scalar(b"", data.type))
        found = hash_slices(*_slices(data)), hash_slices(*_slices(marked))
    else:
        words = _words(array)
        found = hash_words(words), hash_words(~words)
    if array.null_count:
        nulls = array.is_null().to_numpy(zero_copy_only=False)
        for half, hashes in enumerate(found):
            hashes[nulls] = _FACTORS[half]
    return found


def _plain(column: Any) -> Any:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # combine_chunks may return several chunks, or none
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _hash_one(array: Any) -> U64:
    if kind_of(array.type) not in _OF_BYTES:
        hashes = hash_words(_words(array))
        if array.null_count:
            hashes[array.is_null().to_numpy(zero_copy_only=False)] = hash_slices(
                np.zeros(0, np.uint8), np.zeros(2, np.int64)
            )[0]
        return hashes
    return hash_slices(*_slices(_canonical(array).fill_null(b"")))


def _words(array: Any) -> U64:
    """Return the 8 canonical bytes of each value as a number; the result for nulls is arbitrary."""
    kind = kind_of(array.type)
    if kind == "float":
        values = np.array(array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False))
        values[values == 0.0] = 0.0
        words: U64 = values.view(np.uint64)
        words[np.isnan(values)] = _NAN
        return words
    if kind == "uint":
        unsigned: U64 = array.cast(pa.uint64()).fill_null(0).to_numpy(zero_copy_only=False)
        return unsigned
    if kind == "date":
        array = array.cast(pa.int32())
    signed: I64 = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return signed.view(np.uint64)


def _canonical(array: Any) -> Any:
    """Return the canonical bytes of each value as a binary array; null stays null."""
    kind = kind_of(array.type)
    if kind in ("string", "binary"):
        large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
        return array.cast(pa.large_binary() if large else pa.binary())
    if kind == "bool":
        data, width = array.cast(pa.uint8()).fill_null(0).to_numpy(zero_copy_only=False), 1
    elif kind == "decimal":
        filled = array.fill_null(0)
        rows = np.frombuffer(filled.buffers()[1], np.uint8).reshape(-1, 16)
        data, width = np.ascontiguousarray(rows[filled.offset : filled.offset + len(array), ::-1]), 16
    else:
        data, width = _words(array).astype(">u8"), 8
    offsets = pa.array(np.arange(0, (len(array) + 1) * width, width, dtype=np.int32))
    fixed = pa.Array.from_buffers(pa.binary(), len(array), [None, offsets.buffers()[1], pa.py_buffer(data)])
    return pc.if_else(array.is_null(), pa.scalar(None, pa.binary()), fixed) if array.null_count else fixed


def _lengths(array: Any, data: Any) -> Any:
    """Return the 4 length bytes that precede each value's bytes."""
    sizes = pc.binary_length(data).cast(pa.int64()).fill_null(NULL_LENGTH).to_numpy(zero_copy_only=False)
    words = sizes.astype(">u4")
    offsets = pa.array(np.arange(0, (len(array) + 1) * 4, 4, dtype=np.int32))
    buffers = [None, offsets.buffers()[1], pa.py_buffer(words)]
    return pa.Array.from_buffers(pa.binary(), len(array), buffers).cast(pa.large_binary())


def _slices(array: Any) -> tuple[Any, I64]:
    """Return (bytes, offsets) of a binary array without nulls."""
    wide = pa.types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    if offsets is None or not len(array):
        return np.zeros(0, np.uint8), np.zeros(len(array) + 1, np.int64)
    numbers = np.frombuffer(offsets, np.int64 if wide else np.int32)
    bounds = numbers[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return (np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)), bounds
