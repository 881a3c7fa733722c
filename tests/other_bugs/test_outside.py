"""Reports about sinks outside of a store: an answer that is lost, and credentials that change."""

import os
import select
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import SinkWriter
from dataflow.sinks.sql import SqlSink
from dataflow.worker.failures import LOSSES
from tests.dataflow.s3_sinks import SCHEMA, bucket, opened, prefix, rows, service, voted
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.s3 import FakeS3, Rule, status
from tests.support.s3_rows import ids_in

__all__ = ["bucket", "prefix", "service"]


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


class CommitDropper:
    """A socket of PostgreSQL whose connections lead to a real server. The answer to commit number `drop` is
    lost: the server has done it, and the connection ends.
    """

    def __init__(self, folder: str, behind: str) -> None:
        self.commits, self.drop = 0, 0
        self._behind = behind
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{folder}/.s.PGSQL.5432")
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """Wait for the clients, which have closed their connections."""
        with self._listener:
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._relay, args=(client,)))
                self._threads[-1].start()

    def _relay(self, client: socket.socket) -> None:
        lost = False
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(self._behind)
            while True:
                for one in select.select([client, server], [], [])[0]:
                    data = one.recv(1 << 16)
                    if not data or (one is server and lost):
                        return
                    if one is client and b"COMMIT" in data:
                        self.commits += 1
                        lost = self.commits == self.drop
                    (server if one is client else client).sendall(data)


@contextmanager
def dropping(url: str) -> Iterator[tuple[CommitDropper, str]]:
    _, _, folder = url.partition("host=")
    with tempfile.TemporaryDirectory(prefix="dos-drop-") as place:
        proxy = CommitDropper(place, f"{folder}/.s.PGSQL.5432")
        try:
            yield proxy, url.replace(folder, place)
        finally:
            proxy.close()


def batch() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": n, "text": "x"} for n in range(3)], SCHEMA)


def until_published(opens: Callable[[int, Any], SinkWriter]) -> int:
    """Write three rows, vote and publish, as a region does: after a failure another incarnation continues
    from the last vote. Return the number of incarnations.
    """
    vote: Any = None
    for incarnation in range(1, 20):
        with suppress(*LOSSES):  # they reset the region
            writer = opens(incarnation, vote)
            with closing(writer):
                if vote is None:
                    writer.process(batch())
                    writer.end_step()
                    vote = voted(writer, 1)
                writer.publish(1)
            return incarnation
    raise AssertionError("never published")


# EVIDENCE-OF: P-7
def test_whichever_sql_commit_loses_its_answer_each_row_is_there_once(postgres: PostgresServer) -> None:
    lives: list[int] = []
    with dropping(postgres.url) as (proxy, url):
        for drop in count(1):
            sink = SqlSink(url, f"t{drop}")

            def opens(incarnation: int, vote: Any, sink: SqlSink = sink) -> SinkWriter:
                context = OperatorContext(sink.table, "out", 0, 1, bytes(16), (SCHEMA,), None, incarnation)
                writer = sink.open(context)
                try:
                    writer.reset_to(vote)
                except BaseException:
                    writer.close()
                    raise
                return writer

            proxy.commits, proxy.drop = 0, drop
            lives.append(until_published(opens))
            with sa.create_engine(postgres.url, poolclass=sa.NullPool).connect() as connection:
                assert sorted(connection.scalars(sa.text(f"SELECT id FROM t{drop}"))) == [0, 1, 2]
            if proxy.commits < drop:
                break
    assert lives[-1] == 1
    assert sum(lives) - len(lives) >= 3, "a lost answer ends an incarnation"


# EVIDENCE-OF: P-7
def test_a_delete_that_loses_its_answer_takes_an_object_back_once(bucket: FakeS3, prefix: str) -> None:
    writer = opened(prefix)
    empty = voted(writer, 1)
    writer.process(rows(1))
    voted(writer, 2)
    writer.publish(2)
    bucket.rules.append(Rule("DELETE", "part-", status(500, "InternalError"), 1))
    later = opened(prefix, 2, empty)
    assert ids_in(prefix) == []
    assert bucket.rules[0].met == 1
    later.process(rows(1))
    voted(later, 3)
    later.publish(3)
    assert ids_in(prefix) == [1]
    writer.close()
    later.close()


# EVIDENCE-OF: P-7
def test_after_credentials_were_rotated_a_reset_reads_them_again(
    service: FakeS3, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"

    def rotate(key: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")
        service.keys = {key}

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.fspath(file))
    rotate("first")
    lives = iter(("second", "third", "fourth"))

    def opens(incarnation: int, vote: Any) -> SinkWriter:
        writer = opened(prefix, incarnation, vote)
        if key := next(lives, ""):
            rotate(key)
        return writer

    try:
        assert until_published(opens) == 4
        assert ids_in(prefix) == [0, 1, 2]
    finally:
        service.keys = None
