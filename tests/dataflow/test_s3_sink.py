"""Objects in a bucket that appear at the commit: whole, once, and from whatever host."""

from typing import Any

import pyarrow as pa
import pytest

from dataflow import FileSink, ParquetSink, S3Sink, SchemaError
from dataflow.errors import SinkOwnedError, SinkWriteError
from dataflow.sinks import s3
from dataflow.sinks.base import OutputOwner
from dataflow.testing.sink_check import check_refuses_other_run, check_sink
from dos_client.errors import BadUrlError
from journal.archive.bucket import Bucket, S3Url
from tests.dataflow.s3_sinks import (
    SCHEMA,
    bucket,
    client,
    delete,
    gone,
    lost,
    opened,
    prefix,
    rows,
    service,
    stories,
    voted,
)
from tests.support.s3 import BUCKET, Answer, FakeS3, Rule, status
from tests.support.s3_rows import fill, ids_in, objects, uploads

__all__ = ["bucket", "prefix", "service"]
OWNER = OutputOwner("r", bytes(16).hex(), "out")


# EVIDENCE-OF: P-7
def test_rows_are_neither_lost_nor_doubled(bucket: FakeS3) -> None:
    assert check_sink(stories(), workers=1, runs=1) >= 20


def test_another_run_is_refused(bucket: FakeS3, prefix: str) -> None:
    check_refuses_other_run(lambda _: (S3Sink(f"s3://{BUCKET}/{prefix}"), lambda: ids_in(prefix)))
    with pytest.raises(
        SinkOwnedError, match=r"belongs to sink 'sink' of region 'first'.*shared=True adds objects"
    ):
        S3Sink(f"s3://{BUCKET}/{prefix}").check_place(OWNER)
    S3Sink(f"s3://{BUCKET}/{prefix}", shared=True).check_place(OWNER)
    client().put_object(Bucket=BUCKET, Key=f"{prefix}x/of_a_program", Body=b"7")
    with pytest.raises(SinkOwnedError, match=r"has of_a_program but no _region\.json"):
        S3Sink(f"s3://{BUCKET}/{prefix}x").check_place(OWNER)


@pytest.mark.parametrize("form", ["tsv", "parquet"])
def test_another_host_completes_what_a_checkpoint_names_with_nothing_else(
    bucket: FakeS3, prefix: str, form: Any
) -> None:
    """The objects of the dead worker's process are not used: what it kept in memory is lost."""
    dead = opened(prefix, form=form)
    dead.process(rows(1, 2, 3))
    dead.process(rows(4))
    checkpoint = voted(dead, 1)
    dead.process(rows(5))
    dead.close()
    assert objects(prefix) == {}
    (receipt,) = checkpoint["pending"].values()
    assert len(receipt["etags"]) > 1
    later = opened(prefix, 2, checkpoint, form)
    assert ids_in(prefix) == []
    later.publish(1)
    later.publish(1)
    assert ids_in(prefix) == [1, 2, 3, 4]
    later.process(rows(5))
    voted(later, 2)
    later.publish(2)
    later.close()
    assert sorted(ids_in(prefix)) == [1, 2, 3, 4, 5]
    assert uploads(prefix) == []


def test_a_run_with_another_format_completes_the_uploads_of_the_one_before(
    bucket: FakeS3, prefix: str
) -> None:
    writer = opened(prefix)
    writer.process(rows(1))
    checkpoint = voted(writer, 1)
    writer.close()
    later = opened(prefix, 2, checkpoint, "parquet")
    later.publish(1)
    later.process(rows(2))
    voted(later, 2)
    later.publish(2)
    later.close()
    assert [name.rpartition(".")[2] for name in sorted(objects(prefix))] == ["tsv", "parquet"]
    assert ids_in(prefix) == [1, 2]
    opened(prefix, 3, checkpoint).close()
    assert ids_in(prefix) == [1], "also taken back, as after a rollback"


def test_parts_have_the_size_that_s3_requires_and_the_remainder_is_the_last(
    service: FakeS3, prefix: str
) -> None:
    """With the limits as they are, and moto's check of part sizes."""
    writer = opened(prefix)
    text = "y" * 999_990
    batch = pa.RecordBatch.from_pylist([{"id": n, "text": text} for n in range(6)], SCHEMA)
    for _ in range(3):
        writer.process(batch)
    checkpoint = voted(writer, 1)
    writer.publish(1)
    writer.close()
    (receipt,) = checkpoint["pending"].values()
    (content,) = objects(prefix).values()
    assert len(receipt["etags"]) == 3
    assert receipt["bytes"] == len(content) == 18 * 999_993
    assert content == "".join(f"{n % 6}\t{text}\n" for n in range(18)).encode()


# --- lost replies and servers in trouble --------------------------------------------------------------------


@pytest.mark.parametrize(
    "rules",
    [
        [lost(1)],
        [lost(1), Rule("POST", "uploadId=", gone, 1)],
        [lost(1), Rule("POST", "uploadId=", status(412, "PreconditionFailed"), 1)],
        [lost(1), Rule("POST", "uploadId=", status(409, "ConditionalRequestConflict"), 1)],
        [Rule("PUT", "partNumber=1", status(503, "SlowDown"), 2)],
        [Rule("PUT", ".shown", status(500, "InternalError"), 1)],
        [Rule("POST", "uploadId=", status(501, "NotImplemented"), 1)],
    ],
    ids=["known", "unknown upload", "object exists", "conflict", "slow", "record", "no conditions"],
)
def test_a_reply_that_is_lost_neither_loses_nor_doubles_rows(
    bucket: FakeS3, prefix: str, rules: list[Rule]
) -> None:
    writer = opened(prefix)
    writer.process(rows(1, 2, 3))
    bucket.rules += rules
    voted(writer, 1)
    writer.publish(1)
    assert ids_in(prefix) == [1, 2, 3]
    assert all(rule.met == rule.times for rule in rules)
    writer.close()


def test_a_part_that_failed_is_never_left_out(bucket: FakeS3, prefix: str) -> None:
    writer = opened(prefix)
    bucket.rules.append(Rule("PUT", "partNumber=2", status(403, "AccessDenied")))
    with pytest.raises(SinkWriteError, match=r"refused a request: .*AccessDenied.*a sink needs GetObject"):
        writer.process(rows(*range(20)))
    writer.prepare(1)
    for _ in range(2):  # the next checkpoint tries it again
        with pytest.raises(SinkWriteError, match="AccessDenied"):
            writer.sync()
    writer.close()
    writer = opened(prefix, 2)
    writer.process(rows(1, 2))  # the second part is the last one
    writer.prepare(1)
    with pytest.raises(SinkWriteError, match="AccessDenied"):
        writer.sync()
    writer.close()
    assert objects(prefix) == {}


def test_after_every_reply_was_lost_another_host_finds_the_object(bucket: FakeS3, prefix: str) -> None:
    dead = opened(prefix)
    dead.process(rows(1, 2))
    checkpoint = voted(dead, 1)
    bucket.rules.append(lost(3))
    with pytest.raises(SinkWriteError, match=r"cannot be reached.*InternalError.*check the endpoint"):
        dead.publish(1)
    dead.close()
    bucket.rules[:] = [Rule("POST", "uploadId=", gone)]
    later = opened(prefix, 2, checkpoint)
    later.publish(1)
    later.close()
    assert ids_in(prefix) == [1, 2]


# --- what others do in the bucket ---------------------------------------------------------------------------


def test_objects_that_readers_have_moved_away_do_not_come_back(bucket: FakeS3, prefix: str) -> None:
    writer = opened(prefix)
    writer.process(rows(1))
    checkpoint = voted(writer, 1)
    writer.publish(1)
    writer.close()
    delete(prefix, *objects(prefix))
    later = opened(prefix, 2, checkpoint)
    later.publish(1)
    later.close()
    assert ids_in(prefix) == []


def test_an_upload_that_was_aborted_by_others_is_an_error_with_a_remedy(bucket: FakeS3, prefix: str) -> None:
    writer = opened(prefix)
    writer.process(rows(1))
    checkpoint = voted(writer, 1)
    bucket_ = Bucket(S3Url(BUCKET, (prefix,)))
    for key, upload in bucket_.uploads(""):
        bucket_.abort_upload(key, upload)
    with pytest.raises(SinkWriteError, match=r"neither the object nor its upload exists.*lifecycle rule"):
        writer.publish(1)
    writer.close()
    (name,) = checkpoint["pending"]
    client().put_object(Bucket=BUCKET, Key=f"{prefix}/part-{name}.tsv", Body=b"of another")
    later = opened(prefix, 2, checkpoint)
    with pytest.raises(SinkWriteError, match="is another object than the one of 13 bytes"):
        later.publish(1)
    later.close()


def test_uploads_that_are_left_over_are_aborted(bucket: FakeS3, prefix: str) -> None:
    writer = opened(prefix)
    writer.process(rows(1, 2, 3))
    voted(writer, 1)
    writer.process(rows(4, 5, 6))
    assert len(uploads(prefix)) == 2
    writer.close()
    opened(prefix, 2).close()
    assert uploads(prefix) == []
    assert list(objects(prefix, hidden=True)) == ["_region.json"]


def test_a_reset_to_an_older_checkpoint_takes_later_objects_back(bucket: FakeS3, prefix: str) -> None:
    """As after a rollback: its checkpoint has another number and the positions of an older one."""
    writer = opened(prefix)
    empty = voted(writer, 1)
    writer.process(rows(1))
    older = voted(writer, 2)
    writer.publish(2)
    writer.process(rows(2))
    voted(writer, 3)
    writer.publish(3)
    stale = opened(prefix, 2, older)  # opened before the objects of incarnation 3 were there
    assert ids_in(prefix) == [1], "the rows of checkpoint 3 come again"
    later = opened(prefix, 3, older)
    later.publish(4)
    later.process(rows(2))
    newest = voted(later, 5)
    later.publish(5)
    assert ids_in(prefix) == [1, 2]
    opened(prefix, 2, older).close()
    assert ids_in(prefix) == [1, 2], "a worker that is left over takes nothing back"
    opened(prefix, 4, newest).close()
    assert ids_in(prefix) == [1, 2]
    with pytest.raises(SinkOwnedError, match=r"visible rows of this worker .* the region has no checkpoint"):
        opened(prefix, 5)
    opened(prefix, 5, empty).close()
    assert ids_in(prefix) == []
    for one in (writer, stale, later):
        one.close()


def test_lists_of_several_pages_are_read_to_their_end(bucket: FakeS3, prefix: str) -> None:
    fill(prefix, [f"part-{number:04d}" for number in range(1_001)])
    place = Bucket(S3Url(BUCKET, (prefix,)))
    assert len([*place.keys("part-")]) == len([*place.objects("part-", direct=True)]) == 1_001
    assert [*place.keys("part-", after="part-0998")] == ["part-0999", "part-1000"]
    made = [("a", place.create_upload("a", {})), ("b", place.create_upload("b", {}))]
    bucket.rules.append(Rule("GET", "uploads", more_follow, 1))
    assert [*place.uploads("")] == [*made, *made], "moto sends all uploads again for the second page"
    for key, upload in made:
        place.abort_upload(key, upload)


def more_follow(answer: Answer) -> Answer:
    code, headers, body = answer
    markers = b"<NextKeyMarker>b</NextKeyMarker><NextUploadIdMarker>x</NextUploadIdMarker>"
    assert b"<IsTruncated>false</IsTruncated>" in body
    body = body.replace(b"<IsTruncated>false</IsTruncated>", b"<IsTruncated>true</IsTruncated>" + markers)
    return code, {**headers, "Content-Length": str(len(body))}, body


# --- refused at the start -----------------------------------------------------------------------------------


def test_a_bucket_that_cannot_be_used_is_refused_at_the_start_with_the_remedy(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SinkWriteError, match=r"NoSuchBucket.*create the bucket 'no-such-bucket'"):
        S3Sink("s3://no-such-bucket/x").check_place(OWNER)
    unreachable = S3Sink(f"s3://{BUCKET}/x", endpoint="http://127.0.0.1:9")
    with pytest.raises(ConnectionError, match="Could not connect to the endpoint"):
        unreachable.check_place(OWNER)
    with pytest.raises(SinkWriteError, match=r"cannot be reached.*check the endpoint \(http://127.0.0.1:9\)"):
        opened(prefix, sink=unreachable)
    bucket.rules.append(Rule("POST", "uploads", status(403, "AccessDenied")))
    with pytest.raises(SinkWriteError, match=r"AccessDenied.*needs GetObject, PutObject"):
        opened(prefix)
    monkeypatch.setattr(s3, "Bucket", Bucket)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(SinkWriteError, match=r"Unable to locate credentials.*AWS_ACCESS_KEY_ID"):
        S3Sink(f"s3://{BUCKET}/x").check_place(OWNER)


def test_what_cannot_be_a_sink_is_refused_when_the_graph_is_built() -> None:
    with pytest.raises(BadUrlError, match="not a valid bucket name"):
        S3Sink("s3://A_B/x")
    with pytest.raises(SchemaError, match="format must be one of parquet, tsv, not 'csv'"):
        S3Sink("s3://rows/x", format="csv")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="compression must be one of"):
        S3Sink("s3://rows/x", compression="zip")  # type: ignore[arg-type]
    for sink in (FileSink, ParquetSink):
        with pytest.raises(SchemaError, match=r"'s3://rows/x' is a URL; use S3Sink"):
            sink("s3://rows/x")
    odd = pa.schema([("odd", pa.month_day_nano_interval())])
    for form, what in (("parquet", "no Parquet type"), ("tsv", "no text form")):
        with pytest.raises(SchemaError, match=f"column 'odd' .* {what}"):
            S3Sink("s3://rows/x", format=form).check_input(odd)  # type: ignore[arg-type]
