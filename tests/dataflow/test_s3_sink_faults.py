"""Faults that are planted in the sink of a bucket, each of which a test finds."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from dataflow.core.transactions import Transactions, parse_name
from dataflow.errors import SinkWriteError
from dataflow.sinks import s3
from dataflow.sinks.two_phase import TwoPhaseWriter
from dataflow.testing.sink_check import STORIES, _Story, default_row
from journal.archive.bucket import Bucket
from tests.dataflow import test_s3_sink
from tests.dataflow.s3_sinks import (
    SCHEMA,
    bucket,
    client,
    gone,
    lost,
    opened,
    prefix,
    rows,
    service,
    stories,
    voted,
)
from tests.support.s3 import BUCKET, FakeS3, Rule
from tests.support.s3_rows import ids_in, objects

__all__ = ["bucket", "prefix", "service"]
OLDER = test_s3_sink.test_a_reset_to_an_older_checkpoint_takes_later_objects_back
MOVED = test_s3_sink.test_objects_that_readers_have_moved_away_do_not_come_back


def completes_at_once(self: s3.S3Output, transaction: str) -> Any:
    """Complete before commit."""
    receipt = _prepare(self, transaction)
    self.commit(transaction)
    return receipt


def without_the_remainder(self: s3._Parts) -> None:
    self._buffer.clear()
    _end(self)


def keys_by_number(bucket: Bucket, key: str, *others: Any) -> s3.RowUpload:
    """Without the incarnation, workers of two incarnations write the same key."""
    return _RowUpload(bucket, re.sub(r"-i\d{10}", "-i0000000001", key), *others)


def without_receipts(self: Any, prepared: Any) -> Any:
    """Upload ids stay in the memory of the worker."""
    return prepared


def of_everybody(self: Transactions, staged: Iterable[str]) -> list[str]:
    """A worker of an earlier incarnation aborts the uploads of a later one."""
    return [name for name in staged if parse_name(name) not in self._pending]


ZOMBIE = "rows prepare sync commit kill rows prepare sync commit publish zombies"
"""One that publishes its rows late, when its successor has published them, and its own."""
_prepare, _end, _RowUpload = s3.S3Output.prepare, s3._Parts.end, s3.RowUpload


@pytest.mark.parametrize(
    ("kind", "method", "fault", "story", "said"),
    [
        (s3.S3Output, "prepare", completes_at_once, "no failure", "visible too early: "),
        (s3._Parts, "end", without_the_remainder, "no failure", "lost: "),
        (s3, "RowUpload", keys_by_number, "a zombie", "neither the object"),
        (TwoPhaseWriter, "voted", without_receipts, "a crash between commit and publish", "KeyError"),
        (Transactions, "left_over", of_everybody, "a superseded worker opens late", "was aborted"),
    ],
)
def test_each_rule_of_the_sink_is_needed(
    bucket: FakeS3,
    monkeypatch: pytest.MonkeyPatch,
    kind: Any,
    method: str,
    fault: Callable[..., Any],
    story: str,
    said: str,
) -> None:
    acts = [*STORIES.get(story, ZOMBIE).split(), "rows", "prepare", "sync", "commit", "publish"]
    with monkeypatch.context() as patch:
        patch.setattr(kind, method, fault)
        assert said in one_story(acts)
    assert not one_story(acts)


def one_story(acts: list[str]) -> str:
    """What the check finds in one story."""
    return _Story(stories(), "a story", SCHEMA, default_row, 1, "exactly-once", "never").play(acts)


def uploads_again(self: s3.S3Output, transaction: str, receipt: Any) -> None:
    """A sink that does not look whether its lost request was served."""
    again = f"part-{transaction}-again.tsv"
    body = objects(self._bucket.url.path[0])[receipt.key]
    client().put_object(Bucket=BUCKET, Key="/".join((*self._bucket.url.path, again)), Body=body)


def test_a_lost_reply_taken_for_a_failure_would_double_rows(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3.S3Output, "_check_completed", uploads_again)
    bucket.rules += [lost(1), Rule("POST", "uploadId=", gone, 1)]
    writer = opened(prefix)
    writer.process(rows(1, 2, 3))
    voted(writer, 1)
    writer.publish(1)
    writer.close()
    assert sorted(ids_in(prefix)) == [1, 1, 2, 2, 3, 3]


def nothing(self: Transactions, published: Iterable[str]) -> list[str]:
    """A rollback leaves objects whose rows come again."""
    return []


def whoever_wrote(self: Transactions, published: Iterable[str]) -> list[str]:
    """A worker of an earlier incarnation takes back what later ones have published."""
    return [name for name in published if self.newest and name > self.newest]


def not_recorded(self: s3._Newest, transaction: str) -> None:
    """An object that a reader has moved away cannot be distinguished from one that is lost."""


@pytest.mark.parametrize(
    ("kind", "method", "fault", "found_by", "said"),
    [
        (Transactions, "to_take_back", nothing, OLDER, "the rows of checkpoint 3 come again"),
        (Transactions, "to_take_back", whoever_wrote, OLDER, "a worker that is left over takes nothing back"),
        (s3._Newest, "raise_to", not_recorded, MOVED, "neither the object nor its upload exists"),
    ],
)
def test_each_rule_of_what_is_visible_is_needed(
    bucket: FakeS3,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    kind: type,
    method: str,
    fault: Callable[..., Any],
    found_by: Callable[[FakeS3, str], None],
    said: str,
) -> None:
    monkeypatch.setattr(kind, method, fault)
    with pytest.raises((AssertionError, SinkWriteError), match=said):
        found_by(bucket, prefix)


@pytest.mark.parametrize("conditional", [True, False])
def test_an_object_is_not_overwritten_even_by_an_upload_for_the_same_key(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch, *, conditional: bool
) -> None:
    """A second line of defense: it counts if keys were not unique, as is planted here."""
    monkeypatch.setattr(s3, "RowUpload", keys_by_number)
    monkeypatch.setattr(s3.S3Output, "staged", lambda _: [])
    zombie, successor = opened(prefix), opened(prefix, 2)
    zombie.process(rows(1, 2, 3))
    voted(zombie, 1)
    successor.process(rows(1))
    voted(successor, 1)
    successor.publish(1)
    if conditional:
        with pytest.raises(SinkWriteError, match="is another object than the one of 39 bytes"):
            zombie.publish(1)
    else:
        unconditional(zombie)
    assert ids_in(prefix) == ([1] if conditional else [1, 2, 3])
    zombie.close()
    successor.close()


def unconditional(writer: Any) -> None:
    """Complete the only upload of a writer without the condition."""
    output = writer._output
    ((receipt,),) = output._receipts.values()
    parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(receipt.etags, 1)]
    key = "/".join((*output._bucket.url.path, receipt.key))
    client().complete_multipart_upload(
        Bucket=BUCKET, Key=key, UploadId=receipt.upload, MultipartUpload={"Parts": parts}
    )
