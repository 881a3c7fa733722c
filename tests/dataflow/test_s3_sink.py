"""Objects in a bucket that appear at the commit: whole, once, and from whatever host."""

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import cache
from itertools import count
from typing import Any

import boto3
import moto.s3.models
import msgspec
import pyarrow as pa
import pytest

from dataflow import S3Sink, SchemaError, limits
from dataflow.core.transactions import Transactions, parse_name
from dataflow.errors import SinkOwnedError, SinkWriteError
from dataflow.operators.base import OperatorContext
from dataflow.sinks import s3, s3_upload
from dataflow.sinks.base import OutputOwner, SinkSpec, SinkWriter
from dataflow.sinks.two_phase import TwoPhaseWriter
from dataflow.testing.sink_check import STORIES, _Story, check_refuses_other_run, check_sink, default_row
from dos_client.errors import BadUrlError
from journal.archive.bucket import Bucket, S3Url
from tests.support.s3 import BUCKET, Answer, FakeS3, Rule, serving, status
from tests.support.s3_rows import ids_in, objects, uploads

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
OWNER = OutputOwner("r", bytes(16).hex(), "out")
_numbers = count(1)
Story = Callable[[str], tuple[SinkSpec, Callable[[], list[int]]]]


@pytest.fixture(scope="module")
def service() -> Iterator[FakeS3]:
    with serving() as found:
        _any_bucket.cache_clear()
        client().create_bucket(Bucket=BUCKET)
        yield found
    _any_bucket.cache_clear()


@pytest.fixture
def bucket(service: FakeS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    """The service, whose parts may be small. A request is not repeated after a while, but at once."""
    monkeypatch.setattr(moto.s3.models, "S3_UPLOAD_PART_MIN_SIZE", 1)
    monkeypatch.setattr(limits, "s3_part_bytes", 20)
    monkeypatch.setattr(s3, "Bucket", quick)
    service.seen.clear()
    yield service
    service.rules.clear()


def quick(url: S3Url) -> Bucket:
    """A bucket with the client of the module: to make one takes longer than most stories."""
    if url.endpoint is not None:
        return Bucket(url, tries=1)
    made = copy(_any_bucket())
    made.url = url
    return made


@cache
def _any_bucket() -> Bucket:
    return Bucket(S3Url(BUCKET, ()), tries=3, retry_s=0.0)


@pytest.fixture
def prefix() -> str:
    """A place of the test's own."""
    return f"p{next(_numbers)}"


def stories(form: Any = "tsv") -> Story:
    def fresh(name: str) -> tuple[SinkSpec, Callable[[], list[int]]]:
        place = f"p{next(_numbers)}"
        return S3Sink(f"s3://{BUCKET}/{place}", form), lambda: ids_in(place)

    return fresh


def opened(prefix: str, incarnation: int = 1, prepared: Any = None, form: Any = "tsv") -> SinkWriter:
    context = OperatorContext("r", "out", 0, 1, bytes(16), (SCHEMA,), None, incarnation)
    writer = S3Sink(f"s3://{BUCKET}/{prefix}", form).open(context)
    writer.reset_to(prepared)
    return writer


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": n, "text": "x" * 10} for n in numbers], SCHEMA)


def voted(writer: SinkWriter, cut: int) -> Any:
    """What the store keeps of a checkpoint: everything that another host gets."""
    prepared = writer.prepare(cut)
    writer.sync()
    return msgspec.json.decode(msgspec.json.encode(writer.voted(prepared)))


# EVIDENCE-OF: P-7
def test_rows_are_neither_lost_nor_doubled(bucket: FakeS3) -> None:
    assert check_sink(stories(), workers=1, runs=3) > 20


def test_another_run_is_refused(bucket: FakeS3, prefix: str) -> None:
    check_refuses_other_run(lambda _: (S3Sink(f"s3://{BUCKET}/{prefix}"), lambda: ids_in(prefix)))
    with pytest.raises(SinkOwnedError, match=r'belongs to \{"region":"first".*shared=True adds objects'):
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


def lost(times: int) -> Rule:
    """The reply to the completion of an upload is lost, after it was done."""
    return Rule("POST", "uploadId=", status(500, "InternalError"), times)


def gone(answer: Answer) -> Answer:
    """As S3 answers after a while: the upload that was completed is not known any more."""
    return status(404, "NoSuchUpload")(answer)


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


# --- refused at the start -----------------------------------------------------------------------------------


def test_a_bucket_that_cannot_be_used_is_refused_at_the_start_with_the_remedy(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SinkWriteError, match=r"NoSuchBucket.*create the bucket 'no-such-bucket'"):
        S3Sink("s3://no-such-bucket/x").check_place(OWNER)
    with pytest.raises(SinkWriteError, match=r"cannot be reached.*check the endpoint \(http://127.0.0.1:9\)"):
        S3Sink(f"s3://{BUCKET}/x", endpoint="http://127.0.0.1:9").check_place(OWNER)
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
    odd = pa.schema([("odd", pa.month_day_nano_interval())])
    for form, what in (("parquet", "no Parquet type"), ("tsv", "no text form")):
        with pytest.raises(SchemaError, match=f"column 'odd' .* {what}"):
            S3Sink("s3://rows/x", form).check_input(odd)  # type: ignore[arg-type]


# --- faults that the check finds ----------------------------------------------------------------------------


def completes_at_once(self: s3.S3Output, transaction: str) -> Any:
    """Complete before commit."""
    receipt = _prepare(self, transaction)
    self.commit(transaction)
    return receipt


def without_the_remainder(self: s3_upload._Parts) -> s3_upload.Receipt:
    self._buffer.clear()
    return _finish(self)


def keys_by_number(self: s3.S3Output, transaction: str) -> str:
    """Without the incarnation, workers of two incarnations write the same key."""
    return f"part-{self._writer}-i0000000001{transaction[-12:]}.tsv"


def without_receipts(self: Any, prepared: Any) -> Any:
    """Upload ids stay in the memory of the worker."""
    return prepared


def of_everybody(self: Transactions, staged: Iterable[str]) -> list[str]:
    """A worker of an earlier incarnation aborts the uploads of a later one."""
    return [name for name in staged if parse_name(name) not in self._pending]


ZOMBIE = "rows prepare sync commit kill rows prepare sync commit publish zombies"
"""One that is told of the commit of its rows when its successor has published them, and its own."""
_prepare, _finish = s3.S3Output.prepare, s3_upload._Parts.finish


@pytest.mark.parametrize(
    ("kind", "method", "fault", "story", "said"),
    [
        (s3.S3Output, "prepare", completes_at_once, "nothing goes wrong", "visible too early: "),
        (s3_upload._Parts, "finish", without_the_remainder, "nothing goes wrong", "lost: "),
        (s3.S3Output, "_key", keys_by_number, "a zombie", "neither the object"),
        (TwoPhaseWriter, "voted", without_receipts, "a crash between commit and its news", "cannot show"),
        (Transactions, "left_over", of_everybody, "one that is left over begins late", "was aborted"),
    ],
)
def test_each_rule_of_the_sink_is_needed(
    bucket: FakeS3,
    monkeypatch: pytest.MonkeyPatch,
    kind: type,
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
    body = objects(self._bucket.url.path[0])[self._key(transaction)]
    client().put_object(Bucket=BUCKET, Key="/".join((*self._bucket.url.path, again)), Body=body)


def test_a_lost_reply_taken_for_a_failure_would_double_rows(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3.S3Output, "_check_completed", uploads_again)
    rules = [lost(1), Rule("POST", "uploadId=", gone, 1)]
    with pytest.raises(AssertionError, match=r"\[1, 2, 3, 1, 2, 3\]"):
        test_a_reply_that_is_lost_neither_loses_nor_doubles_rows(bucket, prefix, rules)


@pytest.mark.parametrize("conditional", [True, False])
def test_an_object_is_not_overwritten_even_by_an_upload_for_the_same_key(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch, *, conditional: bool
) -> None:
    """A second line of defense: it counts if keys were not unique, as is planted here."""
    monkeypatch.setattr(s3.S3Output, "_key", keys_by_number)
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
    ((name, receipt),) = output._receipts.items()
    parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(receipt.etags, 1)]
    key = "/".join((*output._bucket.url.path, output._key(name)))
    client().complete_multipart_upload(
        Bucket=BUCKET, Key=key, UploadId=receipt.upload, MultipartUpload={"Parts": parts}
    )


def client() -> Any:
    return boto3.session.Session().client("s3")


def delete(prefix: str, *names: str) -> None:
    for name in names:
        client().delete_object(Bucket=BUCKET, Key=f"{prefix}/{name}")
