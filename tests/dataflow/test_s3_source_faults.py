"""Faults that are planted in the source of a bucket, each of which a test finds."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from checkpoint import SplitPosition
from dataflow import FileSource
from dataflow.core.file_digest import FileDigest
from dataflow.errors import InputGoneError
from dataflow.sources import file_source, input_files
from dataflow.sources.base import SplitDivision
from dataflow.sources.file_source import FileReader, WatchReader
from dataflow.sources.input_files import FileSeen
from journal.archive.bucket import Bucket, ObjectPart, S3Url
from tests.dataflow import test_s3_source as tests
from tests.dataflow import test_s3_source_service as service_tests
from tests.dataflow.s3_sources import bucket, prefix, service
from tests.support.s3 import BUCKET, FakeS3

__all__ = ["bucket", "prefix", "service"]
Test = Callable[[FakeS3, str, pytest.MonkeyPatch], None]
_part, _position_of = Bucket.part, FileReader._position_of
_replayed = WatchReader._replayed


def replaced(kind: Any, *, restarted: bool) -> Test:
    def test(bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
        tests.test_an_object_that_was_replaced_while_it_is_read_is_refused_by_name(
            bucket, prefix, monkeypatch, kind, "a", restarted
        )

    return test


def without(test: Callable[[FakeS3, str], None]) -> Test:
    return lambda bucket, prefix, _: test(bucket, prefix)


def any_version(self: Bucket, key: str, offset: int, length: int, version: str = "") -> ObjectPart | None:
    """Without If-Match."""
    return _part(self, key, offset, length)


def version_is_forgotten(self: FileReader, split: Any, *, done: bool = False) -> SplitPosition:
    """A checkpoint that does not name the version."""
    return msgspec.structs.replace(_position_of(self, split, done=done), version="")


def from_the_beginning(point: Any, *, whole: bool) -> FileDigest:
    """A restore that ignores the position."""
    return FileDigest()


def unread(self: WatchReader, path: str, seen: FileSeen, version: str, at: SplitPosition) -> bool:
    """A list whose versions are not compared."""
    return not at.done and seen.size > 0


def lists_again(self: WatchReader, path: str, part: SplitDivision) -> bytes:
    chunk = _replayed(self, path, part)
    self._list_at_s = 0.0
    return chunk


def forgets(self: WatchReader, path: str, **_: Any) -> None:
    """Bytes that were not read are lost silently."""
    if self._spec.gone == "stop":
        raise InputGoneError(path, 0)
    self._forget(path)


def unchecked(self: WatchReader, split: Any, *, done: bool) -> None:
    """A replay that marks a longer object as read."""
    FileReader._note(self, split, done=done)


def whatever_arrives(
    self: Bucket, key: str, answer: Any, data: bytes, offset: int, length: int
) -> ObjectPart:
    return ObjectPart(data, str(answer["ETag"]), len(data))


def with_the_old_part(self: input_files.ObjectBytes, position: int) -> None:
    """What was requested ahead is taken for what is at another position."""
    self._begin, self._block, self._length = position, b"", 20
    self._ahead = getattr(self, "_ahead", None)


@pytest.mark.parametrize(
    ("place", "name", "fault", "found_by"),
    [
        (Bucket, "part", any_version, replaced(FileSource, restarted=False)),
        (FileReader, "_position_of", version_is_forgotten, replaced(FileSource, restarted=True)),
        (
            file_source,
            "resumed",
            from_the_beginning,
            without(tests.test_a_reset_requests_as_much_of_a_large_object_as_of_a_small_one),
        ),
        (
            WatchReader,
            "_object_is_ready",
            unread,
            without(tests.test_an_object_that_was_read_and_then_replaced_is_refused_or_read_as_a_new_one),
        ),
        (
            WatchReader,
            "_replayed",
            lists_again,
            without(tests.test_the_bucket_is_listed_once_per_interval_also_while_steps_are_replayed),
        ),
        (
            WatchReader,
            "_note",
            unchecked,
            without(tests.test_a_replay_of_other_bytes_is_refused_and_so_is_one_of_more_bytes),
        ),
        (
            WatchReader,
            "_handle_missing",
            forgets,
            tests.test_objects_that_were_deleted_are_reported,
        ),
        (
            Bucket,
            "_checked_part",
            whatever_arrives,
            without(service_tests.test_a_service_without_ranges_is_refused),
        ),
        (
            input_files.ObjectBytes,
            "_restart",
            with_the_old_part,
            tests.test_any_part_of_an_object_can_be_read_in_any_order,
        ),
    ],
)
def test_each_rule_of_the_source_is_needed(
    bucket: FakeS3,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    place: Any,
    name: str,
    fault: Callable[..., Any],
    found_by: Test,
) -> None:
    monkeypatch.setattr(place, name, fault)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        found_by(bucket, prefix, monkeypatch)


def test_a_service_that_ignores_if_match_is_noticed(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second line of defense: the version of each reply is compared, too."""
    shared_client = input_files.Bucket(S3Url(BUCKET, ()))._client
    get = shared_client.get_object

    def unconditional(**request: Any) -> Any:
        request.pop("IfMatch", None)
        return get(**request)

    monkeypatch.setattr(shared_client, "get_object", unconditional)
    replaced(FileSource, restarted=False)(bucket, prefix, monkeypatch)
    assert {version for _, version in bucket.spans} == {""}
