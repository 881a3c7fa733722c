"""xxh3-64 of many short byte strings at once, in numpy: about four times as fast as one call per string.

This file contains the published algorithm (XXH3, 64 bits, seed 0, default secret) for 0 to 16 bytes, and a
loop over the library for longer strings. Measured on words of Python source, 64 Ki at a time: 50 ns per word;
200 ns with one `xxhash` call per slice of the buffer; 100 ns if only the distinct words are hashed after
Arrow's dictionary encoding. Tests compare every length with the library.
"""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

U64: TypeAlias = npt.NDArray[np.uint64]
I64: TypeAlias = npt.NDArray[np.int64]

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
    """Return xxh3-64 of data[offsets[i]:offsets[i + 1]] for each i. `offsets` increase, as in an Arrow binary
    array.
    """
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
