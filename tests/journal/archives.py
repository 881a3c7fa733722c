"""What tests of archives share: a bucket of their own, a journaled file in segments, and what comes back."""

from functools import cache
from pathlib import Path
from typing import Any

import boto3
import trio

from journal import Directory, inspect_chain, restore
from journal.archive.archiving import Archived, archive_chain, sealed_spans
from journal.archive.bucket import Bucket, parse_s3_url
from journal.archive.reading import ArchivedChain, read_manifest
from tests.journal.journaled_files import files
from tests.journal.memory_store import DIRECTORY, MemoryStore
from tests.support.s3 import BUCKET

LINES = 24


@cache
def client() -> Any:
    return boto3.session.Session().client("s3")


def keys() -> list[str]:
    return [one["Key"] for one in client().list_objects_v2(Bucket=BUCKET).get("Contents", [])]


def empty() -> None:
    if found := [{"Key": key} for key in keys()]:
        client().delete_objects(Bucket=BUCKET, Delete={"Objects": found})


def bucket(**options: Any) -> Bucket:
    """Without waits between tries."""
    return Bucket(parse_s3_url(f"s3://{BUCKET}/dos"), **{"retry_s": 0.0, "tries": 3, **options})


def write_lines(store: MemoryStore, path: Path, epoch: int = 1, count: int = LINES) -> list[int]:
    """A journaled file of lines, in several segments, with snapshots; the logical offset after each line."""

    async def fill() -> list[int]:
        offsets = []
        options = {"recovery_bytes": 1300, "segment_bytes": 500}
        async with await Directory.open(path, store.claim(epoch), **options) as directory:
            for number in range(count):
                await directory.append("log", b"%03d\n" % number)
                offsets.append(directory.end.size)
            await directory.wait_synced()
        return offsets

    return trio.run(fill)


def lines(count: int) -> bytes:
    return b"".join(b"%03d\n" % number for number in range(count))


def archived(store: MemoryStore, **options: Any) -> Archived:
    async def run() -> Archived:
        return await archive_chain(store, DIRECTORY, "files", bucket(), **options)

    return trio.run(run)


async def opened(one: Bucket | None = None) -> ArchivedChain:
    one = one or bucket()
    return ArchivedChain(one, await read_manifest(one, DIRECTORY, "files"))


def restored(into: Path, at: int | None = None, one: Bucket | None = None) -> dict[str, bytes]:
    """From the bucket alone."""

    async def run() -> None:
        await restore(into, await opened(one), DIRECTORY, at=at)

    trio.run(run)
    return files(into)


def sealed_end(store: MemoryStore) -> int:
    async def run() -> int:
        return (await sealed_spans(store, DIRECTORY, "files")).end.size

    return trio.run(run)


def recovered(store: MemoryStore) -> list[str]:
    """The segments that a recovery reads."""
    return [span.name for span in trio.run(inspect_chain, store, DIRECTORY, "files").segments]
