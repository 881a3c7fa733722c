"""What a page or a screen shows of a reading: the graph, rates, back-pressure, the kinds of directories."""

import pytest
from rich.console import Console

import dos
from checkpoint import VERBS
from checkpoint.core.records.consumers import input_register, output_register
from checkpoint.core.records.inputs import input_directory, producer_directory
from checkpoint.core.records.staged import staging_directory
from checkpoint.core.region import (
    answers_directory,
    coordinator_directory,
    requests_directory,
    worker_directory,
)
from dos_ui.core.shown import HISTORY_MAX, RegionRates, directory_row, graph_of, pressure, shown_state, slow
from dos_ui.top import Screen, TopView


def test_the_graph_is_that_of_the_notes_in_a_checkpoint() -> None:
    graph = dos.Graph("shop")
    left = graph.source("left", dos.IteratorSource(lambda: iter(()), schema="word string"))
    right = graph.source("right", dos.IteratorSource(lambda: iter(()), schema="word string"))
    both = left.union("both", right)
    both.key_by("by_word", "word").count("counts").sink("out", dos.LogSink())
    shown = {one["name"]: one for one in graph_of(graph.plan().operators)}
    assert {name: (one["kind"], one["inputs"]) for name, one in shown.items()} == {
        "left": ("source", []),
        "right": ("source", []),
        "both": ("union", ["left", "right"]),
        "by_word": ("key_by", ["both"]),
        "counts": ("count", ["by_word"]),
        "out": ("sink", ["counts"]),
    }
    assert "gives (word string, count bigint)" in shown["counts"]["detail"]


LATE = {"waitsFor": [{"worker": 0, "why": ""}, {"worker": 2, "why": ""}]}


def status(*rows: int, busy: float = 0.0, incarnation: int = 1, attempt: int = 1, **more: object) -> dict:
    workers = [
        {
            "worker": index,
            "attempt": attempt,
            "rowsIn": number,
            "rowsOut": 2 * number,
            "busySeconds": busy,
            "lagBytes": 5,
            "backlogBytes": None,
            "operator": None,
            "operatorSeconds": 0.0,
        }
        for index, number in enumerate(rows)
    ]
    operators = [{"name": "counts", "rowsIn": sum(rows), "rowsOut": sum(rows), "busySeconds": busy}]
    return {
        "incarnation": incarnation,
        "workers": workers,
        "operators": operators,
        "storeWaiting": "",
        "underWay": None,
        **more,
    }


def test_rates_are_differences_between_two_readings() -> None:
    rates = RegionRates()
    assert rates.update(status(10, 20), 100.0, 1)["rowsIn"] is None
    found = rates.update(status(30, 60, busy=1.5), 102.0, 2)
    assert (found["rowsIn"], found["rowsOut"]) == (30.0, 60.0)
    assert found["workers"]["1"] == {"rowsIn": 20.0, "rowsOut": 40.0, "busySeconds": 0.75}
    assert found["operators"]["counts"] == {"rowsIn": 30.0, "rowsOut": 30.0, "busySeconds": 0.375}
    assert [one["rowsIn"] for one in rates.history] == [None, 30.0]


@pytest.mark.parametrize(
    ("counted_s", "in_operator_s", "busy"),
    [(0.0, 30.0, 1.0), (0.0, 0.5, 0.25), (1.0, 0.5, 0.5), (3.0, 0.0, 1.5), (0.0, 0.0, 0.0)],
)
def test_a_worker_inside_a_function_is_busy(counted_s: float, in_operator_s: float, busy: float) -> None:
    rates = RegionRates()
    rates.update(status(10), 100.0, 1)
    now = status(10, busy=counted_s)
    now["workers"][0]["operatorSeconds"] = in_operator_s
    assert rates.update(now, 102.0, 2)["workers"]["0"]["busySeconds"] == busy


def test_an_operator_is_busy_for_its_share_of_the_time_of_all_workers() -> None:
    rates = RegionRates()
    rates.update(status(10, 10), 100.0, 1)
    now = status(10, 10, busy=1.0)
    now["workers"][1] |= {"operator": "counts", "operatorSeconds": 30.0}
    found = rates.update(now, 102.0, 2)["operators"]["counts"]
    assert found["busySeconds"] == (1.0 + 2.0) / (2 * 2.0), "one worker has not returned from it"


def test_counters_that_begin_again_have_no_rate() -> None:
    rates = RegionRates()
    rates.update(status(1000, 1000), 1.0, 1)
    found = rates.update(status(5, 5, incarnation=2, attempt=2), 2.0, 2)
    assert (found["rowsIn"], found["workers"]["0"]["rowsIn"]) == (None, None)
    assert found["operators"]["counts"]["rowsIn"] is None
    assert rates.update(None, 3.0, 3)["rowsIn"] is None
    assert rates.update(status(9, 9), 4.0, 4)["rowsIn"] is None, "the reading before had no status"
    for number in range(HISTORY_MAX):
        rates.update(status(number), float(number + 5), number)
    assert len(rates.history) == HISTORY_MAX


@pytest.mark.parametrize(
    ("busy", "backlog", "lag", "more", "kind", "words"),
    [
        (0.1, 0, 0, {}, "none", ""),
        (0.1, None, 0, {}, "none", ""),
        (0.95, 700, 0, {}, "workers", "busy all the time: worker 0; 700 bytes of input are not yet read"),
        (0.1, 700, 2_000_000, {}, "store", "2000000 bytes are not yet synced"),
        (0.1, 700, 900, {}, "none", "700 bytes of input are not yet read"),
        (0.1, 700, 0, {"storeWaiting": "2 of 3 are away"}, "store", "2 of 3 are away"),
        (
            0.1,
            700,
            9,
            {"underWay": LATE | {"seconds": 9.0}},
            "workers",
            "a checkpoint waits for workers 0, 2; 700",
        ),
        (0.1, 700, 9, {"underWay": LATE | {"seconds": 0.1}}, "none", "700 bytes of input are not yet read"),
    ],
)
def test_what_holds_the_sources_back(
    busy: float, backlog: int | None, lag: int, more: dict, kind: str, words: str
) -> None:
    now = status(10, **more)
    now["workers"][0] |= {"backlogBytes": backlog, "lagBytes": lag}
    found = pressure(now, {"workers": {"0": {"busySeconds": busy}}})
    assert found["kind"] == kind
    assert words in found["text"]
    assert pressure(None, {})["kind"] == "unknown"


NOW_MS = 10_000_000
AT = {"timeMs": NOW_MS - 2_400_000, "final": False}
ANSWERED = {"answered": True, "ended": False, "lastReport": None}
SILENT = {"answered": False, "status": None, "ended": False, "lastReport": None, "problem": "no driver of it"}
FAILED = {"timeMs": NOW_MS - 9, "status": {"state": "FAILED", "reason": "a check failed"}}
STOPPED = {"timeMs": NOW_MS - 9, "status": {"state": "STOPPED", "reason": ""}}
AWAY = {"timeMs": NOW_MS - 70_000, "problem": "2 of 3 members are unavailable"}


def running(**more: object) -> dict:
    return ANSWERED | {"status": status(1, state="RUNNING", reason="", **more)}


@pytest.mark.parametrize(
    ("reading", "checkpoint", "name", "kind", "text", "since", "past_ms"),
    [
        (running(), AT, "RUNNING", "good", "", "", 0),
        (running(underWay=LATE | {"checkpoint": 4, "seconds": 0.5}), AT, "RUNNING", "good", "", "", 0),
        (running(underWay=LATE | {"checkpoint": 4, "seconds": 9}), AT, "RUNNING, checkpoint stuck", "warn",
         "checkpoint 4 has waited 9.0 s for the vote of worker 0", "", 0),
        (running(underWay=LATE | {"checkpoint": 4, "seconds": 9}, lastProgress={"checkpointSeconds": 5}), AT,
         "RUNNING", "good", "", "", 0),
        (ANSWERED | {"status": status(1, state="PAUSED", reason="by hand")}, AT, "PAUSED", "warn", "by hand",
         "", 0),
        (SILENT, AT, "no driver", "bad", "no driver of it", "last sign", 2_400_000),
        (SILENT | {"lastReport": FAILED}, AT, "no driver", "warn", "no driver of it", "last sign", 9),
        (SILENT, None, "no driver", "bad", "no driver of it", "", 0),
        (SILENT | {"ended": True, "lastReport": FAILED}, AT, "FAILED", "bad", "a check failed", "ended", 9),
        (SILENT | {"ended": True, "lastReport": STOPPED}, AT, "STOPPED", "", "", "ended", 9),
        (SILENT, AT | {"final": True}, "FINISHED", "good", "all input is processed", "ended", 2_400_000),
        (running() | {"stale": AWAY}, AT, "RUNNING", "warn", "2 of 3 members", "as of", 70_000),
        (SILENT | {"ended": True, "lastReport": FAILED, "stale": AWAY}, AT, "FAILED", "bad", "2 of 3",
         "as of", 70_000),
    ],
)  # fmt: skip
def test_the_state_of_a_region_is_shown_with_what_is_known_of_its_driver(
    reading: dict, checkpoint: dict | None, name: str, kind: str, text: str, since: str, past_ms: int
) -> None:
    manifest = {"manifest": {"lastCheckpoint": checkpoint}}
    shown = shown_state({"stale": None, "timeMs": NOW_MS, "problem": ""} | manifest | reading)
    assert (shown["name"], shown["kind"], shown["since"]) == (name, kind, since)
    assert text in shown["text"]
    assert bool(text) == bool(shown["text"])
    assert shown["sinceMs"] == (NOW_MS - past_ms if since else None)


def test_the_operator_and_the_workers_that_hold_a_region_up_are_marked() -> None:
    now = status(1, 1, 1, underWay=LATE | {"seconds": 9.0})
    for worker, operator, seconds in ((0, "some", 0.0), (1, "some", 3.0), (2, None, 0.0)):
        now["workers"][worker] |= {"operator": operator, "operatorSeconds": seconds}
    assert slow(now) == {"workers": [0, 2], "operators": {"some": [0, 1]}}
    assert slow(now | {"underWay": None}) == {"workers": [], "operators": {"some": [1]}}
    assert slow(None) == {"workers": [], "operators": {}}


def test_each_directory_of_this_project_has_a_kind_and_an_owner() -> None:
    of_shop = {
        coordinator_directory("shop"): "manifest",
        requests_directory("shop"): "requests",
        answers_directory("shop"): "requests",
        worker_directory("shop", 3): "worker",
        input_directory("shop", "sales"): "input",
        producer_directory("shop", "sales", "till-1"): "input",
        staging_directory("shop", "out", "job", 7): "staged rows",
        input_register("shop", "sales").directory: "readers",
        output_register("shop", "out").directory: "readers",
        "shop.sites-.rome": "sites",
    }
    assert [directory_row(name) for name in of_shop] == [
        {"name": name, "kind": kind, "owner": "shop"} for name, kind in of_shop.items()
    ]
    assert directory_row("orders.fs") == {"name": "orders.fs", "kind": "tree", "owner": "orders"}
    assert directory_row("my.files") == {"name": "my.files", "kind": "", "owner": ""}


def test_a_screen_without_a_reading_says_why() -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(Screen(TopView(""), {}, "no server answers"))
    assert console.export_text() == "cannot be read now: no server answers\n\n"
    console.print(Screen(TopView(""), {}, "it\x1b]0;said\x07 this\nand that"))
    assert console.export_text() == "cannot be read now: it\\x1b]0;said\\x07 this\nand that\n\n"
    console.file.close()


def test_keys_choose_open_and_leave_a_region() -> None:
    view = TopView("")
    assert view.regions_are(["a", "b"]) == 0
    for key in ("down", "down", "down"):
        view.press(key)
    view.press("up")
    view.press("down")
    view.press("hold")
    assert view.held
    view.press("open")
    assert (view.region, view.held) == ("b", False)
    view.press("open")
    assert view.region == "b"
    view.press("back")
    view.press("sort")
    assert (view.region, view.sorted) == ("", True)


def test_the_forms_of_the_page_ask_for_fields_that_their_requests_have() -> None:
    samples = {"name": "good", "note": "", "target": "savepoint:good", "workers": 3, "yes": True}
    for verb in VERBS.values():
        assert verb.problem_of({one.name: samples[one.kind] for one in verb.asks}) == ""
        verb.confirm.format(region="words", **{one.name: "" for one in verb.asks})
    offered = [verb.name for verb in VERBS.values() if verb.button]
    assert offered == ["checkpoint", "pause", "resume", "savepoint", "restore", "scale"]
