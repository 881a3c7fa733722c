"""Sinks of two phases, and the kit that finds what is wrong with a sink: it finds each planted fault."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import CallSink, FileSink, Graph, IteratorSource, SchemaError
from dataflow.core.transactions import TransactionName, Transactions, parse_name
from dataflow.errors import SinkWriteError
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import SinkSpec
from dataflow.sinks.files import parse_row
from dataflow.sinks.two_phase import TwoPhaseOutput, TwoPhaseSink
from dataflow.testing.sink_check import SinkCheckError, check_sink
from dos_protocol.errors import CorruptDataError
from tests.dataflow.region_in_one_thread import OneThreadRegion


@dataclass
class Place:
    """Where rows go; it outlives every worker."""

    prepared: dict[str, list[int]] = field(default_factory=dict)
    shown: dict[str, list[int]] = field(default_factory=dict)
    extra: list[int] = field(default_factory=list)

    def visible(self) -> list[int]:
        return [number for ids in self.shown.values() for number in ids] + self.extra


class Output(TwoPhaseOutput):
    """As it should be: what is staged and not prepared dies with its worker."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.rows: dict[str, list[int]] = {}

    def stage(self, transaction: str, batch: pa.RecordBatch) -> None:
        self.rows.setdefault(transaction, []).extend(batch.column("id").to_pylist())

    def prepare(self, transaction: str) -> None:
        self.place.prepared[transaction] = self.rows.pop(transaction)

    def commit(self, transaction: str) -> None:
        if transaction not in self.place.shown:
            self.place.shown[transaction] = self.place.prepared.pop(transaction)

    def staged(self) -> Iterable[str]:
        return [*self.place.prepared]

    def abort(self, transaction: str) -> None:
        del self.place.prepared[transaction]


@dataclass(frozen=True)
class Sink(TwoPhaseSink):
    place: Place
    made: Callable[[Place], Output] = Output

    def open_output(self, context: OperatorContext) -> Output:
        return self.made(self.place)


def checked(made: Callable[[Place], Output] = Output, **options: Any) -> int:
    def fresh(name: str) -> tuple[SinkSpec, Callable[[], Iterable[int]]]:
        place = Place()
        return Sink(place, made), place.visible

    return check_sink(fresh, **options)


# EVIDENCE-OF: P-7
def test_a_sink_of_two_phases_neither_loses_nor_doubles_rows() -> None:
    assert checked(runs=50) > 50
    assert checked(workers=1, runs=0) == checked(workers=3, runs=0)


# EVIDENCE-OF: P-7
@given(st.integers(0, 2**32), st.integers(1, 3))
@settings(max_examples=40)
def test_what_a_checkpoint_covers_is_visible_though_nobody_lived_to_receive_of_its_commit(
    seed: int, workers: int
) -> None:
    """The kit tells its sinks of a restored checkpoint; here it is the worker that has to."""
    rng, place = Random(seed), Place()
    source = IteratorSource(
        lambda split, at: ((n + 1, {"id": int(split) + n}) for n in range(at, 20)),
        "id bigint",
        splits=("0", "20", "40"),
    )
    graph = Graph("copy")
    graph.source("numbers", source).sink("out", Sink(place))
    region = OneThreadRegion(graph, workers, rng.randrange)
    region.restore()
    for _ in range(rng.randrange(4)):
        for _ in range(rng.randrange(40)):
            region.turn()
        region.request_checkpoint() if rng.randrange(2) else region.restore()
    region.finish()
    assert sorted(place.visible()) == [*range(60)]
    assert not place.prepared


# --- faults that the kit finds ------------------------------------------------------------------------------


class ShowsAgain(Output):
    """A commit that is repeated shows the rows once more."""

    def commit(self, transaction: str) -> None:
        ids = self.place.prepared.pop(transaction, None)
        if ids is None:
            self.place.extra += self.place.shown[transaction]
        else:
            self.place.shown[transaction] = ids


class ShowsAtPrepare(Output):
    """Rows are seen before anybody knows that their checkpoint counts."""

    def prepare(self, transaction: str) -> None:
        super().prepare(transaction)
        self.place.shown[transaction] = self.place.prepared[transaction]


class ShowsAtClose(Output):
    """What a worker leaves behind is flushed to where readers look."""

    def close(self) -> None:
        for name in [*self.rows]:
            self.place.shown[name] = self.rows.pop(name)


class ForgetsUntilCommit(Output):
    """Vote in memory only, and nothing is said when it is not found."""

    def prepare(self, transaction: str) -> None:
        """It is in `rows`, and that is enough if nobody dies."""

    def commit(self, transaction: str) -> None:
        if transaction in self.rows:
            self.place.shown[transaction] = self.rows.pop(transaction)


class Overwrites(Output):
    """Shows by the last digits of the name, as one does who names files by the checkpoint."""

    def commit(self, transaction: str) -> None:
        key = transaction.rpartition("-i")[0] + transaction[-4:]
        if transaction in self.place.prepared:
            self.place.shown[key] = self.place.prepared.pop(transaction)


class LosesTheSecondBatch(Output):
    def stage(self, transaction: str, batch: pa.RecordBatch) -> None:
        self.rows.setdefault(transaction, batch.column("id").to_pylist())


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (ShowsAgain, "doubled: "),
        (ShowsAtPrepare, "visible too early: "),
        (ShowsAtClose, "visible too early: "),
        (ForgetsUntilCommit, "'a crash between commit and publish': lost: "),
        (Overwrites, "lost: "),
        (LosesTheSecondBatch, "'no failure': lost: "),
    ],
)
def test_the_kit_finds_what_is_wrong_with_a_sink(made: Callable[[Place], Output], said: str) -> None:
    with pytest.raises(SinkCheckError, match=said) as raised:
        checked(made, runs=0)
    assert "after: rows" in str(raised.value)


def only_the_newest(self: Transactions, checkpoint: int) -> list[str]:
    names = _prepare(self, checkpoint)
    return names[-1:]


def all_that_is_pending(self: Transactions, checkpoint: int) -> list[str]:
    return [str(name) for name in self._pending]


def everybodys(self: Transactions, staged: Iterable[str]) -> list[str]:
    return [name for name in staged if parse_name(name) not in self._pending]


_prepare = Transactions.prepare


@pytest.mark.parametrize(
    ("method", "fault", "said"),
    [
        ("prepare", only_the_newest, "'a crash after two checkpoints that were not published': lost: "),
        (
            "to_publish",
            all_that_is_pending,
            "'the next checkpoint is prepared before publish': visible too early",
        ),
        ("left_over", everybodys, "'a superseded worker opens late': "),
    ],
)
def test_each_rule_of_transactions_is_needed(
    monkeypatch: pytest.MonkeyPatch, method: str, fault: Callable[..., Any], said: str
) -> None:
    monkeypatch.setattr(Transactions, method, fault)
    with pytest.raises(SinkCheckError, match=said):
        checked(runs=0)


# --- other sinks --------------------------------------------------------------------------------------------


def files(
    folder: Path, *, truncate: bool = True
) -> Callable[[str], tuple[SinkSpec, Callable[[], list[int]]]]:
    def fresh(name: str) -> tuple[SinkSpec, Callable[[], list[int]]]:
        place = folder / name

        def visible() -> list[int]:
            lines = [line for part in place.glob("part-*") for line in part.read_text().splitlines()]
            return [int(parse_row(line)[0] or "") for line in lines]

        return FileSink(place, truncate_on_reset=truncate), visible

    return fresh


def test_the_file_sink_shows_rows_early_and_takes_them_back(tmp_path: Path) -> None:
    assert check_sink(files(tmp_path / "a"), early="taken back", zombies=False, runs=5)
    with pytest.raises(SinkCheckError, match="not taken back"):
        check_sink(files(tmp_path / "b", truncate=False), early="taken back", zombies=False, runs=0)
    with pytest.raises(SinkCheckError, match="visible too early"):
        check_sink(files(tmp_path / "c"), zombies=False, runs=0)


def test_a_call_sink_is_at_least_once() -> None:
    def fresh(name: str) -> tuple[SinkSpec, Callable[[], list[int]]]:
        seen: list[int] = []
        return CallSink(lambda row: seen.append(row["id"])), lambda: seen

    assert check_sink(fresh, delivery="at-least-once", early="stays")
    with pytest.raises(SinkCheckError, match="doubled"):
        check_sink(fresh, early="stays", runs=0)
    with pytest.raises(SchemaError, match="delivery is one of at-most-once, at-least-once"):
        check_sink(fresh, delivery="once")  # type: ignore[arg-type]


# --- names and errors ---------------------------------------------------------------------------------------


def test_names_return_from_their_text_and_sort_as_they_are_visible() -> None:
    name = TransactionName(2**64 - 1, 3, 70, 5)
    assert parse_name(str(name)) == name
    later = [name._replace(number=6), name._replace(number=10**9), name._replace(incarnation=71)]
    assert sorted(map(str, reversed(later))) == [str(one) for one in later]
    assert [parse_name(text) for text in ("", "part-w0000.tsv", f"{name}x")] == [None] * 3


def test_transactions_of_others_in_the_same_place_are_left_alone() -> None:
    mine = Transactions(1, 2, 8)
    others = [TransactionName(9, 2, 1, 1), TransactionName(1, 0, 1, 1), TransactionName(1, 2, 9, 1)]
    old = TransactionName(1, 2, 7, 1)
    assert mine.left_over([str(name) for name in (*others, old)]) == [str(old)]
    mine.restore([str(old)], "")
    assert mine.left_over([str(old)]) == []
    with pytest.raises(ValueError, match="is no transaction of"):
        mine.restore([str(others[0])], "")


def context(worker: int = 0) -> OperatorContext:
    schema = pa.schema([("id", pa.int64())])
    return OperatorContext("region", "out", worker, 1, bytes(16), (schema,), None, 1)


def test_what_a_users_output_raises_is_told_with_the_sink_and_the_transaction() -> None:
    class Broken(Output):
        def stage(self, transaction: str, batch: pa.RecordBatch) -> None:
            raise ConnectionError("nobody is there")

    writer = Sink(Place(), Broken).open(context())
    rows = pa.RecordBatch.from_pydict({"id": [1]})
    with pytest.raises(SinkWriteError, match="sink 'out' was closed before it could stage rows"):
        writer.process(rows)
    writer.reset_to(None)
    said = r"sink 'out' cannot stage rows of \w{16}-w0000-\S+: ConnectionError: nobody is there"
    with pytest.raises(SinkWriteError, match=said):
        writer.process(rows)
    with pytest.raises(CorruptDataError, match="names of its transactions in the checkpoint"):
        writer.reset_to({"file": "part-w0000.tsv"})


def test_regions_that_share_a_place_have_names_of_their_own() -> None:
    place = Place()
    rows = pa.RecordBatch.from_pydict({"id": [1]})
    for region in ("a", "b"):
        writer = Sink(place).open(replace(context(), region=region))
        writer.reset_to(None)
        writer.process(rows)
        writer.prepare(1)
        writer.sync()
    assert len(place.prepared) == 2


def context_of(incarnation: int) -> OperatorContext:
    ids = pa.schema({"id": pa.int64()})
    return OperatorContext("copy", "out", 0, 1, bytes(16), (ids,), None, incarnation)


# EVIDENCE-OF: P-7
@pytest.mark.parametrize("call", ["commit", "prepare"])
def test_a_vote_at_any_moment_of_another_thread_names_what_is_not_visible_yet(call: str) -> None:
    """`publish` and `sync` run beside the thread that votes. The vote falls into a call, which fails."""
    votes: list[Any] = []
    writer: Any = None

    class Voting(Output):
        def interrupted(self) -> None:
            votes.append(writer.prepare(9))
            raise OSError("the destination is gone")

        def commit(self, transaction: str) -> None:
            if call == "commit" and not votes:
                self.interrupted()
            super().commit(transaction)

        def prepare(self, transaction: str) -> None:
            super().prepare(transaction)
            if call == "prepare" and not votes:
                self.interrupted()

    place = Place()
    writer = Sink(place, Voting).open(context_of(1))
    writer.reset_to(None)
    writer.process(pa.record_batch({"id": [1, 2, 3]}))
    first = writer.prepare(1)
    if call == "commit":
        writer.sync()
    with pytest.raises(SinkWriteError, match="the destination is gone"):
        writer.publish(1) if call == "commit" else writer.sync()
    assert place.visible() == []
    assert votes[0]["pending"].keys() == first["pending"].keys()
    writer.close()
    again = Sink(place, Output).open(context_of(2))
    again.reset_to(votes[0])
    again.publish(9)
    assert place.visible() == [1, 2, 3]


def test_after_a_failure_nothing_is_prepared_any_more() -> None:
    """An output may have forgotten the rows: a repeated `prepare` would succeed without them."""

    class Forgets(Output):
        def prepare(self, transaction: str) -> None:
            if self.rows.pop(transaction, []):
                raise ConnectionError("the service is away")
            self.place.prepared[transaction] = []

    place = Place()
    schema = pa.schema([("id", pa.int64())])
    writer = Sink(place, Forgets).open(OperatorContext("r", "out", 0, 1, bytes(16), (schema,), None, 1))
    writer.reset_to(None)
    writer.process(pa.RecordBatch.from_pylist([{"id": 1}], schema))
    writer.prepare(1)
    for _ in range(2):
        with pytest.raises(SinkWriteError, match="the service is away"):
            writer.sync()
    assert not place.prepared
    writer.close()
