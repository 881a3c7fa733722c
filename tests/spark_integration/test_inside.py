"""The formats that look inside, without Spark: planner and tasks on a store of three in memory."""

import json
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from checkpoint.chains.directory_store import directory_chain
from checkpoint.chains.state_blocks import block_schema
from checkpoint.errors import CheckpointReleasedError, ManifestError, NoRegionError, StateNotRecordedError
from dos_cli.main import app
from dos_client.blocking import BlockingStore, open_store
from dos_client.errors import StoreNotReadyError
from dos_protocol.errors import CorruptDataError
from dos_server.testing import Servers, ThreadedServer, threaded_store
from journal import Op, Record
from journal.core.record import encode
from spark_integration.core.options import parse_checkpoints, parse_journal, parse_state
from spark_integration.errors import (
    BadOptionError,
    DataLossError,
    NoSchemaError,
    NothingThereError,
    SchemaMismatchError,
)
from spark_integration.reading.inspection import (
    CheckpointsTable,
    InsideReader,
    JournalTable,
    OperatorStateTable,
    columns_of,
)
from tests.spark_integration.stored_data import (
    take_away,
    write_checkpoints,
    write_directory,
    write_objects,
    write_state,
    write_steps,
)

WORDS = pa.schema([("word", pa.string())])
OPERATORS = {"counts": "count", "lines": "source", "limits": "control"}
NEWER = block_schema(pa.schema([("word", pa.string())]), pa.schema([("count", pa.int64())]), state_version=2)


@pytest.fixture(scope="module")
def store(servers: Servers[ThreadedServer]) -> Iterator[BlockingStore]:
    """What all tests of this file read: region `words` with four checkpoints, of which three are retained."""
    with open_store(servers.url) as found:
        first = write_state(
            found,
            "words",
            0,
            [
                {"counts": {"a": 1, "b": 1, "c": 1}, "limits": {"x": 5}},
                {"counts": {"b": 2}},
                {"counts": {"a": None, "d": 1}},
                {"counts": {"d": 2}},
            ],
            snapshots={3: {"counts": {"b": 2, "c": 1, "d": 1}}},
        )
        second = write_state(
            found,
            "words",
            1,
            [{"counts": {"y": 1}, "limits": {"x": 5}}, {"counts": {"z": 1}}, {"counts": {"z": 2}}, {}],
        )
        states = [dict(enumerate(at)) for at in zip(first, second, strict=True)]
        write_checkpoints(found, "words", "out", states, states=states, operators=OPERATORS, retain=3)
        steps = {step: [{"word": f"w{step}"}] for step in (1, 2, 3)}
        ends = write_steps(found, "told", "out", 0, steps, WORDS)
        write_checkpoints(found, "told", "out", [{0: end} for end in ends], retain=3)
        at = write_directory(found, "filed", 0, "own.s", 3)
        write_checkpoints(found, "filed", "out", [{0: end} for end in at], retain=2, files={"own.s": at})
        yield found


class Inside:
    """`spark.read.format(...)`, without Spark; what travels to a task is pickled."""

    def __init__(self, kind: str, path: str, **options: str) -> None:
        given = {"path": path, **{name.rstrip("_"): value for name, value in options.items()}}
        makers: dict[str, Any] = {
            "journal": lambda: JournalTable(parse_journal(given)),
            "checkpoints": lambda: CheckpointsTable(parse_checkpoints(given)),
            "state": lambda: OperatorStateTable(parse_state(given)),
        }
        self.table = makers[kind]()

    def tasks(self) -> list[list[dict[str, Any]]]:
        """The rows of each task."""
        wanted = columns_of(self.table)
        reader = InsideReader(self.table, wanted)
        found = []
        for part in reader.partitions():
            there = pickle.loads(pickle.dumps(reader))
            batches = list(there.read(pickle.loads(pickle.dumps(part))))
            assert all(batch.schema.equals(wanted) for batch in batches)
            found.append([row for batch in batches for row in batch.to_pylist()])
        return found

    def rows(self) -> list[dict[str, Any]]:
        return [row for task in self.tasks() for row in task]


def counts(url: str, **options: str) -> dict[str, Any]:
    rows = Inside("state", f"{url}/words", operator="counts", **options).rows()
    found = {row["word"]: row["count"] for row in rows}
    assert len(found) == len(rows), "each key once"
    return found


# --- dos-state ----------------------------------------------------------------------------------------------


def test_the_state_of_an_operator_at_any_retained_checkpoint_is_its_keys_and_values(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    assert counts(servers.url) == {"b": 2, "c": 1, "d": 2, "y": 1, "z": 2}
    assert counts(servers.url, checkpoint="4") == counts(servers.url)
    assert counts(servers.url, checkpoint="2") == {"a": 1, "b": 2, "c": 1, "y": 1, "z": 1}


def test_columns_are_those_that_were_declared_and_others_by_name(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    plain = Inside("state", f"{servers.url}/words", operator="counts", checkpoint="3")
    assert columns_of(plain.table).names == ["word", "count"]
    named = Inside(
        "state", f"{servers.url}/words", operator="counts", columns="word, _worker, _seen", filter="count = 2"
    )
    assert sorted(named.rows(), key=lambda row: row["word"]) == [
        {"word": "b", "_worker": 0, "_seen": 2},
        {"word": "d", "_worker": 0, "_seen": 2},
        {"word": "z", "_worker": 1, "_seen": 2},
    ]


def test_tasks_share_the_hashes_of_a_worker_and_give_each_key_once(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    shared = Inside("state", f"{servers.url}/words", operator="counts", tasksPerWorker="5").tasks()
    assert len(shared) == 10
    assert sum(bool(task) for task in shared) > 2
    assert {row["word"]: row["count"] for task in shared for row in task} == counts(servers.url)
    assert counts(servers.url, tasksPerWorker="5") == counts(servers.url)


def test_a_broadcast_table_that_each_worker_has_whole_is_read_once(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    rows = Inside("state", f"{servers.url}/words", operator="limits", checkpoint="2").rows()
    assert rows == [{"word": "x", "count": 5}]


def test_the_difference_of_two_checkpoints_is_what_was_written_between_with_what_was_deleted(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    rows = Inside("state", f"{servers.url}/words", operator="counts", since="2", checkpoint="3").rows()
    assert sorted(rows, key=lambda row: row["word"]) == [
        {"word": "a", "count": None, "_deleted": True},
        {"word": "d", "count": 1, "_deleted": False},
        {"word": "z", "count": 2, "_deleted": False},
    ]
    nothing = Inside("state", f"{servers.url}/words", operator="limits", since="2", checkpoint="3")
    assert (nothing.rows(), columns_of(nothing.table).names) == ([], ["word", "count", "_deleted"])
    shared = Inside(
        "state", f"{servers.url}/words", operator="counts", since="2", checkpoint="3", tasksPerWorker="4"
    )
    assert sorted(shared.rows(), key=lambda row: row["word"]) == sorted(rows, key=lambda row: row["word"])


def test_a_difference_and_the_command_count_the_same_keys(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    said = CliRunner().invoke(app, ["checkpoint", "diff", servers.url, "words", "2", "3", "--json"])
    (one,) = json.loads(said.output)["state"]["operators"]
    rows = Inside("state", f"{servers.url}/words", operator="counts", since="2", checkpoint="3").rows()
    assert (one["name"], one["keys"]) == ("counts", len(rows))


def test_a_difference_that_the_blocks_do_not_tell_is_refused_with_the_reason(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    inside = Inside("state", f"{servers.url}/words", operator="counts", since="2", checkpoint="4")
    with pytest.raises(StateNotRecordedError, match="worker 0: a snapshot has replaced the blocks"):
        inside.rows()
    ends = write_state(store, "back", 0, [{"counts": {"a": 1}}, {"counts": {"a": 2}}])
    again = write_state(store, "back", 0, [{"counts": {"b": 1, "c": 2, "d": 3}}], epoch=2, at=(1, ends[0]))
    write_checkpoints(
        store,
        "back",
        "out",
        [{0: end} for end in (*ends, *again)],
        states=[{0: ends[0]}, {0: ends[1]}, {0: again[0]}],
        retain=3,
    )
    with pytest.raises(StateNotRecordedError, match="the region was rolled back between the two checkpoints"):
        Inside("state", f"{servers.url}/back", operator="counts", since="2", checkpoint="3").rows()
    assert [
        row["word"] for row in Inside("state", f"{servers.url}/back", operator="counts", since="1").rows()
    ]


def test_state_of_two_versions_is_refused_and_named(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    ends = write_state(store, "moved", 0, [{"counts": {"a": 1}}])
    ends += write_state(store, "moved", 0, [{"counts": {"b": 2}}], epoch=2, at=(1, ends[0]), schema=NEWER)
    write_checkpoints(store, "moved", "out", [{0: end} for end in ends], states=[{0: end} for end in ends])
    assert Inside("state", f"{servers.url}/moved", operator="counts", checkpoint="1").rows()
    with pytest.raises(SchemaMismatchError, match=r"left some of it in version 1 .* and some in version 2"):
        Inside("state", f"{servers.url}/moved", operator="counts", checkpoint="2").rows()


def test_state_that_is_missing_is_named(servers: Servers[ThreadedServer], store: BlockingStore) -> None:
    def refused(error: type[Exception], text: str, path: str = "words", **options: str) -> None:
        with pytest.raises(error, match=text):
            Inside("state", f"{servers.url}/{path}", **{"operator": "counts", **options}).rows()

    refused(
        CheckpointReleasedError,
        "checkpoint 1 of region words was released; retained are 2, 3, 4",
        checkpoint="1",
    )
    refused(CheckpointReleasedError, "checkpoint 1 of region words was released", since="1", checkpoint="3")
    refused(ManifestError, "the last one of region words is 4", checkpoint="9")
    refused(
        NothingThereError, r"no operator 'count' in checkpoint 4 \(did you mean 'counts'", operator="count"
    )
    refused(NoSchemaError, "there is state of counts, limits", operator="lines")
    refused(NoRegionError, "no region 'wrods'", path="wrods")
    refused(BadOptionError, "the filter names column 'cuont'", filter="cuont = 1")


def test_blocks_that_went_away_are_said_to_have_gone_with_their_checkpoint(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    ends = write_state(store, "gone", 0, [{"counts": {"a": 1}}])
    write_checkpoints(store, "gone", "out", [{0: ends[0]}], states=[{0: ends[0]}])
    inside = Inside("state", f"{servers.url}/gone", operator="counts")
    reader = InsideReader(inside.table, columns_of(inside.table))
    (part,) = reader.partitions()
    (name,) = next(iter(store.inspect("gone.w0000").answers.values()))
    take_away(store, "gone.w0000", name, epoch=3)
    with pytest.raises(DataLossError, match="state of operator counts of region gone is partly gone"):
        list(reader.read(part))


# --- dos-checkpoints ----------------------------------------------------------------------------------


def test_checkpoints_are_rows_as_the_command_lists_them(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    rows = Inside("checkpoints", f"{servers.url}/words").rows()
    said = json.loads(CliRunner().invoke(app, ["checkpoint", "ls", servers.url, "words", "--json"]).output)[
        "checkpoints"
    ]
    assert len(rows) == len(said) == 4
    for row, one in zip(rows, said, strict=True):
        time = row.pop("time")
        assert int(time.timestamp() * 1000) == one.pop("timeMs")
        row["phaseSeconds"] = dict(row["phaseSeconds"])
        assert row == one


def test_a_checkpoint_in_full_exists_when_it_is_named(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    (row,) = Inside(
        "checkpoints", f"{servers.url}/words", columns="parent, operators, workers", filter="checkpoint = 3"
    ).rows()
    said = json.loads(
        CliRunner().invoke(app, ["checkpoint", "show", servers.url, "words", "3", "--json"]).output
    )
    assert row["parent"] == said["parent"] == 2
    texts = {name: f"{kind} from ()" for name, kind in OPERATORS.items()}
    assert dict(row["operators"]) == said["operators"] == texts
    first, one = row["workers"][0], said["workers"][0]
    assert first["state"] == one["state"]
    assert {name: dict(splits) for name, splits in first["sources"]} == one["sources"]
    assert {sink: json.loads(stands) for sink, stands in first["sinks"]} == one["sinks"]
    assert columns_of(Inside("checkpoints", f"{servers.url}/words", columns="shards").table).names == [
        "shards"
    ]


def test_a_region_that_is_missing_has_no_checkpoints(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    with pytest.raises(NoRegionError, match="no region 'wrods': it has"):
        Inside("checkpoints", f"{servers.url}/wrods").rows()


# --- dos-journal --------------------------------------------------------------------------------------------


def dumped(url: str, *more: str) -> list[dict[str, Any]]:
    said = CliRunner().invoke(app, ["journal", "dump", "--json", "--full", *more, url])
    return [json.loads(line) for line in said.stdout.splitlines()]


def as_dumped(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "strings": [len(string) for string in row["strings"]]}


def same(rows: list[dict[str, Any]], said: list[dict[str, Any]]) -> None:
    sizes = [{**one, "strings": [string["bytes"] for string in one["strings"]]} for one in said]
    for one in sizes:
        one.pop("timeMs", None)  # of the last record before it with a clock: a row stands alone
    assert [as_dumped(row) for row in rows] == sizes


def test_the_records_of_a_chain_are_rows_as_the_command_dumps_them(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    for chain in ("words.w0000/state", "told.w0000/out-out", "words.coord/manifest"):
        url = f"{servers.url}/{chain}"
        rows = Inside("journal", url).rows()
        assert len(rows) > 2
        same(rows, dumped(url))


def test_the_changes_between_two_places_are_rows(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    url = f"{servers.url}/words.w0001/state"
    every = Inside("journal", url).rows()
    begin, end = every[2]["offset"], every[4]["offset"]
    some = Inside("journal", url, from_=str(begin), to=str(end)).rows()
    assert some == every[2:4]
    same(some, dumped(url, "--from", str(begin), "--to", str(end)))
    blocks = Inside("journal", url, from_="checkpoint:2", to="checkpoint:3", columns="name, ints").rows()
    assert blocks == [{"name": "STATE_BLOCK", "ints": [3]}]
    out = f"{servers.url}/told.w0000/out-out"
    (step,) = Inside("journal", out, from_="checkpoint:1", to="checkpoint:2").rows()
    assert (step["name"], step["ints"][0]) == ("OUTPUT", 2)


def test_the_changes_of_an_operators_files_between_two_checkpoints_are_rows(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    url = f"{servers.url}/filed.w0000/{directory_chain('own.s')}"
    (change, checkpoint) = Inside("journal", url, from_="checkpoint:2", to="checkpoint:3").rows()
    assert (change["name"], change["ints"]) == ("WRITE", [2])
    assert (checkpoint["name"], checkpoint["ints"]) == ("CHECKPOINT", [3, 30])
    with pytest.raises(CheckpointReleasedError, match="checkpoint 1 of region filed was released"):
        Inside("journal", url, from_="checkpoint:1").rows()


def test_a_journal_that_is_an_object_is_read_and_its_fault_is_raised_or_ends_it(
    servers: Servers[ThreadedServer], store: BlockingStore, caplog: pytest.LogCaptureFixture
) -> None:
    whole = [encode(Record(Op.WRITE, ints=(number,), strings=(b"/f", b"x"))) for number in range(3)]
    write_objects(store, "files", {"good": b"".join(whole), "torn": b"".join(whole)[:-1]})
    good = Inside("journal", f"{servers.url}/files/good").rows()
    assert [row["ints"] for row in good] == [[0], [1], [2]]
    same(good, dumped(f"{servers.url}/files/good"))
    with pytest.raises(CorruptDataError, match="torn"):
        Inside("journal", f"{servers.url}/files/torn").rows()
    left = Inside("journal", f"{servers.url}/files/torn", failOnFault="false").rows()
    assert left == [{**row, "segment": "torn"} for row in good[:2]]
    assert "because of failOnFault=false" in caplog.text


def test_a_journal_that_is_missing_or_trimmed_is_named(
    servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    def refused(error: type[Exception], text: str, path: str, **options: str) -> None:
        with pytest.raises(error, match=text):
            Inside("journal", f"{servers.url}/{path}", **options).rows()

    refused(NothingThereError, "no directory 'nobody'", "nobody/state")
    refused(NothingThereError, r"no chain 'sate' \(did you mean 'state'", "words.w0000/sate")
    refused(DataLossError, "the records between 0 and", "words.w0000/state", from_="0")
    refused(DataLossError, "not on the line of history", "words.w0000/state", from_="checkpoint:2")
    refused(
        CheckpointReleasedError,
        "checkpoint 1 of region words was released",
        "words.w0000/state",
        to="checkpoint:1",
    )
    refused(BadOptionError, "is no worker's directory", "words.coord/manifest", to="checkpoint:3")
    refused(
        BadOptionError, "checkpoint 3 lacks chain steep of worker 0", "words.w0000/steep", to="checkpoint:3"
    )


def test_a_token_that_is_wrong_is_said_at_once() -> None:
    with threaded_store(1, token=b"right") as servers:
        with open_store(servers.url, token=b"right") as store:
            ends = write_state(store, "r", 0, [{"counts": {"a": 1}}])
            write_checkpoints(store, "r", "out", [{0: ends[0]}], states=[{0: ends[0]}])
        for kind, path in (("checkpoints", "r"), ("journal", "r.w0000/state"), ("state", "r")):
            options = {"operator": "counts"} if kind == "state" else {}
            assert Inside(kind, f"{servers.url}/{path}", token="right", **options).rows()
        with pytest.raises(StoreNotReadyError, match="token"):
            Inside("state", f"{servers.url}/r", token="wrong", operator="counts").rows()
