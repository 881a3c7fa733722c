"""Fixtures of the journal's tests: real servers, a journal file, a bucket."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio

from dos_client.store import init_store
from journal.core.record import encode
from tests.journal.archives import client, empty
from tests.journal.journaled_files import mark, write
from tests.support.s3 import BUCKET, FakeS3, serving
from tests.support.servers import ServerProcess, url_of


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    """Three servers, a store of N=3, Qa=2. Tests of one module share them: leave all of them running."""
    root: Path = tmp_path_factory.mktemp("store")
    started: list[ServerProcess] = []
    try:
        started.extend(ServerProcess(root / f"server-{n}") for n in (1, 2, 3))
        trio.run(init_store, url_of(started))
        yield started
    finally:
        for server in started:
            server.kill()


@pytest.fixture(scope="module")
def store_url(servers: list[ServerProcess]) -> str:
    return url_of(servers)


@pytest.fixture
def hourly_journal(tmp_path: Path) -> Path:
    """A local journal of three hours."""
    path = tmp_path / "some.journal"
    now = datetime.now(UTC)
    records = []
    for hours in (3, 2, 1):
        records += [mark(now - timedelta(hours=hours)), write(b"log", b"%d" % hours, 3 - hours)]
    path.write_bytes(b"".join(encode(record) for record in [*records, write(b"d/new", b"xyz")]))
    return path


@pytest.fixture(scope="module")
def service() -> Iterator[FakeS3]:
    """Moto's server with a bucket, for the tests of one module."""
    with serving() as found:
        client.cache_clear()
        client().create_bucket(Bucket=BUCKET)
        yield found
    client.cache_clear()


@pytest.fixture
def s3(service: FakeS3) -> Iterator[FakeS3]:
    """The service, behaving well, with an empty bucket."""
    empty()
    service.seen.clear()
    yield service
    service.rules.clear()
