"""Checkpoints as JSON values: one row, one in full, the difference of two."""

from checkpoint.core.records.manifest import NO_NOTE, SavepointNote, SplitPosition
from checkpoint.core.records.views import (
    checkpoint_diff,
    checkpoint_full,
    checkpoint_row,
    savepoint_row,
)
from tests.checkpoint.manifest_samples import numbered_checkpoint, part


def test_a_checkpoint_in_a_row_and_in_full() -> None:
    at = {"lines": {"a": SplitPosition(7, 255, True), "b": SplitPosition(1)}}
    phases = {0: {"write": 0.25, "sync": 1.0}, 1: {"write": 0.5}}
    workers = {0: part(), 1: part(200, sources=at, sinks={"out": {"size": 3}})}
    checkpoint = numbered_checkpoint(workers=workers, phases_s=phases)
    row = checkpoint_row(checkpoint)
    assert "retained" not in row
    assert "savepoints" not in row
    assert (row["checkpoint"], row["step"], row["incarnation"], row["timeMs"], row["final"]) == (
        5,
        40,
        3,
        5000,
        False,
    )
    assert (row["stateBytes"], row["workerStateBytes"], row["splits"]) == (300, [100, 200], 2)
    assert row["phaseSeconds"] == phases[0], "of one worker: they add up"
    named = checkpoint_row(checkpoint, (4, 5), {"b": 5, "a": 5, "c": 4})
    assert (named["retained"], named["savepoints"]) == (True, ["a", "b"])
    assert not checkpoint_row(checkpoint, (4,))["retained"]
    full = checkpoint_full(checkpoint)
    assert full["workers"][1]["sources"]["lines"]["a"] == {
        "position": 7, "digest": f"{255:016x}", "done": True,
    }  # fmt: skip
    assert full["workers"][0]["state"] == {"epoch": 1, "size": 100, "digest": f"{7:016x}"}
    assert full["workers"][0]["phaseSeconds"] == phases[0]
    assert [one["worker"] for one in full["layout"]["ranges"]] == [0, 1]


def test_a_savepoint_in_a_row_with_a_note_and_without_one() -> None:
    workers = {0: part(100, floors={"state": (1, 30), "steps": (1, 99)}), 1: part(200)}
    checkpoint = numbered_checkpoint(workers=workers)
    made = SavepointNote(by="ann@host", wall_time_ms=7, why="before the move")
    assert savepoint_row("good", checkpoint, made, 12) == {
        "savepoint": "good",
        "checkpoint": 5,
        "step": 40,
        "timeMs": 5000,
        "madeBy": "ann@host",
        "madeMs": 7,
        "why": "before the move",
        "stateBytes": 300,
        "restoreBytes": 270,
        "heldBytes": 12,
        "fork": None,
        "forkState": None,
    }
    for needs, state in ((None, "missing"), (True, "needed"), (False, "unneeded")):
        row = savepoint_row("fork-1f", checkpoint, SavepointNote(fork="test"), 12, needs)
        assert (row["fork"], row["forkState"]) == ("test", state)
    unknown = savepoint_row("good", checkpoint, NO_NOTE, 0)
    assert (unknown["madeBy"], unknown["madeMs"], unknown["why"]) == (None, None, "")


def test_what_lies_between_two_checkpoints() -> None:
    old = {"lines": {"a": SplitPosition(7), "b": SplitPosition(1), "": SplitPosition(2)}}
    new = {"lines": {"a": SplitPosition(9), "c": SplitPosition(4, done=True), "": SplitPosition(2)}}
    before = numbered_checkpoint(
        5, workers={0: part(100, sources=old, sinks={"out": {"size": 3}, "x": {"size": 1}})}
    )
    after = numbered_checkpoint(
        7,
        workers={0: part(160, sources=new, sinks={"out": {"size": 5}, "x": {"size": 1}}), 1: part(10)},
        operators={"count": "other"},
    )
    found = checkpoint_diff(before, after)
    assert (found["from"], found["to"], found["steps"], found["seconds"]) == (5, 7, 16, 2.0)
    assert found["stateBytes"] == 60
    assert found["workers"] == [{"worker": 0, "stateBytes": 60, "stepsBytes": 60}]
    assert found["changed"] == ["layout", "operators", "number of workers"]
    assert found["sinks"] == [{"worker": 0, "sink": "out", "from": {"size": 3}, "to": {"size": 5}}]
    columns = ("split", "from", "to", "advanced", "done")
    assert [tuple(row[name] for name in columns) for row in found["splits"]] == [
        ("a", 7, 9, 2, False), ("b", 1, None, None, True), ("c", None, 4, 4, True),
    ]  # fmt: skip
    back = checkpoint_diff(after, before)
    assert (back["steps"], back["seconds"], back["stateBytes"]) == (-16, -2.0, -60)
    same = checkpoint_diff(before, before)
    assert (same["splits"], same["sinks"], same["changed"]) == ([], [], [])
