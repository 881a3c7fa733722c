"""Clients of WebHDFS as the page has them: fsspec, pandas, pyarrow, DuckDB, Hadoop's shell, curl."""

import io
import os
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
import fsspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests
from pyarrow.dataset import dataset
from pyarrow.fs import FSSpecHandler, PyFileSystem

from dos_server.testing import threaded_store
from dos_tls import directory_settings
from tests.dos_gateway.gateways import WebHdfsClient, threaded_gateway
from tests.support.certificates import Certificates, certificates
from tests.support.examples import commands, run_example

__all__ = ["certificates"]
PAGE = "docs/gateway.md"
KEY = "k3y-of-the-gateway-0123456789"
TABLE = pa.table({"k": [1, 2, 3], "n": [10, 20, 30]})
LINES = b"k,n\n1,10\n"


@pytest.fixture(scope="module")
def client() -> Iterator[WebHdfsClient]:
    with threaded_store() as servers, threaded_gateway(servers.url, "clients") as (port, _):
        found = WebHdfsClient(port)
        parquet = io.BytesIO()
        pq.write_table(TABLE, parquet)
        found.put("/reports/totals.parquet", parquet.getvalue())
        found.put("/reports/lines.csv", LINES)
        yield found


@pytest.fixture(scope="module")
def tree(client: WebHdfsClient) -> Any:
    return fsspec.filesystem("webhdfs", host="127.0.0.1", port=client.port)


def test_the_example_of_the_page_reads(client: WebHdfsClient) -> None:
    found = run_example(PAGE, "clients", gateway=str(client.port))
    assert found["totals"].to_dict("list") == TABLE.to_pydict()
    assert found["lines"].to_dict("list") == {"k": [1], "n": [10]}
    assert found["files"] == ["/reports/lines.csv", "/reports/totals.parquet"]
    assert found["table"] == TABLE
    assert found["rows"] == [(60,)]
    duckdb.unregister_filesystem("webhdfs")


def test_fsspec_moves_and_removes_files_and_shows_what_there_is(client: WebHdfsClient, tree: Any) -> None:
    client.put("/moves/a", b"0123456789")
    tree.mv("/moves/a", "/moves/b")
    with tree.open("/moves/b") as file:
        file.seek(3)
        assert file.read(4) == b"3456"
    assert (tree.exists("/moves/a"), tree.du("/moves"), tree.glob("/moves/*")) == (False, 10, ["/moves/b"])
    assert tree.content_summary("/moves")["fileCount"] == 1
    tree.mkdir("/moves/inner")
    tree.rm("/moves", recursive=True)
    with pytest.raises(FileNotFoundError):
        tree.info("/moves")


def test_pyarrow_and_duckdb_read_all_files_of_a_directory(client: WebHdfsClient, tree: Any) -> None:
    parquet = client.get("/reports/totals.parquet")
    for name in ("a", "b"):
        client.put(f"/sets/{name}.parquet", parquet)
    found = dataset("/sets", filesystem=PyFileSystem(FSSpecHandler(tree)))
    assert found.to_table().num_rows == 6
    with duckdb.connect() as connection:
        connection.register_filesystem(tree)
        assert connection.sql("select sum(n) from 'webhdfs:///sets/*.parquet'").fetchall() == [(120,)]


def test_a_client_that_begins_with_an_empty_body_to_append_leaves_no_empty_file_and_empties_none(
    client: WebHdfsClient,
) -> None:
    client.put("/append/old", b"old")
    for path in ("/append/old", "/append/new"):
        at = urlsplit(client.ask("PUT", "CREATE", path, overwrite="true").headers["Location"])
        answer = client.send("PUT", f"{at.path}?{at.query}", port=at.port or 0)
        assert answer.refusal == "UnsupportedOperationException"
        assert "an empty file needs Transfer-Encoding: chunked" in answer.json["RemoteException"]["message"]
    assert client.names("/append") == ["old"]
    assert client.get("/append/old") == b"old"


WRITES: dict[str, Callable[[Any, str], object]] = {
    "pipe_file": lambda tree, path: tree.pipe_file(path, b"new"),
    "touch": lambda tree, path: tree.touch(path),
    "pandas": lambda tree, path: pd.DataFrame({"a": [1]}).to_csv(
        f"webhdfs://{path}", storage_options=tree.storage_options
    ),
    "pyarrow": lambda tree, path: pq.write_table(TABLE, path, filesystem=PyFileSystem(FSSpecHandler(tree))),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_client_that_appends_is_refused_with_the_rule(client: WebHdfsClient, tree: Any, name: str) -> None:
    client.put("/writes/old", b"old")
    for path in ("/writes/old", "/writes/new"):
        with pytest.raises(
            requests.HTTPError, match="fsspec sends an empty body before op=APPEND, which is not"
        ):
            WRITES[name](tree, path)
    assert client.names("/writes") == ["old"]
    assert client.get("/writes/old") == b"old"
    with (
        pytest.raises(ValueError, match="op=APPEND is not supported"),
        tree.open("/writes/old", "ab") as file,
    ):
        file.write(b"more")


def test_fsspec_has_the_key_as_a_password(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)  # requests takes them before the setting of a session
    settings = directory_settings(str(certificates.server))
    ca = str(certificates.authority.directory / "ca.pem")
    with (
        threaded_store() as servers,
        threaded_gateway(servers.url, "safe", tls=settings, key=KEY) as (port, _),
    ):
        at = {"host": "127.0.0.1", "port": port, "use_https": True, "session_verify": ca}
        assert fsspec.filesystem("webhdfs", **at, user="any", password=KEY).ls("/") == []
        for wrong in (
            {"user": KEY, "password": ""},
            {"user": "any", "password": KEY + "0"},
            {"token": KEY},
            {},
        ):
            with pytest.raises(requests.HTTPError, match="401"):
                fsspec.filesystem("webhdfs", **at, **wrong).ls("/")
        for header in ("Basic", "Basic !", "Basic YTpi", "basic", f"Basic {KEY}"):
            answer = requests.get(
                f"https://127.0.0.1:{port}/webhdfs/v1/?op=LISTSTATUS",
                headers={"Authorization": header},
                verify=ca,
                timeout=60,
            )
            assert answer.status_code == 401


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_commands_of_the_page_run(client: WebHdfsClient, tmp_path: Path) -> None:
    (tmp_path / "lines.csv").write_bytes(LINES)
    pyspark = find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    lines = "\n".join(commands(PAGE)["clients"]).replace("9870", str(client.port))
    done = subprocess.run(
        ["bash", "-euc", lines],
        cwd=tmp_path,
        env={**os.environ, "SPARK_HOME": str(Path(pyspark.origin).parent)},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.count(LINES) == 2
    assert (tmp_path / "copy.csv").read_bytes() == LINES
    assert client.names("/") == ["reports"]
