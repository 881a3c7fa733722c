"""What a bad service or bucket answers is an error with a name, or tried again."""

import gzip
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
import trio

from journal.archive.bucket import Bucket
from journal.archive.reading import manifest_key
from journal.archive.url import parse_s3_url
from journal.core.archive_manifest import decode_manifest, encode_manifest
from journal.core.errors import (
    ArchiveDamagedError,
    ArchiveNotFoundError,
    ArchiveRefusedError,
    ArchiveUnavailableError,
)
from tests.journal.archives import archived, bucket, client, keys, opened, restored, write_lines
from tests.journal.memory_store import DIRECTORY, MemoryStore
from tests.support.s3 import BUCKET, Answer, FakeS3, Rule, cut, flipped, status


@pytest.mark.parametrize(
    ("method", "make", "error", "text"),
    [
        ("GET", status(403, "AccessDenied"), ArchiveRefusedError, "403 AccessDenied.*credentials"),
        ("PUT", status(403, "AccessDenied"), ArchiveRefusedError, "403 AccessDenied"),
        ("PUT", status(404, "NoSuchBucket"), ArchiveNotFoundError, "404 NoSuchBucket.*check bucket"),
        ("PUT", status(503, "SlowDown"), ArchiveUnavailableError, "up to 3 times.*try again later"),
        ("GET", status(500, "InternalError"), ArchiveUnavailableError, "InternalError"),
        ("GET", cut, ArchiveUnavailableError, "up to 3 times"),
        ("GET", flipped, ArchiveDamagedError, "expected .* bytes with SHA-256 .*, found"),
    ],
)
def test_what_a_bad_service_answers_while_archiving_is_named(
    s3: FakeS3,
    tmp_path: Path,
    method: str,
    make: Callable[[Answer], Answer],
    error: type[Exception],
    text: str,
) -> None:
    store = MemoryStore()
    write_lines(store, tmp_path / "live", count=12)
    s3.rules.append(Rule(method, "files.0", make))
    with pytest.raises(error, match=text):
        archived(store)
    assert manifest_key(DIRECTORY, "files") not in str(keys()), "nothing that was not read back is listed"
    s3.rules.clear()
    assert archived(store).copied_segments > 0
    assert restored(tmp_path / "end")["log"]


BOMB_BYTES = 64 * 1024 * 1024


@contextmanager
def another_host() -> Iterator[tuple[str, list[str]]]:
    """A host that is none of ours, and what it was asked for."""
    asked: list[str] = []

    class Host(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.path} {self.headers.get('Authorization')}")
            self.send_response(200)
            self.end_headers()

        do_HEAD = do_PUT = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Host)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/files", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("code", [301, 302, 307, 308])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_who_is_sent_to_another_host_does_not_go_there(
    s3: FakeS3, tmp_path: Path, code: int, method: str
) -> None:
    store = MemoryStore()
    write_lines(store, tmp_path / "live", count=12)
    with another_host() as (place, asked):
        s3.rules.append(
            Rule(method, "files.0", lambda _: (code, {"Location": place, "Content-Length": "0"}, b""))
        )
        with pytest.raises(ArchiveRefusedError, match=f"{code}"):
            archived(store)
    assert asked == [], "and no credentials either"


def test_what_is_packed_on_the_way_is_not_unpacked(s3: FakeS3, tmp_path: Path) -> None:
    store = MemoryStore()
    write_lines(store, tmp_path / "live", count=12)
    archived(store)
    bomb = gzip.compress(bytes(BOMB_BYTES))
    headers = {"Content-Encoding": "gzip", "Content-Length": str(len(bomb))}
    s3.rules.append(Rule("GET", "files.0", lambda _: (200, headers, bomb)))
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveDamagedError, match=r"files\.0"):
            restored(tmp_path / "end")
        assert tracemalloc.get_traced_memory()[1] < BOMB_BYTES / 2
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "end").exists()


def test_what_a_service_calls_a_version_is_taken_for_no_digest(s3: FakeS3, tmp_path: Path) -> None:
    def of_parts(answer: Answer) -> Answer:
        code, headers, body = answer
        return (
            code,
            {name: value for name, value in headers.items() if name.lower() != "etag"}
            | {"ETag": '"0123456789abcdef0123456789abcdef-7"'},
            body,
        )

    store = MemoryStore()
    write_lines(store, tmp_path / "live", count=12)
    s3.rules += [Rule(method, "files.0", of_parts) for method in ("PUT", "GET", "HEAD")]
    assert archived(store).copied_segments > 0
    assert restored(tmp_path / "end")["log"]


@pytest.mark.parametrize("make", [status(503, "SlowDown"), status(500, "InternalError"), cut])
def test_what_passes_is_tried_again(s3: FakeS3, tmp_path: Path, make: Callable[[Answer], Answer]) -> None:
    store = MemoryStore()
    write_lines(store, tmp_path / "live", count=12)
    s3.rules += [Rule("GET", "files.0", make, times=2)]
    done = archived(store)
    s3.rules = [Rule("GET", "files.0", make, times=2), Rule("GET", ".archive", make, times=2)]
    assert restored(tmp_path / "end")["log"]
    assert done.copied_segments > 0
    assert [rule.met for rule in s3.rules] == [2, 2]


def test_a_service_that_is_slow_is_waited_for_so_long_and_asked_again(s3: FakeS3, tmp_path: Path) -> None:
    store = MemoryStore()
    write_lines(store, tmp_path / "live", count=12)
    archived(store)
    held = threading.Event()
    try:
        s3.rules.append(Rule("GET", "files.0", lambda answer: answer, times=1, wait=held))
        assert restored(tmp_path / "once", one=bucket(timeout_s=0.5))["log"]
        s3.rules[:] = [Rule("GET", "files.0", lambda answer: answer, wait=held)]
        with pytest.raises(ArchiveUnavailableError, match=r"[Tt]imeout|timed out"):
            restored(tmp_path / "never", one=bucket(timeout_s=0.2))
    finally:
        held.set()
    assert not (tmp_path / "never").exists()


def test_the_wait_between_tries_doubles(s3: FakeS3) -> None:
    waits: list[float] = []
    s3.rules.append(Rule("GET", "x", status(503, "SlowDown")))
    with pytest.raises(ArchiveUnavailableError):
        bucket(tries=4, retry_s=0.5, sleep=waits.append).get("x")
    assert waits == [0.5, 1.0, 2.0]


def swap(first: str, second: str) -> None:
    client().copy_object(Bucket=BUCKET, Key=first, CopySource={"Bucket": BUCKET, "Key": second})


def shorten(key: str, _: str) -> None:
    body = client().get_object(Bucket=BUCKET, Key=key)["Body"].read()
    client().put_object(Bucket=BUCKET, Key=key, Body=body[:-1])


def flip(key: str, _: str) -> None:
    body = bytearray(client().get_object(Bucket=BUCKET, Key=key)["Body"].read())
    body[len(body) // 2] ^= 1
    client().put_object(Bucket=BUCKET, Key=key, Body=bytes(body))


def remove(key: str, _: str) -> None:
    client().delete_object(Bucket=BUCKET, Key=key)


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (swap, "expected"),
        (shorten, "found the end"),
        (flip, "a block with SHA-256"),
        (remove, "no such object"),
    ],
)
def test_a_bucket_that_was_tampered_with_restores_nothing(
    s3: FakeS3, tmp_path: Path, harm: Callable[[str, str], None], text: str
) -> None:
    store = MemoryStore()
    write_lines(store, tmp_path / "live", count=18)
    archived(store)
    segments = sorted(key for key in keys() if not key.endswith(".archive"))
    harm(segments[-1], segments[0])
    with pytest.raises(ArchiveDamagedError, match=text) as refused:
        restored(tmp_path / "end")
    assert segments[-1] in str(refused.value)
    assert not (tmp_path / "end").exists()


@pytest.mark.parametrize("directory", ["other", "../other", "/etc"])
def test_the_manifest_of_another_directory_is_refused(s3: FakeS3, tmp_path: Path, directory: str) -> None:
    store = MemoryStore()
    write_lines(store, tmp_path / "live", count=12)
    archived(store)
    (key,) = (one for one in keys() if one.endswith(".archive"))
    manifest = decode_manifest(client().get_object(Bucket=BUCKET, Key=key)["Body"].read(), key)
    strange = encode_manifest(msgspec.structs.replace(manifest, directory=directory))
    client().put_object(Bucket=BUCKET, Key=key, Body=strange)
    with pytest.raises(ArchiveDamagedError, match=f"that of {directory}/files"):
        restored(tmp_path / "end")
    assert not (tmp_path / "end").exists()


def test_an_archive_that_is_missing_is_named(s3: FakeS3) -> None:
    with pytest.raises(ArchiveNotFoundError, match=r"has no archive of chain files in app\.w0000"):
        trio.run(opened)
    with pytest.raises(ArchiveNotFoundError, match="NoSuchBucket"):
        Bucket(parse_s3_url("s3://nobodys/dos"), tries=1).get("x")
