"""The first record of a fork: what it says, and which graphs, sinks and sources can begin with it."""

import msgspec
import pytest

from checkpoint.core.links.messages import Restored
from checkpoint.core.records.graphs import check_graph, check_log, check_places
from checkpoint.core.records.lines import forked, needs_original, restored
from checkpoint.core.records.manifest import (
    ORIGINS_VERSION,
    ForkOrigin,
    check_checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    floors_of,
)
from checkpoint.core.region import RegionState, belongs_to, check_begins
from checkpoint.errors import FingerprintMismatchError, ForkRefusedError, ManifestError
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.manifest_samples import a_checkpoint, worker_checkpoint
from tests.checkpoint.region_model_state import spec
from tests.checkpoint.test_rescaling_region import checkpoint_of, commit, settled

SOURCE = a_checkpoint(
    number=41,
    step=300,
    incarnation=9,
    workers={
        0: worker_checkpoint(9, sinks={"out": {"size": 7}}, floors={"state": (3, 0)}, sources={"in": {}}),
        1: worker_checkpoint(8),
    },
    operators={"count": "c", "out": "o"},
    savepoints={"good": 40},
    retained=(40, 41),
    rolled_back_to=40,
)


def origin(**fields):
    return ForkOrigin(**{"region": "shop", "checkpoint": 41, "step": 300, "savepoint": "fork-1f", **fields})


def test_a_fork_begins_with_state_and_input_and_without_output() -> None:
    first = forked(SOURCE, origin(), incarnation=1)
    check_checkpoint(first)
    assert first.version == ORIGINS_VERSION
    assert (first.number, first.step, first.parent, first.retained) == (1, 300, 0, (1,))
    assert (first.savepoints, first.rolled_back_to, first.line) == ({}, 0, 0)
    assert {one: part.state for one, part in first.workers.items()} == {
        one: part.state for one, part in SOURCE.workers.items()
    }
    assert [(part.sinks, part.floors) for part in first.workers.values()] == [({}, {}), ({}, {})]
    assert first.workers[0].sources == {"in": {}}
    assert first.begins(first.layout), "a checkpoint of its own comes before any step"
    assert (first.chains_of("test"), SOURCE.chains_of("shop")) == ("shop", "shop")
    record = encode_checkpoint(first)
    assert decode_checkpoint(*record) == first


def test_the_floors_of_its_own_journals_do_not_depend_on_those_of_the_original() -> None:
    first = forked(SOURCE, origin(), incarnation=1)
    own = a_checkpoint(
        number=2,
        incarnation=2,
        workers={0: worker_checkpoint(2, floors={"state": (2, 0)}), 1: worker_checkpoint(2)},
    )
    assert floors_of([first], 0) == {"state": (2, 0)}, "nothing of an earlier attempt is needed"
    assert floors_of([first, own], 0) == {"state": (2, 0)}


def test_a_fork_that_has_no_checkpoint_of_its_own_cannot_be_forked() -> None:
    first = forked(SOURCE, origin(), incarnation=1)
    with pytest.raises(ForkRefusedError, match="still in the chains of region 'shop'"):
        forked(first, origin(region="test", checkpoint=1), incarnation=1)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"dropped": ("sum",)},
            "'sum' cannot be dropped: region 'shop' has no such operator; its",
        ),
        ({"added": ("count",)}, "'count' cannot be new: region 'shop' has it"),
    ],
)
def test_operators_that_the_original_has_not_are_not_dropped(fields, why) -> None:
    with pytest.raises(ForkRefusedError, match=why):
        forked(SOURCE, origin(**fields), incarnation=1)


def test_the_first_graph_of_a_fork_lacks_and_adds_what_was_named() -> None:
    first = forked(SOURCE, origin(dropped=("out",), added=("sum",)), incarnation=1)
    check_graph(first, {"count": "c", "sum": "s"}, region="test")
    for other in ({"count": "c", "out": "o"}, {"count": "other", "sum": "s"}, {"count": "c", "more": "m"}):
        with pytest.raises(FingerprintMismatchError):
            check_graph(first, other, region="test")
    later = msgspec.structs.replace(first, number=2, in_origin=False, operators={"count": "c", "sum": "s"})
    check_graph(later, {"count": "c", "sum": "s"}, region="test")
    with pytest.raises(FingerprintMismatchError, match="'sum' is in the stored state"):
        check_graph(later, {"count": "c"}, region="test")


def test_the_sinks_of_a_fork_may_have_another_place_and_those_of_a_restart_not() -> None:
    before = {"count": "c", "table": "sink from (count) table counts"}
    after = before | {"table": "sink from (count) table other"}
    last = msgspec.structs.replace(SOURCE, operators=before)
    check_graph(forked(last, origin(), incarnation=1), after, region="test")
    with pytest.raises(FingerprintMismatchError, match="operator 'table' was sink"):
        check_graph(last, after, region="shop")
    with pytest.raises(FingerprintMismatchError, match="operator 'table' was sink"):
        check_graph(
            forked(last, origin(), incarnation=1), after | {"table": "sink from (other)"}, region="test"
        )


@pytest.mark.parametrize(
    ("others", "refused"),
    [
        ({"shop.orders": ("orders", "count", "out")}, True),
        ({"shop": ("orders", "count", "out")}, True),
        ({"shop.orders": ("orders", "other")}, False),
        ({"shop.clicks": ("clicks", "count", "out")}, False),
        ({"shop.v2": ("orders", "count", "out")}, False),
    ],
    ids=["renamed", "divided", "nothing-in-common", "still-there", "another-application"],
)
def test_a_region_is_not_begun_empty_while_another_name_has_its_operators(
    others: dict[str, tuple[str, ...]], *, refused: bool
) -> None:
    operators = {"sales": "s", "count": "c", "out": "o"}
    begun = spec(application="shop", parts=("shop.sales", "shop.clicks"), operators=operators)
    found = {name: a_checkpoint(operators=dict.fromkeys(names, "o")) for name, names in others.items()}
    if not refused:
        check_begins(begun, found)
        return
    with pytest.raises(FingerprintMismatchError, match=r"without state, although region '\S+' has.*'count'"):
        check_begins(begun, found)
    forks = {name: msgspec.structs.replace(checkpoint, origin=origin()) for name, checkpoint in found.items()}
    check_begins(begun, forks)
    assert all(belongs_to("shop", name) for name in others)
    assert not belongs_to("shop", "shopping")


def test_a_sink_that_cannot_tell_who_else_writes_there_needs_a_word() -> None:
    first = forked(SOURCE, origin(same_place=("mail",)), incarnation=1)
    check_places(first, {"mail": "it does not say"})
    with pytest.raises(ManifestError, match="may write to the same place unnoticed: 'out': shared"):
        check_places(first, {"mail": "it does not say", "out": "shared"})
    check_places(SOURCE, {"out": "shared"})
    check_places(msgspec.structs.replace(first, number=2, in_origin=False), {"out": "shared"})


def test_a_source_of_a_fork_reads_the_output_of_the_same_region() -> None:
    first = forked(SOURCE, origin(logs={"in": "sales"}), incarnation=1)
    check_log(first, "in", "sales")
    check_log(first, "new", "anything")
    check_log(SOURCE, "in", "anything")
    later = msgspec.structs.replace(first, number=2, in_origin=False)
    with pytest.raises(ManifestError, match="region 'sales'; here it reads that of 'sold'"):
        check_log(later, "in", "sold")


def test_a_fork_needs_the_original_until_it_has_released_its_first_record() -> None:
    first = forked(SOURCE, origin(), incarnation=1)
    own = msgspec.structs.replace(first, number=2, in_origin=False)
    assert needs_original([first], "shop", "fork-1f") is True
    assert needs_original([first, own], "shop", "fork-1f") is True
    assert needs_original([own], "shop", "fork-1f") is False
    for kept in ([], [SOURCE]):
        assert needs_original(kept, "shop", "fork-1f") is None, "there is no such fork"
    assert needs_original([own], "shop", "fork-2e") is None


@pytest.mark.parametrize("asked", [1, 3])
@pytest.mark.parametrize("begins", ["a line of history", "a fork", ""])
def test_a_region_that_shows_steps_changes_at_once_only_where_no_shown_step_can_follow(
    begins: str, asked: int
) -> None:
    """After the first record of a fork or of a restore nothing is replayed; after another one it may be."""
    last = checkpoint_of(2)
    if begins == "a fork":
        last = forked(last, origin(checkpoint=1, step=5), incarnation=1)
    elif begins:
        last = restored((last,), last, 1)
    region = CoordinatorHarness(asked, shows_steps=True)
    region.opened(last, epoch=2)
    first = asked if begins else 2
    assert len(region.core.run.roster) == first
    for worker in range(first):
        region.join(worker)
    for worker in range(first):
        region.receive(worker, Restored, last_step=last.step)
    if begins:
        commit(region, asked, last.number + 1, last.step)
        assert region.core.changes.change is None
    else:
        assert region.core.changes.change.workers == asked
    assert region.state is RegionState.RUNNING
    assert settled(region) == []
