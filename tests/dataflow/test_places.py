"""A source or sink continues at its place only: the same name at another place is another one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataflow import (
    FileSink,
    FileSource,
    Graph,
    InputSource,
    LogSink,
    LogSource,
    MergedLogSource,
    ParquetSink,
    S3Sink,
)
from dataflow.sinks.sql import SqlSink

ROW = "at timestamp, n bigint"


def into(sink: Any) -> Graph:
    graph = Graph("g")
    graph.source("rows", InputSource("rows", ROW)).sink("out", sink)
    return graph


def out_of(source: Any) -> Graph:
    graph = Graph("g")
    graph.source("rows", source).sink("out", LogSink())
    return graph


def merged(**options: Any) -> MergedLogSource:
    return MergedLogSource("out", ROW, **{"region": "a", "sites": {"x": "dos://x", "y": "dos://y"}} | options)


def files(path: str, **options: Any) -> FileSource:
    for one in (path, "b.txt"):
        if not Path(one).suffix:
            Path(one).mkdir(exist_ok=True)
        else:
            Path(one).write_text("1\n")
    return FileSource([path] if options else [path, "b.txt"], **options)


Makes = Callable[..., Graph]
PLACES: dict[str, tuple[Makes, list[dict[str, Any]]]] = {
    "FileSink": (lambda at="out": into(FileSink(at)), [{"at": "other"}]),
    "ParquetSink": (lambda at="out": into(ParquetSink(at)), [{"at": "other"}]),
    "S3Sink": (
        lambda at="s3://sales/out": into(S3Sink(at)),
        [{"at": "s3://sales/other"}, {"at": "s3://other/out"}],
    ),
    "SqlSink": (
        lambda url="postgresql://h/shop", table="sold", key=(): into(SqlSink(url, table, key=key)),
        [{"url": "postgresql://h/other"}, {"table": "other"}, {"key": "n"}, {"url": "sqlite:///shop"}],
    ),
    "SqlSink in a file": (lambda at="a.db": into(SqlSink(f"sqlite:///{at}", "sold")), [{"at": "b.db"}]),
    "files": (lambda at="a.txt": out_of(files(at)), [{"at": "c.txt"}]),
    "watched files": (
        lambda at="logs", watch=True: out_of(files(at, watch=watch) if watch else files("a.txt")),
        [{"at": "other"}, {"watch": False}],
    ),
    "input": (
        lambda name="rows", **options: out_of(InputSource(name, ROW, **options)),
        [{"name": "other"}, {"application": "other"}, {"entry": "dos://e"}],
    ),
    "late input": (
        lambda **options: out_of(InputSource("rows", ROW, entry="dos://e", **options)),
        [{"late": True}],
    ),
    "log": (
        lambda sink="out", region="a": out_of(LogSource(sink, ROW, region=region)),
        [{"sink": "other"}, {"region": "b"}],
    ),
    "merged log": (lambda **options: out_of(merged(**options)), [{"region": "b"}]),
}


@pytest.mark.parametrize(
    ("kind", "other"),
    [pytest.param(kind, one, id=f"{kind} {one}") for kind, (_, others) in PLACES.items() for one in others],
)
def test_another_place_under_the_same_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, other: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    make = PLACES[kind][0]
    refused = dict(make(**other).compare(make()).refused)
    why = refused.get("rows") or refused["out"]  # a sink below another source is refused, too
    assert why.startswith("was "), why


MAY_CHANGE: dict[str, tuple[Makes, Makes]] = {
    "a relative path": (lambda: into(FileSink("out")), lambda: into(FileSink(Path("out").resolve()))),
    "compression": (
        lambda: into(ParquetSink("out")),
        lambda: into(ParquetSink("out", compression="gzip", partition_by="n")),
    ),
    "endpoint": (
        lambda: into(S3Sink("s3://sales/out")),
        lambda: into(S3Sink("s3://sales/out", endpoint="https://s3.example")),
    ),
    "host and password": (
        lambda: into(SqlSink("postgresql://ann:a@h1/shop", "sold")),
        lambda: into(SqlSink("postgresql+psycopg://bob:b@h2:5433/shop?sslmode=require", "sold")),
    ),
    "more files": (lambda: out_of(files("a.txt", repeat=2)), lambda: out_of(files("a.txt"))),
    "poll time": (
        lambda: out_of(files("logs", watch=True)),
        lambda: out_of(files("logs", watch=True, poll_s=9, gone="forget")),
    ),
    "store of entry points": (
        lambda: out_of(InputSource("rows", ROW, entry="dos://e")),
        lambda: out_of(InputSource("rows", ROW, entry="dos://f", begin="retained")),
    ),
    "sites": (
        lambda: out_of(merged()),
        lambda: out_of(merged(sites={"x": "dos://x2", "z": "dos://z"}, compare="off")),
    ),
}


@pytest.mark.parametrize("what", MAY_CHANGE)
def test_what_may_change_at_the_same_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before, after = MAY_CHANGE[what]
    change = after().compare(before())
    assert (change.refused, change.new, change.gone) == ((), (), ())


def test_no_password_is_in_what_a_checkpoint_stores() -> None:
    sink = into(SqlSink("postgresql://ann:secret@h1/shop", "sold"))
    assert "secret" not in repr(sink.plan().operators)
