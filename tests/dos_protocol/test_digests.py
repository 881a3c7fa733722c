"""Digests: the value does not depend on how content was cut, and the golden vectors keep it for ever."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol.digests import PrefixDigest, digest64, prefix_digest
from dos_protocol.limits import digest_block_bytes

BLOCK = digest_block_bytes


def content(size: int) -> bytes:
    return bytes(i * 31 % 251 for i in range(size))


def by_the_book(data: bytes) -> int:
    """The definition in protocol.md, word for word."""
    value = 0
    for start in range(0, len(data), BLOCK):
        value = digest64(data[start : start + BLOCK], value)
    return value


@given(size=st.integers(0, 3 * BLOCK + 5), cuts=st.lists(st.integers(0, 3 * BLOCK + 5), max_size=6))
def test_any_cut_gives_the_value_of_the_whole(size: int, cuts: list[int]) -> None:
    data = content(size)
    fold = PrefixDigest()
    edges = sorted({0, size, *(cut for cut in cuts if cut < size)})
    for start, end in pairwise(edges):
        fold.update(data[start:end])
        assert fold.value == by_the_book(data[:end])
    assert (fold.size, fold.value) == (size, prefix_digest(data))


@given(size=st.integers(0, 3 * BLOCK), more=st.binary(max_size=50))
def test_it_resumes_from_the_last_full_block(size: int, more: bytes) -> None:
    data = content(size)
    fold = PrefixDigest()
    fold.update(data)
    whole = size - size % BLOCK
    resumed = PrefixDigest(whole, fold.blocks_digest)
    resumed.update(data[whole:])
    resumed.update(more)
    assert resumed.value == prefix_digest(data + more)


def test_a_copy_goes_its_own_way() -> None:
    fold = PrefixDigest()
    fold.update(b"abc")
    twin = fold.copy()
    twin.update(b"def")
    assert fold.value == prefix_digest(b"abc")
    assert twin.value == prefix_digest(b"abcdef")
    assert (fold.size, twin.size) == (3, 6)


def test_it_resumes_only_at_a_block() -> None:
    with pytest.raises(ValueError, match="multiple of 65536"):
        PrefixDigest(5, 1)


@pytest.mark.parametrize(
    ("size", "value"),
    [
        (0, 0),
        (1, 0xC44BDFF4074EECDB),
        (100, 0x1EFBAA652AF7DFB7),
        (BLOCK, 0x1FBF280810208F17),
        (BLOCK + 1, 0x5EF9A8E004304192),
        (3 * BLOCK, 0xC406D95CC3C8DA28),
    ],
)
def test_golden_vectors_of_protocol_md(size: int, value: int) -> None:
    assert prefix_digest(content(size)) == value
