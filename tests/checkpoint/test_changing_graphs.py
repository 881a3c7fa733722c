"""A program with another graph, as the coordinator decides it: before the claim, under it, and at the first
votes; and what the last checkpoint states of a region that stops.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest
import trio

from checkpoint import limits
from checkpoint.coordinator.shell import watch_savepoints
from checkpoint.core.applications import check_application
from checkpoint.core.coordination.checkpoints import PendingCheckpoint
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointWanted,
    LaunchWorker,
    ManifestOpened,
    OpenManifest,
    PauseWanted,
    RestoreWanted,
    SavepointWanted,
    StopWanted,
)
from checkpoint.core.graph_change import (
    GraphOptions,
    OperatorNote,
    ResultNote,
    born_with,
    compare,
    fingerprint,
    upgrade_savepoint,
)
from checkpoint.core.links.messages import (
    Counters,
    Paused,
    RequestCheckpoint,
    Restore,
    Restored,
    Start,
    Vote,
)
from checkpoint.core.records.backups import needed_chains
from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.lines import (
    compared_with,
    edited,
    find_target,
    forked,
    former_sinks,
    recorded_again,
    republished,
    restored,
    upgrades_over,
)
from checkpoint.core.records.manifest import (
    Checkpoint,
    Edit,
    EndedLog,
    ForkOrigin,
    FormerSink,
    ReplacedGraph,
    RetiredWorker,
    SavepointNote,
    SplitPosition,
    check_checkpoint,
    savepoint_name_problem,
    unneeded_of,
)
from checkpoint.core.region import (
    RegionSpec,
    RegionState,
    RestoreSettled,
    check_continues,
    check_goes_back,
    rows_to_add,
    when_restored,
)
from checkpoint.core.upgrades import plan_upgrade
from checkpoint.errors import GraphChangeRefusedError
from dos_client import open_store
from dos_server.testing import memory_store
from journal import Position
from journal.core.chain import segment_name
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.manifest_samples import notes, numbered_checkpoint, worker_checkpoint
from tests.checkpoint.region_model import spec

BEFORE = notes(rows="source", count="count", out="sink")
AFTER = BEFORE | notes(cheap="filter")


def last_of(*, shows_steps: bool = False) -> Checkpoint:
    """The last checkpoint of a region of the former graph that was killed."""
    region = CoordinatorHarness(operators=BEFORE, shows_steps=shows_steps, application="shop").run()
    return region.commit(1, step=5)


def started(
    last: Checkpoint, workers: int = 2, kept: tuple[Checkpoint, ...] = (), **fields: Any
) -> CoordinatorHarness:
    """A program that has claimed the region, and whose workers have restored the checkpoint."""
    region = CoordinatorHarness(workers, seen=last, **{"operators": AFTER, **fields})
    region.play(ManifestOpened(7, last, kept or (last,)))
    region.epoch = 7
    for worker in range(len(region.core.run.roster)):
        region.join(worker)
    return region


def refused(region: CoordinatorHarness) -> str:
    assert region.take(OpenManifest, LaunchWorker) == [], "nothing is claimed, and nothing launched"
    assert region.state is RegionState.FAILED
    outcome = region.core.run.outcome
    assert outcome is not None
    assert outcome.error is not None
    return f"{outcome.error} {outcome.error.remedy}"


def paused(region: CoordinatorHarness, step: int) -> None:
    """All workers have ended this step, and begin none."""
    pause = region.core.checkpoints.pause
    region.receive_from_all(Paused, pause=pause, step=step, counters=Counters(step=step))


def test_a_graph_begins_with_a_checkpoint_before_any_step() -> None:
    region = started(last_of())
    orders = [order for _, order in region.sent(Restore)]
    assert [(order.moves, order.layout, order.restore.operators) for order in orders] == [
        (True, last_of().layout, BEFORE)
    ] * 2
    for worker in range(2):
        region.receive(worker, Restored, last_step=9)
    assert region.sent(Start) == [], "its graph is not committed"
    region.votes(2, step=5)
    assert region.appended().operators == AFTER
    starts = [order for _, order in region.sent(Start)]
    assert [order.replay_until_step for order in starts] == [5, 5], "what follows was divided for the other"
    assert region.state is RegionState.RUNNING


def test_the_uids_of_a_graph_are_in_its_orders_and_in_all_of_its_records() -> None:
    graph = {**notes(rows="source", tallies="count", out="sink", top="top_k", new="sink")}
    options = GraphOptions(renamed={"count": "tallies"})
    region = started(last_of(), operators=graph, graph_options=options)
    uid = f"{born_with('region', 1)}"
    uids = {"tallies": "count", "top": f"{uid}top", "new": f"{uid}new"}
    assert [order.uids for _, order in region.sent(Restore)] == [uids] * 2
    for worker in range(2):
        region.receive(worker, Restored, last_step=5)
    region.votes(2, step=5)
    first = region.appended()
    assert (first.operators, first.uids) == (graph, uids)
    again = started(first, operators=graph, graph_options=options)
    assert [(order.moves, order.uids) for _, order in again.sent(Restore)] == [(False, uids)] * 2
    back = restored((last_of(), first), last_of(), 9)
    assert (back.operators, back.uids) == (BEFORE, {}), "a restore takes the uids of its target"


def test_a_new_source_begins_at_its_end_in_the_orders_before_its_first_checkpoint_alone() -> None:
    options = GraphOptions(begins={"prices": "latest", "rows": "latest"})
    graph = BEFORE | notes(prices="source")
    region = started(last_of(), operators=graph, graph_options=options)
    assert [order.latest for _, order in region.sent(Restore)] == [("prices",)] * 2
    for worker in range(2):
        region.receive(worker, Restored, last_step=5)
    region.votes(2, step=5)
    again = started(region.appended(), operators=graph, graph_options=options)
    assert [order.latest for _, order in again.sent(Restore)] == [()] * 2, "what was read since stays read"


def test_a_region_without_a_checkpoint_does_not_look_for_an_end() -> None:
    options = GraphOptions(begins={"rows": "latest"})
    region = CoordinatorHarness(operators=BEFORE, graph_options=options)
    order = next(iter(region.take(OpenManifest)))
    with pytest.raises(GraphChangeRefusedError, match="states where the end of source 'rows' was"):
        order.decide(None)


def bootstrapping(last: Checkpoint, of: str, **fields: Any) -> RegionSpec:
    options = GraphOptions.of({"bootstrap": (of, {"top": []})})
    return spec(2, operators=BEFORE | notes(top="top_k"), graph_options=options, **fields)


def with_rows(last: Checkpoint, made_of: int) -> Checkpoint:
    """The record of a start that was cut short: the rows are beside the state of the last checkpoint."""
    uid = f"{born_with('region', last.number + 1)}top"
    edit = Edit(bootstraps=(uid,), made_of=made_of)
    return edited((last,), last, 8, {}, edit)


def test_rows_are_added_to_the_checkpoint_of_which_they_are_made() -> None:
    last = msgspec.structs.replace(last_of(), savepoints={"b": 1, "old": 7})
    again = recorded_again((last,), 8, last.savepoints)
    for of, known in (("savepoint:b", again), ("checkpoint:1", again), ("checkpoint:2", again)):
        assert rows_to_add(bootstrapping(last, of), known) == {"top": f"{born_with('region', 2)}top"}
    for of in ("savepoint:old", "savepoint:none", "checkpoint:7", "checkpoint:x", "time:1", ""):
        with pytest.raises(GraphChangeRefusedError, match="and not of checkpoint 2, the last one"):
            rows_to_add(bootstrapping(last, of), again)
    with pytest.raises(GraphChangeRefusedError, match="a hand-over takes another checkpoint"):
        rows_to_add(bootstrapping(last, "savepoint:b", hand_over=True), last)
    cut = with_rows(last, made_of=1)
    assert rows_to_add(bootstrapping(last, "savepoint:b"), cut) == {"top": f"{born_with('region', 2)}top"}
    rewritten = edited((last,), last, 8, {}, Edit(by="ann"))
    with pytest.raises(GraphChangeRefusedError, match="and not of checkpoint 2, the last one"):
        rows_to_add(bootstrapping(last, "savepoint:b"), rewritten)


def test_a_graph_whose_state_begins_with_rows_continues_from_their_record_alone() -> None:
    last = last_of()
    mine, cut = bootstrapping(last, "checkpoint:1"), with_rows(last, made_of=1)
    check_application(replace(mine, application="region"), {"region": last})
    check_continues(mine, cut)
    with pytest.raises(GraphChangeRefusedError, match="has no rows of bootstrap for the new operator 'top'"):
        check_continues(mine, last)
    without = replace(mine, graph_options=GraphOptions())
    with pytest.raises(GraphChangeRefusedError, match="has rows of a bootstrap for the new operator 'top'"):
        check_continues(without, cut)
    check_continues(spec(2, operators=BEFORE), cut)
    first = msgspec.structs.replace(cut, number=3, operators=mine.operators, edit=None)
    with pytest.raises(GraphChangeRefusedError, match="has no rows of bootstrap"):
        check_goes_back(mine, (last, cut, first), cut)
    with pytest.raises(GraphChangeRefusedError, match=r"has no checkpoint.* are made of checkpoint:1"):
        check_application(replace(mine, application="region"), {})


def test_the_same_graph_and_one_of_another_order_continue_at_once() -> None:
    region = started(last_of(), operators=dict(reversed(BEFORE.items())))
    for worker in range(2):
        region.receive(worker, Restored, last_step=9)
    assert [order.replay_until_step for _, order in region.sent(Start)] == [9, 9]


def test_a_graph_that_was_not_committed_before_a_loss_begins_again() -> None:
    region = started(last_of())
    region.votes(2, step=5)
    again = started(last_of())
    assert all(order.moves for _, order in again.sent(Restore))


@pytest.mark.parametrize("shows_steps", [True, False])
def test_steps_that_may_be_shown_are_not_made_again_by_another_graph(*, shows_steps: bool) -> None:
    """Whatever the new graph shows: those of the former one are there."""
    last = last_of(shows_steps=True)
    region = CoordinatorHarness(seen=last, operators=AFTER, shows_steps=shows_steps)
    why = refused(region)
    assert "it may have shown steps after this checkpoint" in why
    assert "with other operators 'cheap'" in why
    assert "dos region restore URL region --to checkpoint:1" in why
    late = CoordinatorHarness(operators=AFTER, shows_steps=shows_steps)
    late.opened(last)
    assert late.sent(Restore) == []
    assert late.state is not RegionState.RUNNING, "it is decided again under the claim"


def test_a_graph_that_another_program_began_meanwhile_is_not_changed_unawares() -> None:
    """Although it fits: it was not compared. The program's own graph is no other one."""
    last = last_of()
    for operators, why in (
        (BEFORE | notes(dear="filter"), "another program, of ann:7, began this graph while"),
        (AFTER, ""),
    ):
        region = CoordinatorHarness(seen=last, operators=AFTER)
        changed = msgspec.structs.replace(last, operators=operators, driver="ann:7")
        region.play(ManifestOpened(7, changed, (changed,)))
        assert (region.core.run.outcome is None) == (not why)
        assert why in region.core.run.reason
    unread = CoordinatorHarness(operators=AFTER, unread=True)
    unread.opened(last)
    assert unread.core.run.outcome is None, "nothing was compared before the claim"


def test_a_region_whose_shown_steps_were_taken_back_gets_another_graph() -> None:
    last = last_of(shows_steps=True)
    region = started(restored((last,), last, 3), shows_steps=True)
    for worker in range(2):
        region.receive(worker, Restored, last_step=5)
    region.votes(3, step=5)
    record = region.appended()
    assert (record.operators, record.line, record.shows_on) == (AFTER, 1, True)


def stopped(*, covered: bool) -> Checkpoint:
    """The last checkpoint of a region that shows steps and was stopped."""
    region = CoordinatorHarness(operators=BEFORE, shows_steps=True).run()
    assert region.commit(1, step=5).shows_on
    region.progress(0, step=5 if covered else 8)
    region.play(StopWanted())
    paused(region, 5 if covered else 8)
    assert region.requested() == [2, 2]
    region.votes(2, step=9)
    last = region.appended()
    assert region.core.run.outcome is not None, "it waits for nothing more"
    return last


@pytest.mark.parametrize("covered", [True, False])
def test_a_region_that_stops_states_that_nothing_is_shown_after_its_last_checkpoint(*, covered: bool) -> None:
    last = stopped(covered=covered)
    assert (last.number, last.shows_on, last.is_quiet) == (2, False, True)
    region = started(last, shows_steps=True)
    region.votes(3, step=9)
    for worker in range(2):
        region.receive(worker, Restored, last_step=9)
    region.votes(3, step=9)
    assert region.appended().operators == AFTER


def test_a_region_that_continues_states_that_steps_are_shown_before_it_shows_any() -> None:
    """Killed before its first checkpoint, it would look as if nothing had been shown."""
    region = started(stopped(covered=True), operators=BEFORE, shows_steps=True)
    assert all(order.moves for _, order in region.sent(Restore))
    for worker in range(2):
        region.receive(worker, Restored, last_step=9)
    assert region.sent(Start) == []
    region.votes(3, step=9)
    assert region.appended().shows_on
    assert len(region.sent(Start)) == 2


def test_a_checkpoint_that_was_requested_before_all_have_paused_is_not_the_last_one() -> None:
    """A worker that had voted for it may have ended later steps before it paused."""
    region = CoordinatorHarness(operators=BEFORE, shows_steps=True).run()
    region.commit(1, step=5)
    region.take()
    region.progress(0, step=6)
    region.play(CheckpointWanted())
    assert region.requested() == [2, 2]
    region.play(StopWanted())
    paused(region, 8)
    region.votes(2, step=6)
    assert region.appended().shows_on
    assert region.requested() == [3, 3]
    region.votes(3, step=9)
    assert region.appended().is_quiet


def test_a_region_that_was_paused_before_it_stops_states_it_too() -> None:
    region = CoordinatorHarness(operators=BEFORE, shows_steps=True).run()
    region.commit(1, step=5)
    region.play(PauseWanted(on=True))
    paused(region, 5)
    region.take()
    region.play(StopWanted())
    assert region.requested() == [2, 2]
    region.votes(2, step=6)
    assert region.appended().is_quiet


def test_a_pause_is_not_the_end() -> None:
    """The region may continue, and be killed before its next checkpoint."""
    region = CoordinatorHarness(operators=BEFORE, shows_steps=True).run()
    region.commit(1, step=5)
    region.progress(0, step=7)
    region.play(PauseWanted(on=True))
    paused(region, 7)
    region.votes(2, step=8)
    assert region.appended().shows_on


def test_rows_that_were_shown_after_the_last_checkpoint_come_again_if_it_is_restored() -> None:
    shown = msgspec.structs.replace(last_of(shows_steps=True), irrevocable={"mail": "it is sent"})
    assert republished(shown, shown) == {"mail": "it is sent"}
    assert republished(msgspec.structs.replace(shown, shows_on=False), shown) == {}


def test_rows_that_a_sink_has_shown_stay_when_it_is_gone() -> None:
    """Otherwise a restore to a checkpoint from before makes them again, and nobody is asked."""
    region = CoordinatorHarness(operators=BEFORE, irrevocable={"out": "it is sent"}).run()
    first, second = region.commit(1, step=5), region.commit(2, step=9)
    first = msgspec.structs.replace(first, retained=(1,), savepoints={"good": 1})
    second = msgspec.structs.replace(second, retained=(1, 2), savepoints={"good": 1})
    later = started(second, kept=(first, second), operators=BEFORE, irrevocable={})
    for worker in range(2):
        later.receive(worker, Restored, last_step=9)
    for number in (3, 4, 5, 6):
        last = later.commit(number, step=10 * number)
        assert (last.irrevocable, last.former_sinks) == ({}, {"out": FormerSink("it is sent", 3)})
    later.take()
    later.play(RestoreWanted("savepoint:good"))
    (settled,) = later.events(RestoreSettled)
    assert "'out': it is sent" in settled.error
    third = later.core.run.kept[-2]
    assert third.number > 3
    assert republished(last, third) == {}, "it was gone"
    back = restored(later.core.run.kept, first, 9)
    assert back.irrevocable == {"out": "it is sent"}
    assert back.former_sinks == {"out": FormerSink("it is sent", 3)}
    other = restored(later.core.run.kept, last, 9)
    assert former_sinks(last, 7, (5, 6, 7), {}, {}) == {}, "no older checkpoint is retained"
    assert other.former_sinks == last.former_sinks


def test_a_program_that_removes_such_a_sink_states_that_its_rows_stay() -> None:
    stated = {"irrevocable": {"out": "it is sent"}}
    first = msgspec.structs.replace(last_of(), **stated)
    graph = notes(rows="source", count="count", other="sink")
    options = GraphOptions(removed={"out": None}, without_specs=True)
    _, last = upgraded((first,), graph, graph_options=options)
    assert (last.irrevocable, last.former_sinks) == ({}, {"out": FormerSink("it is sent", 2)})
    assert republished(last, first) == {}, "nothing was shown between the two"
    later = msgspec.structs.replace(last, number=3, step=last.step + 1)
    assert republished(later, first) == {"out": "it is sent"}
    assert republished(later, last) == {}


def test_a_sink_that_is_renamed_is_not_gone() -> None:
    last = msgspec.structs.replace(last_of(), irrevocable={"out": "it is sent"})
    irrevocable = {"post": "it is sent"}
    assert former_sinks(last, 2, (1, 2), irrevocable, {"post": "out"}) == {}
    assert former_sinks(last, 2, (1, 2), irrevocable, {}) == {"out": FormerSink("it is sent", 2)}


def test_a_region_that_shows_no_steps_stops_as_soon_as_its_last_checkpoint_covers_all() -> None:
    region = CoordinatorHarness(operators=BEFORE).run()
    region.commit(1, step=5)
    region.take()
    region.play(StopWanted())
    paused(region, 5)
    assert region.take(AppendCheckpoint, RequestCheckpoint) == []
    assert region.core.run.outcome is not None


@pytest.mark.parametrize(
    ("graph", "options"),
    [
        (AFTER, GraphOptions()),
        (BEFORE | notes(other="source"), GraphOptions()),
        (notes(rows="source", tallies="count", out="sink"), GraphOptions(renamed={"count": "tallies"})),
        (notes(rows="source", out="sink"), GraphOptions(drop_state=("count",))),
    ],
    ids=["a filter", "a source", "renamed", "dropped"],
)
def test_a_region_with_replicas_elsewhere_keeps_its_graph(
    graph: dict[str, OperatorNote], options: GraphOptions
) -> None:
    """With any difference its rows differ from those of the others, of which the fewer are detached."""
    fields: dict[str, Any] = {"operators": graph, "graph_options": options}
    assert not compare(BEFORE, graph, options=options).refused
    assert started(last_of(), **fields).sent(Restore), "without replicas it fits"
    fields["keeps_graph"] = "its replicas run the former one"
    assert "its replicas run the former one" in refused(CoordinatorHarness(seen=last_of(), **fields))
    late = CoordinatorHarness(unread=True, **fields)
    late.opened(last_of())
    assert late.sent(Restore) == [], "it is decided under the claim, too"


def shop(**parts: dict[str, Any]) -> RegionSpec:
    """The first of the parts of an application, with the others beside it."""
    first, *beside = (
        replace(spec(2, application="shop", operators=operators), name=f"shop.{name}")
        for name, operators in parts.items()
    )
    return replace(first, beside=tuple(beside))


CLICKS = notes(clicks="source", longest="count", shown="sink")


def test_all_parts_of_an_application_are_compared_before_any_is_claimed() -> None:
    last = {"shop.rows": last_of(), "shop.clicks": msgspec.structs.replace(last_of(), operators=CLICKS)}
    check_application(shop(rows=AFTER, clicks=CLICKS | notes(dear="filter")), last)
    check_application(shop(rows=AFTER, clicks=CLICKS), {"shop.clicks": last["shop.clicks"]})
    with pytest.raises(
        GraphChangeRefusedError, match=r"region 'shop\.clicks' was made by.*'longest' was count"
    ):
        check_application(shop(rows=AFTER, clicks=CLICKS | notes(longest="sum")), last)


def sold(**results: str) -> dict[str, OperatorNote]:
    made = tuple(ResultNote(name, by) for name, by in results.items())
    return {"sold": msgspec.structs.replace(notes(sold="aggregate")["sold"], results=made)}


def test_the_uids_of_results_are_in_orders_and_records_and_a_dry_run_names_their_options() -> None:
    before = msgspec.structs.replace(
        last_of(), operators=BEFORE | sold(n="Count()", s="Sum(price) int", few="Min(price) int")
    )
    after = BEFORE | sold(top="Max(price) int", n="Count()", s="Sum(price) double")
    (found,) = plan_upgrade(shop(rows=after), {"shop.rows": before})
    assert found.options == 'drop_state=("sold:few", "sold:s",), new_aggregates=("sold:top",)'
    options = GraphOptions(drop_state=("sold:few", "sold:s"), new_aggregates=("sold:top",))
    (found,) = plan_upgrade(shop(rows=after), {"shop.rows": before}, options)
    assert found.fits
    lines = str(found).splitlines()
    assert "new      sold:s (Sum(price) double), sold:top (Max(price) int)" in lines
    assert "dropped  sold:few (Min(price) int), sold:s (Sum(price) int)" in lines
    region = started(before, operators=after, graph_options=options)
    born = born_with("region", 1)
    uids = {"sold:s": f"{born}s", "sold:top": f"{born}top"}
    assert [(order.moves, order.uids) for _, order in region.sent(Restore)] == [(True, uids)] * 2
    for worker in range(2):
        region.receive(worker, Restored, last_step=5)
    region.votes(2, step=5)
    changed = region.appended()
    assert (changed.operators, changed.uids) == (after, uids)
    again = started(changed, operators=after, graph_options=options)
    assert [(order.moves, order.uids) for _, order in again.sent(Restore)] == [(False, uids)] * 2
    (back,) = plan_upgrade(shop(rows=dict(before.operators)), {"shop.rows": changed})
    assert "was replaced" not in str(back)
    assert 'drop_state=("sold:s", "sold:top",), new_aggregates=("sold:few",)' in str(back)


def test_a_dry_run_names_the_options_that_permit_what_is_refused() -> None:
    last = {
        "shop.rows": msgspec.structs.replace(last_of(shows_steps=True), operators=BEFORE | notes(top="top_k"))
    }
    after = notes(rows="source", visits="count", out="sink", cheap="filter")
    (found,) = plan_upgrade(shop(rows=after), last)
    assert not found.fits
    assert found.options == 'renamed={"count": "visits"}, drop_state=("top",)'
    assert f"To permit it: {found.options}" in str(found)
    options = GraphOptions(drop_state=("top",), renamed={"count": "visits"})
    (found,) = plan_upgrade(shop(rows=after), last, options)
    assert found.fits, "steps may be shown, but it can be stopped or handed over"
    assert str(found).splitlines()[1:-1] == [
        "kept     out (sink), rows (source)",
        "renamed  count -> visits (count)",
        "new      cheap (filter)",
        "gone     -",
        "dropped  top (top_k)",
        "removed  -",
        "refused  -",
    ]
    assert found.as_json()["renamed"] == {"count": "visits"}
    (began,) = plan_upgrade(shop(rows=after), {})
    assert began.fits
    with pytest.raises(ValueError, match="begins has 'prices', which is no source"):
        plan_upgrade(shop(rows=BEFORE), last, GraphOptions(begins={"prices": "latest"}))
    other = {"shop.rows": last_of(), "shop.clicks": msgspec.structs.replace(last_of(), operators=CLICKS)}
    moved = plan_upgrade(shop(rows=BEFORE | notes(longest="count"), clicks=CLICKS), other)
    assert [one.fits for one in moved] == [False, True]
    assert "regions are neither merged nor divided" in str(moved[0])


def test_a_dry_run_shows_what_is_removed_and_with_what() -> None:
    """Without specifications, which only the program has."""
    sink = OperatorNote(kind="sink", detail="ParquetSink /data/audit", removed_with="ParquetSink")
    graph = BEFORE | notes(old="source") | {"audit": sink}
    last = msgspec.structs.replace(last_of(), operators=graph, uids={"old": "_1f-old"})
    (refused,) = plan_upgrade(shop(rows=BEFORE), {"shop.rows": last})
    needed = 'removed={"audit": ParquetSink(...), "old": None}'
    assert not refused.fits
    assert f"To permit it: {needed}" in str(refused)
    options = GraphOptions(removed={"audit": None, "old": None}, without_specs=True)
    unread = {"shop.rows": {"_1f-old": 2113}}
    (found,) = plan_upgrade(shop(rows=BEFORE), {"shop.rows": last}, options, unread)
    assert found.fits
    assert "removed  audit (sink, ParquetSink /data/audit), old (source; 2,113 bytes unread)" in str(found)
    assert f"To permit it: {needed}" in str(found)
    (_, old) = found.as_json()["changes"]["removed"]
    assert old == {"operator": "old", "kind": "source", "unreadBytes": 2113}


def test_a_dry_run_shows_where_a_new_source_begins_and_which_of_its_rows_are_late() -> None:
    def graph(*sources: str) -> dict[str, OperatorNote]:
        above = {"lineage": (sources,)}
        timed = {
            "timed": OperatorNote(kind="event_time", **above),
            "sums": OperatorNote(kind="window", **above),
        }
        return notes(**dict.fromkeys(sources, "source"), out="sink") | timed

    reached = [1_700_000_000_000_000, 1_800_000_000_000_000]
    last = msgspec.structs.replace(
        last_of(),
        operators=graph("rows"),
        workers={
            worker: msgspec.structs.replace(
                part, sources={"timed": {"rows/p": SplitPosition(reached[worker] + 2**63)}}
            )
            for worker, part in last_of().workers.items()
        },
    )
    options = GraphOptions(begins={"prices": "latest"})
    (found,) = plan_upgrade(shop(rows=graph("rows", "prices")), {"shop.rows": last}, options)
    assert "new      prices (source; begins at its end)" in str(found)
    assert 'begins={"prices": "latest"}' in str(found)
    assert found.late_us == {"prices": reached[0]}
    assert found.as_json()["changes"]["new"] == [{"operator": "prices", "kind": "source", "begins": "latest"}]
    (beside,) = plan_upgrade(shop(rows=graph("rows") | notes(prices="source")), {"shop.rows": last})
    assert beside.late_us == {}


def test_a_state_does_not_move_to_another_part_of_an_application() -> None:
    """It would begin anew there, and be lost here, although the graph as a whole has not changed."""
    wide = BEFORE | notes(longest="count")
    last = {
        "shop.rows": msgspec.structs.replace(last_of(), operators=BEFORE),
        "shop.clicks": msgspec.structs.replace(last_of(), operators=CLICKS),
    }
    moved = shop(rows=wide, clicks=CLICKS)
    with pytest.raises(GraphChangeRefusedError, match=r"state of 'longest' is in region 'shop\.clicks'"):
        check_application(moved, last)
    alone = {
        "shop.rows": msgspec.structs.replace(last_of(), operators=wide),
        "shop.clicks": last["shop.clicks"],
    }
    check_application(moved, alone)
    removed = replace(shop(rows=wide), graph_options=GraphOptions(removed_regions=("shop.old",)))
    other = {**last, "shop.old": last["shop.clicks"]}
    del other["shop.clicks"]
    with pytest.raises(GraphChangeRefusedError, match=r"'longest' is in region 'shop\.old'"):
        check_application(removed, other)
    elsewhere = msgspec.structs.replace(last["shop.clicks"], application="shop.old")
    check_application(shop(rows=wide), {**other, "shop.old": elsewhere})


def test_another_number_of_workers_may_come_with_another_graph() -> None:
    """Nothing that was shown is made again: it would have been refused."""
    for shows_steps in (True, False):
        last = stopped(covered=True) if shows_steps else last_of()
        region = started(last, workers=3, shows_steps=shows_steps)
        assert len(region.core.run.roster) == 3
        for worker in range(3):
            region.receive(worker, Restored, last_step=last.step)
        region.votes(last.number + 1, step=last.step)
        record = region.appended()
        assert (len(record.workers), record.operators) == (3, AFTER)


def test_a_restore_may_cross_a_change_of_stateless_operators() -> None:
    region = started(last_of())
    for worker in range(2):
        region.receive(worker, Restored, last_step=5)
    region.votes(2, step=5)
    last = region.appended()
    target = region.core.run.kept[0]
    record = restored(region.core.run.kept, target, 7)
    assert (record.operators, last.operators) == (BEFORE, AFTER)
    later = started(msgspec.structs.replace(record, retained=(record.number,)))
    assert all(order.moves for _, order in later.sent(Restore))


def upgraded(
    kept: tuple[Checkpoint, ...], graph: dict[str, OperatorNote], **fields: Any
) -> tuple[Checkpoint, ...]:
    """The checkpoints that are retained once a graph has begun after these."""
    last = kept[-1]
    region = started(last, kept=kept, operators=graph, **fields)
    for worker in range(2):
        region.receive(worker, Restored, last_step=last.step)
    region.votes(last.number + 1, step=last.step)
    region.appended()
    return region.core.run.kept


def test_a_graph_that_was_replaced_is_refused_until_its_program_says_that_it_means_it() -> None:
    first, last = upgraded((last_of(),), AFTER)
    last = msgspec.structs.replace(last, driver="host2:7")
    region = CoordinatorHarness(seen=last, operators=BEFORE)
    why = refused(region)
    savepoint = upgrade_savepoint("region", first.number)
    assert f"was replaced in region 'region' at checkpoint {last.number} by host2:7" in why
    assert f"--to savepoint:{savepoint} --stopped" in why
    back = upgraded((first, last), BEFORE, graph_options=GraphOptions(graph_back=True))[-1]
    assert list(back.replaced) == [fingerprint(AFTER)], "they are exchanged"
    assert "was replaced" in refused(CoordinatorHarness(seen=back, operators=AFTER))
    later = started(last, kept=(first, last), operators=AFTER)
    for worker in range(2):
        later.receive(worker, Restored, last_step=5)
    record = later.commit(last.number + 1, step=9)
    assert record.replaced[fingerprint(BEFORE)] == ReplacedGraph(last.number, "host2:7")


def test_a_restore_of_the_savepoint_before_a_change_exchanges_the_two_graphs() -> None:
    kept = upgraded((last_of(),), AFTER)
    target = find_target(kept, f"savepoint:{upgrade_savepoint('region', 1)}", region="region")
    assert target.operators == BEFORE
    back = restored(kept, target, 9)
    assert list(back.replaced) == [fingerprint(AFTER)]
    assert started(back, kept=(*kept, back), operators=BEFORE).sent(Restore)
    assert "was replaced" in refused(CoordinatorHarness(seen=back, operators=AFTER))
    mine = restored(kept, target, 9, graph=AFTER)
    assert list(mine.replaced) == [fingerprint(BEFORE)], "the program that asks for it continues"
    assert started(mine, kept=(*kept, mine), operators=AFTER).sent(Restore)


@pytest.mark.parametrize("other", [1, 2])
def test_a_region_that_runs_goes_back_below_one_change_of_its_graph_and_not_below_two(other: int) -> None:
    # The state of 'count' belongs to 'total' since: the last graph has another 'count', which is empty. So it
    # fits the first graph, and would continue with rows that are not its own.
    renamed = notes(rows="source", total="count", out="sink")
    both = renamed | notes(count="count")
    kept = upgraded((last_of(),), renamed, graph_options=GraphOptions(renamed={"count": "total"}))
    kept = upgraded(kept, both)
    first, second, last = kept
    region = started(last, kept=kept, operators=both)
    for worker in range(2):
        region.receive(worker, Restored, last_step=last.step)
    assert region.state is RegionState.RUNNING
    region.take()
    region.play(RestoreWanted(f"checkpoint:{other}"))
    if other == second.number:
        (append,) = region.take(AppendCheckpoint)
        assert append.checkpoint.rolled_back_to == second.number
        return
    assert not compare(first.operators, both).refused
    (settled,) = region.events(RestoreSettled)
    assert "more than one change of the graph is between" in settled.error
    assert "--to checkpoint:1 --stopped" in settled.error


def test_a_program_may_take_back_what_another_graph_has_shown_and_no_graph_that_was_replaced() -> None:
    shown = last_of(shows_steps=True)
    assert not shown.is_quiet
    program = replace(spec(), operators=AFTER, restore="checkpoint:1")
    with pytest.raises(GraphChangeRefusedError, match="shown steps after this checkpoint") as refusal:
        check_continues(program, shown)
    assert 'restore="checkpoint:1" in this program' in refusal.value.remedy
    with pytest.raises(GraphChangeRefusedError) as ended:  # its program has no input left, and ends again
        check_continues(program, msgspec.structs.replace(shown, final=True))
    assert "start the program that ran last" in refusal.value.remedy
    assert "start the program that ran last" not in ended.value.remedy
    check_continues(program, when_restored(program, (shown,), shown))
    # The old program, which a supervisor starts again, and which asked for the same checkpoint once.
    first, last = upgraded((last_of(),), AFTER)
    old = replace(program, operators=BEFORE)
    with pytest.raises(GraphChangeRefusedError, match="was replaced"):
        check_continues(old, when_restored(old, (first, last), first))
    meant = replace(old, graph_options=GraphOptions(graph_back=True))
    check_continues(meant, when_restored(meant, (first, last), first))
    other = replace(program, operators=AFTER | notes(dear="map"))
    with pytest.raises(GraphChangeRefusedError, match="more than one change"):
        when_restored(other, (first, last), first)


def test_the_checkpoints_before_the_last_changes_of_a_graph_stay() -> None:
    kept = (last_of(),)
    versions = [BEFORE | notes(**{f"cheap{number}": "filter"}) for number in range(5)]
    for graph in versions:
        kept = upgraded(kept, graph)
    last = kept[-1]
    assert last.savepoints == {upgrade_savepoint("region", number): number for number in (3, 4, 5)}
    assert list(last.replaced) == [fingerprint(graph) for graph in (BEFORE, *versions[:-1])]
    assert set(last.notes) == set(last.savepoints)
    assert "reserved" in savepoint_name_problem("upgrade-mine")


def test_the_checkpoint_before_a_change_goes_after_a_time_or_when_the_disk_of_a_member_is_full() -> None:
    first, changed = upgraded((last_of(),), AFTER)
    changed = msgspec.structs.replace(changed, wall_time_ms=1_000)
    assert upgrades_over(changed, 10**9, 60, []) == {}, "its record was not written when it was made"
    region = started(changed, kept=(first, changed), operators=AFTER)
    for worker in range(2):
        region.receive(worker, Restored, last_step=5)
    last = region.commit(changed.number + 1, step=9)
    name = upgrade_savepoint("region", first.number)
    assert last.notes[name].wall_time_ms == 1_000
    later = region.commit(last.number + 1, step=12)
    assert later.notes[name].wall_time_ms == 1_000
    assert upgrades_over(later, 60_999, 60, []) == {}
    assert list(upgrades_over(later, 61_000, 60, [])) == [name]
    assert upgrades_over(later, 0, 60, ["h2:9999"]) == {name: "the disk of h2:9999 is full"}
    mine = msgspec.structs.replace(later, savepoints={"mine": 1}, notes={"mine": SavepointNote(why="mine")})
    assert upgrades_over(mine, 10**9, 60, ["h2:9999"]) == {}, "what a person made stays"
    with pytest.raises(ValueError, match="keep_before must be above 0"):
        replace(spec(), keep_before_s=0)


@pytest.mark.trio
async def test_a_driver_drops_the_checkpoints_before_changes_that_are_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "savepoints_poll_s", 0.001)
    _, last = upgraded((last_of(),), AFTER)
    name = upgrade_savepoint("region", 1)
    last = msgspec.structs.replace(last, notes={name: SavepointNote(wall_time_ms=1)})
    posted = list[SavepointWanted]()
    async with memory_store() as servers, open_store(servers.url) as store, trio.open_nursery() as nursery:
        kept = replace(spec(), keep_before_s=float("inf"))
        nursery.start_soon(watch_savepoints, store, kept, lambda: last, pytest.fail)
        over, twice = replace(spec(), keep_before_s=60.0), trio.Event()

        def post(wanted: SavepointWanted) -> None:
            posted.append(wanted)
            if len(posted) == 2:
                twice.set()

        nursery.start_soon(watch_savepoints, store, over, lambda: last, post)
        await twice.wait()
        nursery.cancel_scope.cancel()
    assert posted[:2] == [SavepointWanted(name, on=False)] * 2
    assert caplog.text.count(f"region region drops savepoint {name}") == 1
    assert "60 s are over, see keep_before" in caplog.text


def test_the_graphs_that_a_checkpoint_states_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "replaced_graphs_max", 2)
    kept = (last_of(),)
    for number in range(4):
        kept = upgraded(kept, BEFORE | notes(**{f"cheap{number}": "filter"}))
    assert len(kept[-1].replaced) == 2


def test_a_log_ends_where_all_workers_have_it_also_those_that_leave_with_its_sink_and_those_that_left() -> (
    None
):
    def part(size: int, **logs: int) -> dict[str, Any]:
        sinks = {uid: {"epoch": 1, "size": at, "digest": 0} for uid, at in logs.items()}
        return {"sinks": sinks, "floors": {f"out-{uid}": (1, size) for uid in logs}}

    operators = BEFORE | notes(audit="sink")
    workers = {one: worker_checkpoint(1, **part(one, _2_a=10 + one, out=20 + one)) for one in (0, 1)}
    parent = numbered_checkpoint(
        4,
        operators=operators,
        uids={"audit": "_2_a"},
        workers=workers,
        retired={5: RetiredWorker(**part(5, _2_a=15))},
    )
    pending = PendingCheckpoint(5, 7, 1, final=False, requested_at=0.0)
    positions = worker_checkpoint(7, **part(0, out=20))
    for_d = Vote(job="r", incarnation=7, checkpoint=5, worker=0, epoch=7, step=32, positions=positions)
    assert pending.vote(for_d) is None
    record = pending.build(parent, even_layout(1), BEFORE, {}, (4, 5), {}, 0, {}, {}, shows_steps=False)
    check_checkpoint(record)
    log = record.ended["_2_a"]
    assert (log.sink, log.checkpoint, log.dropped_by) == ("audit", 5, "")
    assert {worker: at.size for worker, at in log.ends.items()} == {0: 10, 1: 11, 5: 15}
    assert log.floors == {0: (1, 0), 1: (1, 1), 5: (1, 5)}
    # What is kept of those that left has the log of the present sink alone.
    assert {worker: set(one.sinks) for worker, one in record.retired.items()} == {1: {"out"}, 5: set()}
    assert {one.chain for one in needed_chains(record, "r")} == {"state", "steps", "out-out", "out-_2_a"}
    again = compared_with(record, BEFORE | notes(audit="sink"), region="r", options=GraphOptions())
    assert (again.refused, again.new) == ((), ("audit",)), "its name may come back"
    taken = msgspec.structs.replace(record, ended={f"{born_with('r', 5)}audit": log})
    change = compared_with(taken, BEFORE | notes(audit="sink"), region="r", options=GraphOptions())
    assert "as a log that has ended is" in dict(change.refused)["audit"]
    next_vote = recorded_again((parent, record), 8, {})
    assert next_vote.ended == record.ended
    assert not forked(record, ForkOrigin(region="r", checkpoint=5, step=32, savepoint="s"), 1).ended


def test_at_most_so_many_removed_logs_stay_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = {"sinks": {"out": {"epoch": 1, "size": 9, "digest": 0}}, "floors": {"out-out": (1, 0)}}
    operators = BEFORE | {"out": OperatorNote(kind="sink", detail="LogSink")}
    ended = {"old": EndedLog(sink="old", checkpoint=2, ends={0: Position(1, 9, 0)}, floors={0: (1, 0)})}
    last = numbered_checkpoint(4, operators=operators, workers={0: worker_checkpoint(1, **sink)}, ended=ended)
    graph = {name: note for name, note in BEFORE.items() if name != "out"}
    compared = partial(
        compared_with, last, graph, region="r", options=GraphOptions.of({"removed": {"out": None}})
    )
    assert compared().refused == ()
    monkeypatch.setattr(limits, "ended_logs_max", 1)
    assert "the last of 2 removed logs that stay readable" in dict(compared().refused)["out"]
    assert "dos output drop URL r SINK" in dict(compared().refused)["out"]
    dropped = {"old": msgspec.structs.replace(ended["old"], floors={}, dropped_by="ann@host")}
    last = msgspec.structs.replace(last, ended=dropped)
    assert compared.func(last, *compared.args[1:], **compared.keywords).refused == ()


def test_a_log_that_was_dropped_is_deleted_when_no_retained_checkpoint_has_it() -> None:
    """As is one that a restore took back as a whole. One that can be read is not."""
    log = EndedLog(sink="old", checkpoint=2, ends={0: Position(1, 9, 0)}, floors={0: (1, 0)})
    back = EndedLog(sink="new", checkpoint=3)
    last = numbered_checkpoint(4, incarnation=3, operators=BEFORE, ended={"old": log, "new": back})
    record = recorded_again((last,), 5, {}, dropped={"old": "ann@host"})
    check_checkpoint(record, before=last)
    assert record.ended["old"].ends == log.ends, "who has read it knows that"
    segment = segment_name("out-old", 1, 0)
    assert segment_name("out-new", 3, 70) == "out-new.0000000000000003.0000000000000046"
    for worker in (0, 1):
        assert not unneeded_of((last, record), worker)(segment)
        alone = unneeded_of((record,), worker)
        assert alone(segment)
        assert alone(segment_name("out-new", 3, 70))
        assert not alone(segment_name("out-out", 1, 0))
    assert not unneeded_of((last,), 0)(segment)
