"""Layouts and fingerprints: which worker owns a hash, and which graph may restore a state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import limits
from checkpoint.core.records.graphs import check_fingerprint, declared_state, differing_operators, fingerprint
from checkpoint.core.records.layout import Layout, ShardRange, check_layout, even_layout
from checkpoint.errors import FingerprintMismatchError, ManifestError
from tests.checkpoint.manifest_samples import u64


@given(st.integers(1, 200), u64)
def test_every_hash_belongs_to_exactly_one_worker(workers, key_hash) -> None:
    layout = even_layout(workers)
    check_layout(layout, workers)
    owner = layout.worker_of(key_hash)
    last, owners = layout.upper_bounds()
    assert owners[next(i for i, bound in enumerate(last) if bound >= key_hash)] == owner
    (shard,) = layout.shards_of(owner)
    assert shard.begin <= key_hash >> 48 < shard.end
    sizes = [shard.end - shard.begin for shard in layout.ranges]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ([(0, 10, 0), (9, 65536, 1)], "expected a range from 10, got 9..65536"),
        ([(0, 10, 0), (11, 65536, 1)], "expected a range from 10"),
        ([(0, 65536, 5)], "belong to worker 5, but there are 2"),
        ([(0, 65536, -1)], "belong to worker -1, but there are 2"),
        ([], "end at 0"),
    ],
)
def test_a_layout_with_holes_overlaps_or_strangers_is_refused(ranges, text) -> None:
    with pytest.raises(ManifestError, match=text):
        check_layout(Layout(tuple(ShardRange(*shard) for shard in ranges)), 2)


def test_an_operator_may_have_ranges_of_its_own() -> None:
    own = (ShardRange(0, 1, 1, "sort"), ShardRange(1, 65536, 0, "sort"))
    layout = Layout((*even_layout(2).ranges, *own), splits={"in": {"a": 1}})
    check_layout(layout, 2)
    assert layout.worker_of(0) == 0
    assert layout.worker_of(0, "sort") == 1
    with pytest.raises(ManifestError, match="split 'a' of 'in' belongs to worker 1, but there are 1"):
        check_layout(Layout(even_layout(1).ranges, splits={"in": {"a": 1}}), 1)


def test_a_fingerprint_is_of_names_and_descriptions_in_any_order() -> None:
    assert fingerprint({"a": "1", "b": "2"}) == fingerprint({"b": "2", "a": "1"})
    assert fingerprint({"a": "1"}) != fingerprint({"a": "2"})
    assert fingerprint({"a": "1"}) != fingerprint({"b": "1"})
    assert fingerprint({}) == "831154110e30ac6a"


def test_another_graph_is_refused_naming_each_operator_that_differs() -> None:
    stored, present = (
        {"a": "x", "b": "count(w string)", "c": "1"},
        {"b": "count(w binary)", "c": "1", "d": "y"},
    )
    with pytest.raises(FingerprintMismatchError) as error:
        check_fingerprint(stored, present, region="words", checkpoint=9)
    assert error.value.operators == ("a", "b", "d")
    assert "checkpoint 9 of region 'words'" in str(error.value)
    assert "operator 'b' was count(w string), is count(w binary)" in str(error.value)
    assert differing_operators(stored, stored) == []


def test_a_region_has_from_one_worker_to_the_limit() -> None:
    for workers in (0, -1, limits.workers_max + 1):
        with pytest.raises(ValueError, match="has 1 to"):
            even_layout(workers)
    for workers in (1, limits.workers_max):
        check_layout(even_layout(workers), workers)


def test_a_layout_has_1_to_32_shard_bits() -> None:
    for bits in (0, 33, -1):
        with pytest.raises(ManifestError, match="shard bits"):
            check_layout(Layout((ShardRange(0, 1, 0),), shard_bits=bits), 1)
    for bits in (1, 32):
        check_layout(Layout((ShardRange(0, 1 << bits, 0),), shard_bits=bits), 1)


def test_a_state_that_differs_is_told_with_the_migration_that_it_needs() -> None:
    def why(old: str, new: str) -> str:
        ((name, reason),) = differing_operators({"op": old}, {"op": new})
        assert name == "op"
        return reason

    def apply(version: int, columns: str, rest: str = "") -> str:
        return f"apply {declared_state(version, columns)}{rest}"

    assert (declared_state(1, "n"), declared_state(2, "n")) == ("state (n)", "state v2 (n)")
    assert "state_version=2 and Migration(1," in why(apply(1, "n"), apply(1, "m"))
    assert "state_version=3 and Migration(1," in why(apply(1, "n"), apply(3, "m"))
    assert "state_version=3 and Migration(2," in why(apply(2, "n"), apply(2, "m"))
    assert why(apply(3, "n"), apply(2, "n")).endswith("run a graph that declares version 3")
    for old, new in [(apply(1, "n"), apply(1, "n", " ttl")), ("sum", apply(1, "n")), (apply(1, "n"), "sum")]:
        assert why(old, new) == f"was {old}, is {new}"
    assert differing_operators({"a": "x"}, {"b": "y"}) == [
        ("a", "is in the stored state and not in this graph"),
        ("b", "is in this graph and not in the stored state"),
    ]
    assert differing_operators({"a": "x"}, {"a": "y"}, {"a": ["x"]}) == []
