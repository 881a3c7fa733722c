"""Operators that keep files, for tests: one that does what rows say, one that writes words down."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from dataflow import RuntimeContext, UserOperator
from dataflow.state.operator_directory import OperatorDirectory


class Filing(UserOperator):
    """Each row is a change of a file: kind, name, another name, a number, bytes. Gives what it did."""

    needs = "kind string, name string, other string, at bigint, data binary"
    schema = "kind string, name string"
    keeps_files = True
    files: OperatorDirectory

    def open(self, ctx: RuntimeContext) -> None:
        self.files = ctx.directory()
        assert ctx.directory() is self.files

    def process(self, batch: pa.RecordBatch) -> Iterator[Any]:
        for row in batch.to_pylist():
            self.change(row)
            yield row["kind"], row["name"]

    def change(self, row: dict[str, Any]) -> None:
        kind, name = row["kind"], row["name"]
        if kind == "append":
            self.files.append(name, row["data"])
        elif kind == "write_at":
            self.files.write_at(name, row["at"], row["data"])
        elif kind == "truncate":
            self.files.truncate(name, row["at"])
        elif kind == "remove":
            self.files.remove(name)
        else:
            self.files.rename(name, row["other"])


class Diary(UserOperator):
    """Writes each word's numbers into a file of the word's own, and how many there were into one for all.

    once: a file; when it is not there and the word `die` comes, it is made and the process is killed, in the
    middle of a batch whose first rows are written. hurry: a file; batches take their time until it is there.
    """

    needs = "word string, n bigint"
    keeps_files = True
    files: OperatorDirectory

    def __init__(self, once: str = "", hurry: str = "") -> None:
        self.once = once
        self.hurry = hurry

    def open(self, ctx: RuntimeContext) -> None:
        self.files = ctx.directory()
        if not (self.files.path / "counts").exists():
            self.files.truncate("counts", 26 * 8)

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.hurry and not Path(self.hurry).exists():
            time.sleep(0.02)
        for word, n in zip(*(column.to_pylist() for column in batch.columns[:2]), strict=True):
            if word == "die" and self.once and not Path(self.once).exists():
                Path(self.once).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            self.files.append(f"words/{word}", b"%d\n" % n)
            at = (ord(word[0]) - ord("a")) * 8
            before = (self.files.path / "counts").read_bytes()[at : at + 8]
            self.files.write_at("counts", at, (int.from_bytes(before) + 1).to_bytes(8))
        return batch


class MovingDiary(Diary):
    """A diary for any number of workers, if no two words begin alike.

    fails: a file; while it is there, worker 1 cannot take files over.
    """

    def __init__(self, once: str = "", hurry: str = "", fails: str = "") -> None:
        super().__init__(once, hurry)
        self.fails = fails

    def redistribute_directory(self, sources: Mapping[int, Path], target: Path, ctx: RuntimeContext) -> None:
        counts = bytearray(26 * 8)
        (target / "words").mkdir()
        for source in sources.values():
            before = (source / "counts").read_bytes()
            for page in source.glob("words/*"):
                if ctx.owns(page.name):
                    page.rename(target / "words" / page.name)
                    at = (ord(page.name[0]) - ord("a")) * 8
                    counts[at : at + 8] = before[at : at + 8]
        (target / "counts").write_bytes(counts)
        if ctx.worker == 1 and self.fails and Path(self.fails).exists():
            raise ValueError(f"no room for the files of {len(sources)} workers")


def diary_of(rows: list[tuple[str, int]]) -> dict[str, bytes]:
    """The files of one Diary that got these rows."""
    found: dict[str, bytes] = {}
    counts = bytearray(26 * 8)
    for word, n in rows:
        found[f"words/{word}"] = found.get(f"words/{word}", b"") + b"%d\n" % n
        at = (ord(word[0]) - ord("a")) * 8
        counts[at : at + 8] = (int.from_bytes(counts[at : at + 8]) + 1).to_bytes(8)
    return {**found, "counts": bytes(counts)}


def together(several: list[dict[str, bytes]]) -> dict[str, bytes]:
    """The files of all workers: a word is at one of them, and counts are added up."""
    counts = [one.pop("counts") for one in map(dict, several)]
    sums = [sum(int.from_bytes(one[at : at + 8]) for one in counts) for at in range(0, 26 * 8, 8)]
    words = [name for one in several for name in one if name != "counts"]
    assert len(set(words)) == len(words), "rows of one key meet in one copy"
    merged = {name: data for one in several for name, data in one.items()}
    return {**merged, "counts": b"".join(one.to_bytes(8) for one in sums)}
