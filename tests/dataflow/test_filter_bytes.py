"""The state of a duplicate filter as bytes: what was encoded is read back; anything else is refused."""

import numpy as np
import pytest

from dataflow.core.duplicate_filter import (
    BEFORE_ALL,
    DIGEST,
    DuplicateFilter,
    FilterState,
    decode_filter,
    encode_filter,
)
from dos_protocol.errors import CorruptDataError

GOLDEN = bytes.fromhex(
    "444f534d01" + "e803000000000000" + "02000000" + "0a000000000000000b00000000000000"
    "6162636465666768696a6b6c6d6e6f70"
    "7172737475767778797a303132333435"
    "01000000000000000300000000000000"
    "c5408d6d35ec00d6"
)
STATE = FilterState(
    1000,
    np.array([10, 11]),
    np.frombuffer(b"abcdefghijklmnopqrstuvwxyz012345", DIGEST),
    np.array([1, 3]),
)


def test_version_1_stays_as_it_is() -> None:
    assert encode_filter(STATE) == GOLDEN


def test_a_state_is_read_back() -> None:
    for state in (STATE, DuplicateFilter(10).state()):
        read = decode_filter(encode_filter(state), where="here")
        assert [one.tolist() for one in read[1:]] == [one.tolist() for one in state[1:]]
        assert read.mark == state.mark
    assert DuplicateFilter(10).state().mark == BEFORE_ALL


def test_every_damaged_byte_is_noticed() -> None:
    data = encode_filter(STATE)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 4
        with pytest.raises(CorruptDataError, match="here"):
            decode_filter(bytes(damaged), where="here")
    for size in range(len(data)):
        with pytest.raises(CorruptDataError, match="here"):
            decode_filter(data[:size], where="here")
