"""Gateways as processes on a store of three servers: what a Hadoop client sees, also when one is killed."""

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dos_protocol.limits import KIB, MIB
from tests.dos_gateway.gateways import PREFIX, Answer, GatewayProcess, WebHdfsClient, store_of_three
from tests.support.dos_command import dos
from tests.support.servers import ServerProcess

pytestmark = pytest.mark.process
UUID = "11111111-2222-3333-4444-555555555555"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[ServerProcess]]]:
    with store_of_three(tmp_path_factory.mktemp("store")) as made:
        yield made


@pytest.fixture(scope="module")
def client(store: tuple[str, list[ServerProcess]]) -> Iterator[WebHdfsClient]:
    with GatewayProcess(f"{store[0]}/shared") as gateway:
        yield gateway.client


def test_a_file_is_written_once_read_in_parts_moved_and_removed(client: WebHdfsClient) -> None:
    body = os.urandom(3 * MIB + 12_345)
    assert client.put("/files/a", body).code == 201
    assert client.put("/files/a", b"other").refusal == "FileAlreadyExistsException"
    assert client.get("/files/a") == body
    assert client.get("/files/a", offset=KIB * 500, length=KIB * 600) == body[KIB * 500 : KIB * 1100]
    status = client.ask("GET", "GETFILESTATUS", "/files/a").json["FileStatus"]
    assert (status["length"], status["type"]) == (len(body), "FILE")
    assert client.rename("/files/a", "/files/b").code == 200
    assert client.names("/files") == ["b"]
    assert client.put("/files/b", b"new", overwrite=True).code == 201
    assert client.get("/files/b") == b"new"
    assert client.delete("/files")
    assert client.ask("GET", "GETFILESTATUS", "/files/b").refusal == "FileNotFoundException"


@pytest.mark.parametrize("size", [0, 1, 256 * KIB, 256 * KIB + 1, 512 * KIB + 1, 5 * MIB])
def test_a_body_of_any_length_comes_back(client: WebHdfsClient, size: int) -> None:
    body = os.urandom(size)
    assert client.put(f"/lengths/{size}", body).code == 201
    assert client.get(f"/lengths/{size}") == body


def test_a_rename_whose_answer_was_lost_succeeds_again(client: WebHdfsClient) -> None:
    client.put("/again/.x.tmp", b"1")
    assert client.rename("/again/.x.tmp", "/again/x").code == 200
    assert client.rename("/again/.x.tmp", "/again/x").code == 200
    assert client.rename("/again/.x.tmp", "/again/y").refusal == "FileNotFoundException"


def test_of_several_renames_to_one_name_exactly_one_succeeds(client: WebHdfsClient) -> None:
    for number in range(5):
        for writer in range(6):
            client.put(f"/race/.{number}.{writer}.tmp", b"%d" % writer)
        begin = threading.Barrier(6)

        def rename(writer: int, number: int = number, begin: threading.Barrier = begin) -> int:
            begin.wait()
            return client.rename(f"/race/.{number}.{writer}.tmp", f"/race/{number}").code

        with ThreadPoolExecutor(6) as pool:
            codes = list(pool.map(rename, range(6)))
        assert sorted(codes) == [200, 403, 403, 403, 403, 403]
        assert client.get(f"/race/{number}") == b"%d" % codes.index(200)


def test_the_overwriting_rename_of_hadoop_never_makes_the_file_disappear(client: WebHdfsClient) -> None:
    client.put("/over/3.delta", b"old")
    temporary = f"/over/.3.delta.{UUID}.TID7.tmp"
    client.put(temporary, b"new")
    assert client.delete("/over/3.delta", recursive=False)
    assert client.get("/over/3.delta") == b"old"  # the task attempt may die here
    assert client.rename("/over/elsewhere", "/over/3.delta").refusal == "FileNotFoundException"
    client.put("/over/other", b"other")
    assert client.rename("/over/other", "/over/3.delta").refusal == "FileAlreadyExistsException"
    assert client.rename(temporary, "/over/3.delta").code == 200
    assert client.get("/over/3.delta") == b"new"


def test_a_mark_of_a_file_ends_with_its_last_temporary_file(client: WebHdfsClient) -> None:
    client.put("/mark/5", b"committed")
    temporary = f"/mark/.5.{UUID}.tmp"
    client.put(temporary, b"orphan")
    assert client.delete("/mark/5", recursive=False)
    assert client.delete(temporary)
    client.put(temporary, b"later")
    assert client.rename(temporary, "/mark/5").refusal == "FileAlreadyExistsException"
    assert client.get("/mark/5") == b"committed"


def test_paths_that_are_not_ascii_are_taken_as_the_jdk_sends_them(client: WebHdfsClient) -> None:
    assert client.put("/ü/日本 a+b%", b"x").code == 201
    with socket.create_connection(("127.0.0.1", client.port)) as raw:
        raw.sendall(
            f"GET {PREFIX}/ü?op=LISTSTATUS HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        answer = b""
        while data := raw.recv(65536):
            answer += data
    assert b"200" in answer.split(b"\r\n")[0]
    assert "日本 a+b%" in answer.decode()


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/a/../b?op=GETFILESTATUS", 400),
        ("/a/%2e%2e/b?op=GETFILESTATUS", 400),
        ("/" + "a/" * 3000 + "?op=GETFILESTATUS", 400),
        ("/" + "n" * 256 + "?op=GETFILESTATUS", 400),
        ("/%ff?op=GETFILESTATUS", 400),
        ("/%00?op=GETFILESTATUS", 400),
        ("/a?op=OPEN&offset=-1", 400),
        ("/a?op=CREATE", 400),  # a GET
        ("/a?op=TRUNCATE", 400),
        ("/a?op=", 400),
        ("/a", 400),
    ],
)
def test_hostile_requests_are_refused(client: WebHdfsClient, target: str, code: int) -> None:
    assert client.send("GET", f"{PREFIX}{target}").code == code


def test_what_is_not_http_is_refused_and_ends_the_connection(client: WebHdfsClient) -> None:
    with socket.create_connection(("127.0.0.1", client.port)) as raw:
        raw.sendall(b"no http\r\n\r\n")
        assert b"400" in raw.recv(65536)
        assert raw.recv(65536) == b""


def test_a_change_of_a_client_that_has_left_is_not_made(client: WebHdfsClient) -> None:
    client.put("/left", b"x")
    with socket.create_connection(("127.0.0.1", client.port)) as raw:
        request = f"DELETE {PREFIX}/left?op=DELETE HTTP/1.1\r\nHost: localhost:1\r\n\r\n".encode()
        raw.send(request, socket.MSG_MORE)  # the end arrives with it: the gateway cannot be faster
        raw.shutdown(socket.SHUT_WR)
        assert raw.recv(65536) == b""
    assert client.get("/left") == b"x"


def test_an_upload_that_ends_early_leaves_nothing(client: WebHdfsClient) -> None:
    first = client.ask("PUT", "CREATE", "/cut", overwrite="true")
    at = urlsplit(first.headers["Location"])
    with socket.create_connection(("127.0.0.1", at.port or 0)) as raw:
        head = f"PUT {at.path}?{at.query} HTTP/1.1\r\nHost: localhost:1\r\nContent-Length: 3000000\r\n\r\n"
        raw.sendall(head.encode() + bytes(2_000_000))
    assert client.ask("GET", "GETFILESTATUS", "/cut").refusal == "FileNotFoundException"


def test_a_large_directory_is_listed_in_batches(client: WebHdfsClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda n: client.put(f"/many/{n:04}", b"").code, range(1100))) == {201}
    first = client.ask("GET", "LISTSTATUS_BATCH", "/many").json["DirectoryListing"]
    part = first["partialListing"]["FileStatuses"]["FileStatus"]
    assert (len(part), first["remainingEntries"]) == (1000, 100)
    rest = client.ask("GET", "LISTSTATUS_BATCH", "/many", startafter=part[-1]["pathSuffix"])
    names = [
        one["pathSuffix"]
        for one in rest.json["DirectoryListing"]["partialListing"]["FileStatuses"]["FileStatus"]
    ]
    assert names == [f"{number:04}" for number in range(1000, 1100)]


def test_another_gateway_takes_over_from_one_that_is_killed(
    store: tuple[str, list[ServerProcess]], tmp_path: Path
) -> None:
    url = f"{store[0]}/killed"
    with GatewayProcess(url) as first, GatewayProcess(url) as second:
        acknowledged = {}
        for number in range(20):
            body = os.urandom(1000)
            if first.client.put(f"/k/{number}", body).code == 201:
                acknowledged[f"/k/{number}"] = body
        assert second.client.ask("GET", "LISTSTATUS", "/k").refusal == "StandbyException"
        os.kill(first.process.pid, signal.SIGKILL)
        begun = time.monotonic()
        while second.client.ask("GET", "LISTSTATUS", "/k").refusal:
            assert time.monotonic() - begun < 60
        assert {path: second.client.get(path) for path in acknowledged} == acknowledged


def test_a_gateway_that_was_stopped_answers_nothing_from_before(
    store: tuple[str, list[ServerProcess]],
) -> None:
    """It is superseded meanwhile. What waits in its sockets is not executed when it wakes up."""
    url = f"{store[0]}/stopped"
    with GatewayProcess(url) as first, GatewayProcess(url) as second:
        assert first.client.put("/s/offsets", b"1").code == 201
        os.kill(first.process.pid, signal.SIGSTOP)
        late = http.client.HTTPConnection("127.0.0.1", first.port, timeout=60)
        late.request("DELETE", f"{PREFIX}/s/offsets?op=DELETE&recursive=true")
        while second.client.ask("GET", "LISTSTATUS", "/s").refusal:
            pass
        assert second.client.put("/s/offsets", b"2", overwrite=True).code == 201
        os.kill(first.process.pid, signal.SIGCONT)
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            late.getresponse()
        late.close()
        assert second.client.get("/s/offsets") == b"2"
        while (answer := _answered(first.client)) is None:
            pass
        assert answer.refusal == "StandbyException"
        text = b"stopped: another gateway has taken over (epoch 2), and this one is its standby from now on"
        assert text in first.log()


def _answered(client: WebHdfsClient) -> Answer | None:
    try:
        return client.ask("GET", "OPEN", "/s/offsets")
    except ConnectionError:
        return None


def test_a_limit_below_which_deletions_make_no_room_is_refused(
    store: tuple[str, list[ServerProcess]],
) -> None:
    done = dos("gateway", f"{store[0]}/full", "--max-bytes", "255MiB")
    assert done.returncode == 2
    assert "--max-bytes 255MiB is too small: it is at least 256MiB, of which 128 are for" in done.stderr


def test_commands_show_what_is_in_a_tree(
    store: tuple[str, list[ServerProcess]], client: WebHdfsClient
) -> None:
    client.put("/shown/a/b", b"12345")
    url = f"{store[0]}/shared"
    assert dos("gateway", "ls", url, "/shown/a").stdout.split() == ["5", "b"]
    assert dos("gateway", "du", url, "/shown").stdout.startswith(
        "/shown: 5 bytes in 1 files and 2 directories"
    )
    assert dos("gateway", "ls", url, "/nowhere").returncode == 1
    shown = dos("gateway", "status", url)
    assert shown.returncode == 0, shown
    assert f"served by the gateway at 127.0.0.1:{client.port} on " in shown.stdout
    assert "files in " in shown.stdout
    never = dos("gateway", "status", f"{store[0]}/never", "--json")
    assert (never.returncode, json.loads(never.stdout)["served"]) == (1, False)
    confs = dos("gateway", "confs", url, "h1:9870", "h2:9870").stdout
    assert "spark.hadoop.dfs.nameservices shared-" in confs
    assert ".g2 h2:9870" in confs


def test_gateways_serve_figures_and_are_ready_while_one_of_them_serves(
    store: tuple[str, list[ServerProcess]],
) -> None:
    url, options = f"{store[0]}/counted", ("--metrics", "127.0.0.1:0", "--max-bytes", "1GiB")
    with GatewayProcess(url, *options) as first, GatewayProcess(url, *options) as second:
        printed = [second.process.stdout.readline() for _ in range(2)]
        assert printed[0].startswith(f"dos gateway confs {url} 127.0.0.1:{second.port}")
        assert f"counted is served by the gateway at 127.0.0.1:{first.port} on " in printed[1]
        assert first.client.put("/c/1", b"12345").code == 201
        assert first.client.ask("GET", "GETFILESTATUS", "/c/2").code == 404
        assert second.client.ask("GET", "GETFILESTATUS", "/c/1").refusal == "StandbyException"
        assert first.client.ask("GET", "MADE-UP-BY-A-CLIENT", "/").code == 400
        of_first, of_second = (figures_of(one) for one in (first, second))
        assert of_first['dos_gateway_requests_total{op="CREATE_BODY",outcome="done",tree="counted"}'] == 1
        assert (
            of_first['dos_gateway_requests_total{op="GETFILESTATUS",outcome="not_found",tree="counted"}'] == 1
        )
        assert of_first['dos_gateway_requests_total{op="other",outcome="refused",tree="counted"}'] == 1
        assert (
            of_second['dos_gateway_requests_total{op="GETFILESTATUS",outcome="standby",tree="counted"}'] == 1
        )
        assert of_first['dos_gateway_request_seconds_count{op="CREATE",tree="counted"}'] == 1
        names = ("serves", "epoch", "files", "live_bytes", "take_overs_total", "max_bytes")
        assert [of_first[f'dos_gateway_{name}{{tree="counted"}}'] for name in names] == [
            1,
            1,
            1,
            5,
            1,
            1 << 30,
        ]
        assert of_first['dos_gateway_room_bytes{tree="counted"}'] == (1024 - 128 - 64) * MIB * 3 // 4 - 5
        assert of_first['dos_gateway_chain_bytes{tree="counted"}'] > 0
        assert of_second['dos_gateway_serves{tree="counted"}'] == 0
        assert 'dos_gateway_files{tree="counted"}' not in of_second
        assert any(name.startswith("dos_client_") for name in of_first)
        assert [health_of(one, path) for one in (first, second) for path in ("healthz", "readyz")] == [
            "ok"
        ] * 4


def figures_of(gateway: GatewayProcess) -> dict[str, float]:
    text = health_of(gateway, "metrics")
    samples = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in samples}


def health_of(gateway: GatewayProcess, path: str) -> str:
    (line,) = (one for one in gateway.log().decode().splitlines() if one.startswith("metrics: "))
    port = urlsplit(line.removeprefix("metrics: ")).port
    connection = http.client.HTTPConnection("127.0.0.1", port or 0, timeout=60)
    try:
        connection.request("GET", f"/{path}")
        return connection.getresponse().read().decode().strip()
    finally:
        connection.close()


def test_commands_on_journals_do_not_trim_a_tree(
    store: tuple[str, list[ServerProcess]], client: WebHdfsClient
) -> None:
    client.put("/kept", b"body")
    url = f"{store[0]}/shared.fs/fs"
    done = dos("journal", "trim", url, "--before", "-0s", "--apply", "--stopped")
    assert "has the tree of a gateway" in done.stderr
    assert done.returncode
    assert client.get("/kept") == b"body"
