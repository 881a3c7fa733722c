"""`_hash` of key columns, vectorized over Arrow arrays: the fast implementation of `core/records/layout.py`.

It creates no Python object per key: strings are hashed in their Arrow buffers, numbers as numpy words.
Columns of types without canonical bytes are rejected by name. For byte strings, xxh3-64 of many at once: the
published algorithm (seed 0, default secret) for 0 to 16 bytes, a loop over the library for longer ones. Words
of Python source, 64 Ki at a time, take 50 ns each; 200 ns with one `xxhash` call per slice.
"""

from collections.abc import Sequence
from itertools import compress
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from checkpoint.core.records.layout import NULL_LENGTH, Kind, PlainKind
from checkpoint.errors import UnsupportedKeyTypeError

U64: TypeAlias = npt.NDArray[np.uint64]
I64: TypeAlias = npt.NDArray[np.int64]


HASH_COLUMN: Final = "_hash"
_NAN: Final = np.uint64(0x7FF8000000000000)
_OF_BYTES: Final = ("string", "binary", "bool", "decimal")
"""Kinds that are hashed as bytes, as structs are; the others as words."""
_FACTORS: Final = np.array([[0x9E3779B97F4A7C15], [0xD6E8FEB86659FD93]], np.uint64)
"""Of each half of a digest. Odd, so that multiplying loses nothing."""
_MARKS: Final = {
    kind.id: (pa.scalar(b"\x01", kind), pa.scalar(b"", kind)) for kind in (pa.binary(), pa.large_binary())
}
"""What is put after a string for its second hash, and the separator."""
_KINDS: Final[dict[int, PlainKind]] = {
    pa.string().id: "string",
    pa.large_string().id: "string",
    pa.binary().id: "binary",
    pa.large_binary().id: "binary",
    pa.binary(1).id: "binary",
    pa.bool_().id: "bool",
    **{kind.id: "int" for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{kind.id: "uint" for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    **{kind.id: "float" for kind in (pa.float16(), pa.float32(), pa.float64())},
    pa.decimal128(1).id: "decimal",
    pa.date32().id: "date",
    pa.timestamp("us").id: "timestamp",
}
"""Type of a column, by Arrow's number of it -> its canonical form."""


def kind_of(kind: Any) -> Kind:
    """Return the canonical form of a column of this Arrow type. Raises UnsupportedKeyTypeError."""
    found = _KINDS.get(kind.id)
    if found is not None:
        return found
    if pa.types.is_dictionary(kind):
        return kind_of(kind.value_type)
    if pa.types.is_struct(kind) and kind.num_fields:
        return tuple(kind_of(kind.field(at).type) for at in range(kind.num_fields))
    raise UnsupportedKeyTypeError(f"a column of type {kind} cannot be a key")


def hash_keys(columns: Sequence[Any]) -> U64:
    """Return the hash of each row's key. columns: pyarrow Arrays of one length, in key order."""
    if not columns:
        raise UnsupportedKeyTypeError("a key needs at least one column")
    arrays = [_plain(column) for column in columns]
    if len(arrays) == 1:
        return _hash_one(arrays[0])
    return hash_slices(*_slices(_with_lengths(arrays)))


def _with_lengths(arrays: Sequence[Any]) -> Any:
    """Return the canonical bytes of several columns, or of the fields of a struct."""
    parts: list[Any] = []
    for array in arrays:
        data = _canonical(array)
        parts += [_lengths(array, data), data.cast(pa.large_binary()).fill_null(b"")]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


# 64 bits would be too few: among a million rows a second, two that differ would have the same digest about
# once a year, and the second would be taken for a duplicate.
def hash_rows(columns: Sequence[Any], *, signed_zeros: bool = False) -> npt.NDArray[Any]:
    """Return a digest of 16 bytes of each row, of type V16. Values that are equal as keys are equal here:
    NaN, and -0.0 and 0.0 unless `signed_zeros`. Lists, maps and structs of such values count with the order
    of their elements. Raises UnsupportedKeyTypeError.
    """
    arrays = [_plain(column) for column in columns]
    rows = len(arrays[0]) if arrays else 0
    digests = _digests(arrays, rows, signed_zeros=signed_zeros)
    return np.ascontiguousarray(digests.T).view("V16").reshape(rows)


def _digests(arrays: Sequence[Any], rows: int, *, signed_zeros: bool) -> U64:
    """Return the two independent halves of the digest of each row."""
    forms = [_form(array.type) for array in arrays]
    of_words = [form == "words" for form in forms]
    words = np.empty((2, of_words.count(True), rows), np.uint64)
    for place, array in enumerate(compress(arrays, of_words)):
        words[0, place] = _words(array, signed_zeros=signed_zeros)
    np.invert(words[0], out=words[1])
    # All columns at once: in a small batch each call counts.
    hashes_of_words = iter(hash_words(words).swapaxes(0, 1))
    digests = np.zeros((2, rows), np.uint64)
    for array, form in zip(arrays, forms, strict=True):
        if form == "words":
            hashes = next(hashes_of_words)
        elif form == "bytes":
            hashes = _two_hashes(array)
        else:
            hashes = _hashes_of_parts(array, signed_zeros=signed_zeros)
        if array.null_count:
            hashes[:, _nulls(array)] = _FACTORS
        digests *= _FACTORS
        digests += hashes
    return digests


def _form(kind: Any) -> str:
    if pa.types.is_nested(kind):
        return "parts"
    return "words" if _are_words(kind_of(kind)) else "bytes"


def _are_words(kind: Kind) -> bool:
    return not isinstance(kind, tuple) and kind not in _OF_BYTES


def _hashes_of_parts(array: Any, *, signed_zeros: bool) -> U64:
    """Return two independent hashes of each list, map or struct, by the digests of its parts."""
    if pa.types.is_struct(array.type):
        fields = [_comparable(array.field(at)) for at in range(array.type.num_fields)]
        # Hashed once more: a struct with one null field must differ from a null.
        return hash_words(_digests(fields, len(array), signed_zeros=signed_zeros))
    elements, bounds = _elements(array)
    digests = _digests(elements, int(bounds[-1]), signed_zeros=signed_zeros)
    return np.stack([hash_slices(half.astype(">u8").view(np.uint8), 8 * bounds) for half in digests])


def _elements(array: Any) -> tuple[list[Any], I64]:
    """Return the elements of all lists, or keys and items of all maps, and the bounds of each. What lies
    under a null is arbitrary.
    """
    kind, types = array.type, pa.types
    if types.is_fixed_size_list(kind):
        bounds = (np.arange(len(array) + 1) + array.offset) * kind.list_size
    elif types.is_map(kind) or types.is_list(kind) or types.is_large_list(kind):
        bounds = array.offsets.to_numpy().astype(np.int64)
    else:
        raise UnsupportedKeyTypeError(f"values of type {kind} cannot be compared")
    first, size = int(bounds[0]), int(bounds[-1] - bounds[0])
    parts = [array.keys, array.items] if types.is_map(kind) else [array.values]
    return [_comparable(part.slice(first, size)) for part in parts], bounds - first


def _comparable(array: Any) -> Any:
    """Return a part of nested values as an array of a type that has a canonical form."""
    kind, types = array.type, pa.types
    if types.is_time(kind) or types.is_duration(kind) or types.is_date64(kind):
        return array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    return array.cast(pa.int8()) if types.is_null(kind) else _plain(array)


def _two_hashes(array: Any) -> U64:
    """Return two independent hashes of the bytes of each value, once for equal ones."""
    encoded = _filled(_canonical(array), b"").dictionary_encode()
    data = encoded.dictionary
    marked = pc.binary_join_element_wise(data, *_MARKS[data.type.id])
    hashes = np.stack([hash_slices(*_slices(data)), hash_slices(*_slices(marked))])
    spread: U64 = hashes.take(encoded.indices.to_numpy(), axis=1)
    return spread


def _filled(array: Any, value: Any) -> Any:
    return array.fill_null(value) if array.null_count else array


def _nulls(array: Any) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return found


def _plain(column: Any) -> Any:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # combine_chunks may return several chunks, or none
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _hash_one(array: Any) -> U64:
    if _are_words(kind_of(array.type)):
        hashes = hash_words(_words(array))
        if array.null_count:
            hashes[_nulls(array)] = hash_slices(np.zeros(0, np.uint8), np.zeros(2, np.int64))[0]
        return hashes
    return hash_slices(*_slices(_filled(_canonical(array), b"")))


def _words(array: Any, *, signed_zeros: bool = False) -> U64:
    """Return the 8 canonical bytes of each value as a number; the result for nulls is arbitrary."""
    kind = kind_of(array.type)
    words: U64
    if kind == "float":
        floats = np.array(_values(array, pa.float64(), 0.0))
        if not signed_zeros:
            floats[floats == 0.0] = 0.0
        words = floats.view(np.uint64)
        words[np.isnan(floats)] = _NAN
        return words
    if kind == "date":
        array = array.view(pa.int32())
    words = _values(array, pa.uint64() if kind == "uint" else pa.int64(), 0).view(np.uint64)
    return words


def _values(array: Any, kind: Any, null: float) -> Any:
    """Return the values as a numpy array of that type, with another value for nulls."""
    cast = array.view(kind) if array.type.bit_width == kind.bit_width else array.cast(kind)
    return _filled(cast, null).to_numpy(zero_copy_only=False)


def _canonical(array: Any) -> Any:
    """Return the canonical bytes of each value as a binary array; null stays null."""
    kind = kind_of(array.type)
    if isinstance(kind, tuple):
        fields = _with_lengths([_plain(array.field(at)) for at in range(len(kind))])
        return pc.if_else(array.is_null(), pa.scalar(None, fields.type), fields)
    if kind in ("string", "binary"):
        large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
        fixed = pa.types.is_fixed_size_binary(array.type)
        return array.cast(pa.binary()) if fixed else array.view(pa.large_binary() if large else pa.binary())
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


_SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
)
_CHUNK: Final = 64 * 1024
"""Elements processed at once, so that the temporary arrays stay in the CPU cache."""
_FEW: Final = 250
"""So many strings, or fewer, are hashed faster by one call of the library for each."""
_PAD: Final = 8
_u = np.uint64


def _secret(offset: int, size: int) -> int:
    return int.from_bytes(_SECRET[offset : offset + size], "little")


_FLIP_1_3: Final = _u(_secret(0, 4) ^ _secret(4, 4))
_FLIP_4_8: Final = _u(_secret(8, 8) ^ _secret(16, 8))
_FLIP_LOW: Final = _u(_secret(24, 8) ^ _secret(32, 8))
_FLIP_HIGH: Final = _u(_secret(40, 8) ^ _secret(48, 8))
_PRIME_2: Final = _u(0xC2B2AE3D27D4EB4F)
_PRIME_3: Final = _u(0x165667B19E3779F9)
_PRIME_MX1: Final = _u(0x165667919E3779F9)
_PRIME_MX2: Final = _u(0x9FB21C651E98DF25)
_LOW_32: Final = _u(0xFFFFFFFF)
_EMPTY: Final = _u(xxhash.xxh3_64_intdigest(b""))


def hash_slices(data: npt.NDArray[np.uint8], offsets: I64) -> U64:
    """Return xxh3-64 of data[offsets[i]:offsets[i + 1]] for each i. `offsets` increase."""
    count = len(offsets) - 1
    if count <= _FEW:
        bounds = offsets - offsets[0]
        return _hash_each(data[offsets[0] : offsets[-1]], bounds[:-1], bounds[1:])
    hashes = np.empty(count, np.uint64)
    for start in range(0, count, _CHUNK):
        part = offsets[start : min(start + _CHUNK, count) + 1]
        hashes[start : start + len(part) - 1] = _hash_chunk(data, part)
    return hashes


def hash_words(words: U64) -> U64:
    """Return xxh3-64 of each number's 8 bytes, big-endian. `words` is contiguous, of any shape."""
    halves = words.astype("<u8", copy=False).view("<u4")  # the algorithm reads two little-endian halves
    return _mixed_4_8(halves.byteswap().view("<u8"), np.array(8, np.uint64))


def _hash_chunk(data: npt.NDArray[np.uint8], offsets: I64) -> U64:
    first, last = int(offsets[0]), int(offsets[-1])
    raw = np.zeros(last - first + 2 * _PAD, np.uint8)
    raw[_PAD:-_PAD] = data[first:last]
    words = np.ndarray((len(raw) - 7,), "<u8", raw.data, strides=(1,))  # unaligned loads
    halves = np.ndarray((len(raw) - 3,), "<u4", raw.data, strides=(1,))
    begins = offsets[:-1] - first + _PAD
    sizes = np.diff(offsets)
    hashes = np.full(len(sizes), _EMPTY)
    few = np.flatnonzero((sizes >= 1) & (sizes <= 3))
    if len(few):
        hashes[few] = _hash_1_3(raw, begins[few], sizes[few])
    some = np.flatnonzero((sizes >= 4) & (sizes <= 8))
    if len(some):
        at, size = begins[some], sizes[some]
        head, tail = halves[at].astype(np.uint64), halves[at + size - 4].astype(np.uint64)
        hashes[some] = _mixed_4_8(tail + (head << _u(32)), size.astype(np.uint64))
    many = np.flatnonzero((sizes >= 9) & (sizes <= 16))
    if len(many):
        at, size = begins[many], sizes[many]
        hashes[many] = _hash_9_16(words[at], words[at + size - 8], size.astype(np.uint64))
    long = np.flatnonzero(sizes > 16)
    if len(long):
        hashes[long] = _hash_each(raw, begins[long], begins[long] + sizes[long])
    return hashes


def _hash_1_3(raw: npt.NDArray[np.uint8], at: I64, size: I64) -> U64:
    first = raw[at].astype(np.uint64) << _u(16)
    middle = raw[at + (size >> 1)].astype(np.uint64) << _u(24)
    last = raw[at + size - 1].astype(np.uint64)
    value: U64 = (first | middle | last | (size.astype(np.uint64) << _u(8))) ^ _FLIP_1_3
    value ^= value >> _u(33)
    value *= _PRIME_2
    value ^= value >> _u(29)
    value *= _PRIME_3
    return value ^ (value >> _u(32))


def _rotated(value: U64, bits: int) -> U64:
    rotated: U64 = (value << _u(bits)) | (value >> _u(64 - bits))
    return rotated


def _mixed_4_8(value: U64, size: U64) -> U64:
    """Return the hashes of strings of 4 to 8 bytes. `value` has their two halves, and is overwritten."""
    value ^= _FLIP_4_8
    value ^= _rotated(value, 49) ^ _rotated(value, 24)
    value *= _PRIME_MX2
    value ^= (value >> _u(35)) + size
    value *= _PRIME_MX2
    value ^= value >> _u(28)
    return value


def _hash_9_16(first: U64, last: U64, size: U64) -> U64:
    low, high = first ^ _FLIP_LOW, last ^ _FLIP_HIGH
    value: U64 = size + low.byteswap() + high + _folded_product(low, high)
    value ^= value >> _u(37)
    value *= _PRIME_MX1
    return value ^ (value >> _u(32))


def _folded_product(a: U64, b: U64) -> U64:
    """Return the 128-bit product, its two halves combined by XOR."""
    a_low, a_high, b_low, b_high = a & _LOW_32, a >> _u(32), b & _LOW_32, b >> _u(32)
    low, high = a_low * b_low, a_high * b_high
    middle = a_high * b_low
    cross = (low >> _u(32)) + (middle & _LOW_32) + a_low * b_high
    folded: U64 = ((cross << _u(32)) | (low & _LOW_32)) ^ ((middle >> _u(32)) + (cross >> _u(32)) + high)
    return folded


def _hash_each(data: npt.NDArray[np.uint8], begins: I64, ends: I64) -> U64:
    whole, digest = data.tobytes(), xxhash.xxh3_64_intdigest
    pairs = zip(begins.tolist(), ends.tolist(), strict=True)
    return np.array([digest(whole[begin:end]) for begin, end in pairs], np.uint64)
