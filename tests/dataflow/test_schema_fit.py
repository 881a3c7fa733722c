"""Readers and writers of different versions of a schema: rows are as an oracle says, or a rule refuses them.

The oracle knows nothing of the code: a version is a dict of columns, and a row is read by names. It decides
by the two versions alone: what is read has each value, and null where the writer has no column.
"""

import math
from collections.abc import Mapping
from decimal import Decimal
from itertools import product
from random import Random
from typing import Any, Final

import pyarrow as pa
import pytest

from checkpoint.core.records.inputs import InputPiece
from dataflow.errors import InputReadError
from dataflow.producing import parts_of
from dataflow.schema import parse_schema
from dataflow.sources.prefetched import PrefetchBuffer, PrefetchedReader
from dataflow.values.schema_fit import FitRule, Misfit, fit_of, misfit_of_writer, widens
from dos_protocol.digests import digest64
from spark_integration.errors import SchemaMismatchError
from spark_integration.reading.decoding import BatchShaper

LADDERS: Final = (
    ("tinyint", "smallint", "int", "bigint"),
    ("float", "double"),
    ("decimal(4,2)", "decimal(6,2)", "decimal(9,4)"),
    ("string",),
    ("array<int>",),
    ("boolean",),
)
"""Types in which each is wider than those before it. Two ladders have nothing in common."""

EVOLUTIONS: Final = (
    "add", "add", "order", "order", "widen", "widen", "widen",
    "rename", "narrow", "retype", "require", "loosen", "drop", "new",
)  # fmt: skip

Column = tuple[int, int, bool]
"""Ladder, step on it, whether null is allowed."""
Version = dict[str, Column]


def value_of(rng: Random, column: Column) -> Any:
    ladder, step, nullable = column
    if nullable and rng.random() < 0.25:
        return None
    if ladder == 0:
        end = 1 << (8 << step) - 1
        return rng.choice([-end, end - 1, 0, rng.randrange(-end, end)])
    if ladder == 1:
        floats = [0.5, -0.0, math.inf, math.nan, 2.0**-149]
        return rng.choice(floats if step == 0 else [*floats, 0.1, 1e300])
    if ladder == 2:
        return Decimal(rng.choice(["99.99", "-0.01"] + ["9999.99"] * (step > 0) + ["0.0001"] * (step > 1)))
    return {3: rng.choice(["", "é", "x"]), 4: rng.choice([[], [1, None]]), 5: rng.random() < 0.5}[ladder]


def schema_of(version: Version) -> pa.Schema:
    ends = {True: "", False: " not null"}
    return parse_schema(", ".join(f"{name} {LADDERS[a][b]}{ends[c]}" for name, (a, b, c) in version.items()))


def evolved(rng: Random, version: Version, at: int) -> Version:
    """The next version: mostly what is allowed, and sometimes what is not."""
    after = dict(version)
    name = rng.choice(list(after))
    ladder, step, nullable = after[name]
    what = rng.choice(EVOLUTIONS)
    if what == "add":
        after[f"n{at}"] = (rng.randrange(len(LADDERS)), 0, True)
    elif what == "order":
        after = dict(rng.sample(list(after.items()), len(after)))
    elif what == "widen":
        after[name] = (ladder, min(step + 1, len(LADDERS[ladder]) - 1), nullable)
    elif what == "narrow":
        after[name] = (ladder, max(step - 1, 0), nullable)
    elif what == "rename":
        after = {f"r{at}" if one == name else one: column for one, column in after.items()}
    elif what == "retype":
        after[name] = ((ladder + 1) % len(LADDERS), 0, nullable)
    elif what in ("require", "loosen"):
        after[name] = (ladder, step, what == "loosen")
    elif what == "new":
        after[f"n{at}"] = (rng.randrange(len(LADDERS)), 0, False)
    elif len(after) > 1:
        del after[name]
    return after


def broken(reader: Version, writer: Version) -> set[FitRule]:
    """The rules that rows of `writer` break for `reader`."""
    missing, more = reader.keys() - writer.keys(), writer.keys() - reader.keys()
    both = [(writer[name], reader[name]) for name in reader.keys() & writer.keys()]
    rules = {
        FitRule.TYPE: any(one[0] != other[0] or one[1] > other[1] for one, other in both),
        FitRule.NO_NULL: any(one[2] and not other[2] for one, other in both),
        FitRule.NOT_NULL: any(not reader[name][2] for name in missing),
        FitRule.RENAMED: bool(missing and more),
    }
    return {rule for rule, breaks in rules.items() if breaks}


def piece_of(version: Version, rows: list[dict[str, Any]], begin: int, before: int) -> InputPiece:
    ((count, data),) = parts_of(rows, schema_of(version))
    return InputPiece("till", begin, begin + len(data), digest64(data, before), count, data)


def reader_of(version: Version, pieces: list[InputPiece]) -> PrefetchedReader:
    reader, buffer = PrefetchedReader(schema_of(version), "input 'orders'"), PrefetchBuffer()
    reader.reset_to({})
    reader.attach(buffer)
    for piece in pieces:
        buffer.put(piece)
    return reader


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        signs = math.copysign(1, one), math.copysign(1, other)
        return (math.isnan(one) and math.isnan(other)) or (one, signs[0]) == (other, signs[1])
    return bool(one == other)


def check(reader: Version, written: list[tuple[Version, list[dict[str, Any]]]]) -> int:
    """Read pieces of several versions in one step, again as a replay, and as a DataFrame of Spark. Returns
    how many pieces were read by a reader of another version.
    """
    pieces: list[InputPiece] = []
    for version, rows in written:
        begin, digest = (pieces[-1].end, pieces[-1].digest) if pieces else (0, 0)
        pieces.append(piece_of(version, rows, begin, digest))
    shaper = BatchShaper(schema_of(reader), (), "input shop/orders", fits=True)
    stored = (batch for piece in pieces for batch in pa.ipc.open_stream(piece.data))
    rules = next((found for version, _ in written if (found := broken(reader, version))), None)
    if rules is not None:
        with pytest.raises(InputReadError) as raised:
            reader_of(reader, pieces).read(1 << 30)
        assert any(rule in str(raised.value) for rule in rules), (rules, str(raised.value))
        assert raised.value.remedy
        with pytest.raises(SchemaMismatchError) as mismatch:
            list(shaper.shape(stored))
        assert any(rule in str(mismatch.value) for rule in rules), (rules, str(mismatch.value))
        return 0
    reading = reader_of(reader, pieces)
    read = reading.read(1 << 30)
    assert read is not None
    assert read.batch.schema.equals(schema_of(reader))
    expected = [{name: row.get(name) for name in reader} for _, rows in written for row in rows]
    (again,) = reader_of(reader, pieces).replay(reading.take_division())
    dataframe = pa.Table.from_batches(shaper.shape(stored), schema_of(reader))
    for batch in (read.batch, again.batch, dataframe):
        found = batch.to_pylist()
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert all(same(one[name], other[name]) for name in reader), (one, other)
    return sum(version != reader or [*version] != [*reader] for version, _ in written)


@pytest.mark.parametrize("seed", range(4))
def test_pieces_of_all_versions_are_read_at_any_version_as_the_oracle_says_or_refused_by_the_rule(
    seed: int,
) -> None:
    rng = Random(seed)
    fitted = 0
    for _ in range(40):
        versions: list[Version] = [
            {"k": (3, 0, False), "a": (0, 0, True), "b": (0, 0, True), "c": (1, 0, True)}
        ]
        for at in range(rng.randint(1, 6)):
            versions.append(evolved(rng, versions[-1], at))
        for reader in versions:
            readable = [one for one in versions if not broken(reader, one)]
            for among in (readable, versions):
                written = [
                    (one, [{name: value_of(rng, column) for name, column in one.items()} for _ in range(3)])
                    for one in rng.choices(among, k=3)
                ]
                fitted += check(reader, written)
    assert fitted > 150, "too few readers met rows of another version"


def may_follow(existing: Version, written: Version) -> bool:
    """Whether one reader can read rows of both versions, and those of the existing ones need not stop."""
    both = [(existing[name], written[name]) for name in existing.keys() & written.keys()]
    if any(one[0] != other[0] or (other[2] and not one[2]) for one, other in both):
        return False
    widest = {**existing, **written}
    for name in existing.keys() & written.keys():
        one, other = existing[name], written[name]
        widest[name] = (one[0], max(one[1], other[1]), one[2] or other[2])
    renamed = existing.keys() - written.keys() and written.keys() - existing.keys()
    return not renamed and not broken(widest, existing) and not broken(widest, written)


def test_the_sink_accepts_a_version_if_a_reader_can_read_it_with_the_existing_rows() -> None:
    rng, seen = Random(8), {True: 0, False: 0}
    for _ in range(150):
        versions: list[Version] = [{"k": (3, 0, False), "a": (0, 0, True), "c": (2, 0, True)}]
        for at in range(4):
            versions.append(evolved(rng, versions[-1], at))
        for existing, written in product(versions, repeat=2):
            misfit = misfit_of_writer(schema_of(existing), schema_of(written))
            accepted = may_follow(existing, written)
            assert (misfit is None) == accepted, (existing, written, misfit)
            seen[accepted] += existing != written
    assert min(seen.values()) > 500, seen


READER: Final = "item string, price bigint, note string"
CASES: Final[Mapping[str, tuple[str, FitRule, str]]] = {
    "a column renamed": (
        "item string, price bigint, remark string",
        FitRule.RENAMED,
        "'note' (string) is missing, and column 'remark' (string) is not expected",
    ),
    "a type narrowed at the reader": (
        "item string, price decimal(20,0), note string",
        FitRule.TYPE,
        "column 'price' is decimal(20,0), expected bigint",
    ),
    "a type changed": (
        "item string, price string, note string",
        FitRule.TYPE,
        "column 'price' is string, expected bigint",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_refusal_names_the_rule_the_columns_and_both_types(case: str) -> None:
    found, rule, values = CASES[case]
    misfit = fit_of(parse_schema(READER), parse_schema(found))
    assert isinstance(misfit, Misfit)
    assert misfit.rule is rule
    assert values in str(misfit)
    assert rule in str(misfit)


def test_a_type_is_wider_only_if_it_holds_each_value_as_the_same_kind() -> None:
    kinds = {text: parse_schema(f"c {text}").field(0) for ladder in LADDERS for text in ladder}
    kinds |= {text: parse_schema(f"c {text}").field(0) for text in ("date", "timestamp", "decimal(20,0)")}
    at = {text: (ladder, step) for ladder, texts in enumerate(LADDERS) for step, text in enumerate(texts)}
    for one, given in kinds.items():
        for other, kind in kinds.items():
            wider = one == other or (
                one in at and other in at and at[one][0] == at[other][0] and at[one][1] <= at[other][1]
            )
            if one == "decimal(4,2)" and other == "decimal(20,0)":
                assert not wider, "its digits after the point would be lost"
            fits = not isinstance(fit_of(pa.schema([kind]), pa.schema([given])), Misfit)
            assert fits == wider, (one, other)
    for one, other, fits in (("uint32", "int64", 1), ("uint32", "int32", 0), ("int8", "uint16", 0)):
        schemas = [pa.schema([("c", getattr(pa, text)())]) for text in (other, one)]
        assert isinstance(fit_of(*schemas), Misfit) != bool(fits), (one, other)


def test_within_a_nested_type_only_null_may_be_allowed_more() -> None:
    some, none = (pa.field("item", pa.int32(), nullable=one) for one in (True, False))
    for given, kind, fits in (
        (pa.list_(none), pa.list_(some), True),
        (pa.list_(some), pa.list_(none), False),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), False),
        (pa.list_(pa.int32(), 3), pa.list_(pa.int32(), 4), False),
        (pa.struct([("x", pa.int32())]), pa.struct([("y", pa.int32())]), False),
        (pa.struct([("x", pa.int32())]), pa.struct([("x", pa.int32()), ("y", pa.int32())]), False),
    ):
        assert widens(given, kind) == fits, (given, kind)


def test_a_null_in_rows_that_say_they_have_none_is_the_fault_of_their_writer() -> None:
    data = pa.BufferOutputStream()
    forged = pa.schema([pa.field("a", pa.int32(), nullable=False)])
    with pa.ipc.new_stream(data, forged) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([pa.array([1, None], pa.int32())], schema=forged))
    content = bytes(data.getvalue())
    piece = InputPiece("till", 0, len(content), digest64(content, 0), 2, content)
    reader = reader_of({"a": (0, 3, False)}, [piece])
    with pytest.raises(InputReadError, match=r"not rows of their own schema: column 'a'.*program that wrote"):
        reader.read(1)


@pytest.mark.parametrize(
    ("existing", "written", "rule"),
    [
        ("a int, b string", "b string, a bigint, c string", None),
        ("a bigint, b string, c string", "b string, a int", None),
        ("a bigint", "a int, c string", None),
        ("a int", "a int not null", None),
        ("a int, b string", "a int, c string", FitRule.RENAMED),
        ("a int", "a string", FitRule.TYPE),
        ("a decimal(10,2)", "a decimal(8,4)", FitRule.TYPE),
        ("a int", "a int, c string not null", FitRule.NOT_NULL),
        ("a int, b string not null", "a int", FitRule.NOT_NULL),
        ("a int not null", "a int", FitRule.NO_NULL),
    ],
)
def test_a_writer_of_an_older_or_a_newer_version_may_follow_and_no_other(
    existing: str, written: str, rule: FitRule | None
) -> None:
    misfit = misfit_of_writer(parse_schema(existing), parse_schema(written))
    assert (misfit and misfit.rule) == rule
