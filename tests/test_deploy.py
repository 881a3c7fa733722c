"""The files of deploy/: the command accepts every `dos` line in them, and paths, ports and names agree.

There is no container engine and no cluster in these tests: images are not built, and manifests are compared
with the schema of Kubernetes. The unit of a server is run, without systemd, as far as its start says.
"""

import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from dos_chaos.servers import hold_port
from dos_cli.main import COMMANDS, app
from dos_client.cli.settings import CONFIG_VARIABLE, read_settings
from dos_client.core.contexts import STORE_VARIABLE, Settings, decode_settings
from dos_client.urls import parse_url
from dos_tls import DIRECTORY
from dos_tls.authority import Authority
from tests.support.dos_command import dos
from tests.support.needs import lacking
from tests.test_repository import ROOT

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "store.yaml").read_text()))
SCRIPT: str = COMPOSE["services"]["secrets"]["command"][0]
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = (one for one in KUBERNETES if one["kind"] == kind)
    return found


def pods() -> Iterator[dict[str, Any]]:
    yield from (of_kind(kind)["spec"]["template"] for kind in ("StatefulSet", "Job"))


def unit(path: Path) -> dict[str, list[str]]:
    """Every setting of a unit, with its values in order."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def in_containerfile(instruction: str) -> list[str]:
    text = re.sub(r"\\\n\s*", "", CONTAINERFILE)
    (line,) = re.findall(rf"^{instruction} .*?(\[.*\])$", text, re.M)
    words: list[str] = json.loads(line)
    return words


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """(where, words after `dos`) of every command in these files."""
    assert in_containerfile("ENTRYPOINT") == ["dos"]
    yield "Containerfile", in_containerfile("CMD")
    yield "Containerfile, health", in_containerfile("HEALTHCHECK")[1:]
    for name, service in COMPOSE["services"].items():
        if "entrypoint" not in service:
            yield f"compose.yaml, {name}", service["command"]
    for line in re.findall(r"^ *dos (.*)$", SCRIPT, re.M):
        yield "compose.yaml, secrets", shlex.split(line)
    for path in UNITS:
        program, *words = shlex.split(unit(path)["ExecStart"][0])
        assert program == "/opt/dos/bin/dos"
        yield path.name, words
    for container in itertools.chain.from_iterable(pod["spec"]["containers"] for pod in pods()):
        yield f"store.yaml, {container['name']}", container["args"]


@pytest.mark.parametrize(
    ("where", "words"), [*command_lines()], ids=lambda one: one if isinstance(one, str) else ""
)
def test_the_command_accepts_every_line(
    where: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsed by the command itself; files that only exist where it is deployed are replaced."""
    if where.endswith(".service"):
        monkeypatch.setenv("DOS_CONFIG", str(DEPLOY / "systemd" / "dos.toml"))
    else:
        monkeypatch.setenv("DOS_SERVE_DATA", "/var/lib/dos")  # as the image has it
    (file := tmp_path / "token").write_text("token\n")
    assert words[0] in COMMANDS
    given = [re.sub(r"^(--token-file=)?[^= ]*/token$", rf"\g<1>{file}", word) for word in words]
    if where.startswith("compose.yaml"):
        monkeypatch.setenv(STORE_VARIABLE, COMPOSE["services"]["watch"]["environment"][STORE_VARIABLE])
    root = get_command(app)
    with root.make_context("dos", given) as context:
        name, command, rest = root.resolve_command(context, [*context._protected_args, *context.args])
        while hasattr(command, "commands"):
            name, command, rest = command.resolve_command(context, rest)
        parsed = command.make_context(name, rest, parent=context)  # raises UsageError
    assert parsed.params


def read_settings_of(path: Path) -> Settings:
    return decode_settings(path.read_text(), str(path))


def variables() -> Iterator[str]:
    yield from re.findall(
        r"\bDOS_[A-Z_]+", "".join(path.read_text() for path in DEPLOY.rglob("*") if path.is_file())
    )


def test_every_variable_is_one_that_a_command_reads() -> None:
    shown = "".join(dos(*words, "--help").stdout for words in (["serve"], ["store", "watch"]))
    known = set(re.findall(r"DOS_[A-Z_]+", re.sub(r"[\s│]", "", shown)))
    known |= {CONFIG_VARIABLE, STORE_VARIABLE, DIRECTORY}
    assert set(variables()) - {"DOS_SERVE_"} <= known, "not an option of the services"
    assert {"DOS_SERVE_DATA", "DOS_SERVE_LISTEN", "DOS_TOKEN_FILE", DIRECTORY} <= set(variables())


def test_every_server_accepts_tls_and_needs_a_certificate_and_a_token() -> None:
    """In these files, and in the documents, except in that which says what is lost without."""
    documents = {*(ROOT / "docs").glob("*.md"), ROOT / "README.md"} - {ROOT / "docs" / "security.md"}
    for path in (*DEPLOY.rglob("*"), *documents):
        assert not (path.is_file() and re.search("--insecure|insecure=True", path.read_text())), path
    servers = [
        words for where, words in command_lines() if words[0] == "serve" and "Containerfile" not in where
    ]
    of_systemd = read_settings_of(DEPLOY / "systemd" / "dos.toml")
    assert len(servers) == 5
    for words in servers:
        text = " ".join(words)
        assert "--token-file" in text
        if "%i" not in text:  # in the unit, dos.toml has the others
            assert "--tls=/etc/dos/" in text
            assert "--tls-client-auth" in text
    assert of_systemd.serve["tls_client_auth"] is True
    assert of_systemd.serve["tls"].startswith("/etc/dos/")


def test_probes_need_no_certificate_and_only_readiness_depends_on_more_than_the_event_loop() -> None:
    (server,) = of_kind("StatefulSet")["spec"]["template"]["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in server["ports"]}
    assert f"--metrics=0.0.0.0:{ports['metrics']}" in server["args"]
    probes = {name: one["httpGet"] for name, one in server.items() if name.endswith("Probe")}
    assert probes == {
        "readinessProbe": {"path": "/readyz", "port": "metrics"},
        "startupProbe": {"path": "/healthz", "port": "metrics"},
        "livenessProbe": {"path": "/healthz", "port": "metrics"},
    }


def test_servers_and_clients_have_what_the_servers_need() -> None:
    for pod in pods():
        (container,) = pod["spec"]["containers"]
        values = {one["name"]: one["value"] for one in container["env"]}
        mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        secrets = {one["name"]: one["secret"] for one in pod["spec"]["volumes"] if "secret" in one}
        assert secrets[mounts[values["DOS_TLS"]]]["secretName"] == "dos-client-tls"
        assert secrets[mounts[str(Path(values["DOS_TOKEN_FILE"]).parent)]]["secretName"] == "dos-token"
        assert all(one["defaultMode"] == 0o440 for one in secrets.values()), "not for every user"
    server = of_kind("StatefulSet")["spec"]["template"]["spec"]
    (at,) = (word[len("--tls=") :] for word in server["containers"][0]["args"] if "--tls=" in word)
    (name,) = (one["name"] for one in server["containers"][0]["volumeMounts"] if one["mountPath"] == at)
    (secret,) = (one["secret"] for one in server["volumes"] if one["name"] == name)
    assert secret["secretName"] == "dos-server-tls"
    made = re.findall(r"dos tls init store-tls (\S+)", (DEPLOY / "kubernetes" / "store.yaml").read_text())
    (init,) = of_kind("Job")["spec"]["template"]["spec"]["containers"]
    hosts = [host.partition(":")[0] for host in parse_url(init["args"][-1]).servers]
    assert made == [",".join([*hosts, "127.0.0.1"])]
    assert f"dos tls init store-tls {made[0]}" in (ROOT / "docs" / "installing.md").read_text()


def test_the_manifests_are_valid() -> None:
    for one in KUBERNETES:
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    (wrong := json.loads(json.dumps(of_kind("StatefulSet"))))["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_the_parts_of_the_manifests_fit() -> None:
    service, state, budget, job = map(of_kind, ("Service", "StatefulSet", "PodDisruptionBudget", "Job"))
    labels = state["spec"]["template"]["metadata"]["labels"]
    selectors = [service["spec"]["selector"]]
    selectors += [one["spec"]["selector"]["matchLabels"] for one in (state, budget)]
    assert all(selector.items() <= labels.items() for selector in selectors)
    assert state["spec"]["serviceName"] == service["metadata"]["name"]
    names = [
        f"{state['metadata']['name']}-{n}.{service['metadata']['name']}"
        for n in range(state["spec"]["replicas"])
    ]
    (init,) = job["spec"]["template"]["spec"]["containers"]
    assert list(parse_url(init["args"][-1]).servers) == [f"{name}:9999" for name in names]
    assert budget["spec"]["maxUnavailable"] == (len(names) - 1) // 2  # a quorum is left
    allowed = of_kind("NetworkPolicy")["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert allowed.items() <= job["spec"]["template"]["metadata"]["labels"].items()


def test_containers_may_do_nothing_but_serve() -> None:
    for pod in pods():
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["automountServiceAccountToken"] is False
        for container in pod["spec"]["containers"]:
            allowed = container["securityContext"]
            assert allowed["readOnlyRootFilesystem"] is True
            assert allowed["allowPrivilegeEscalation"] is False
            assert allowed["capabilities"] == {"drop": ["ALL"]}
            mounted = {one["name"] for one in container["volumeMounts"]}
            claims = of_kind("StatefulSet")["spec"]["volumeClaimTemplates"]
            assert mounted <= {
                one["name"] for one in (*pod["spec"]["volumes"], *(c["metadata"] for c in claims))
            }
    for service in COMPOSE["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "ports" not in service  # the record names the members as they are called in the network
    user = re.search(r"^USER (\d+):\d+$", CONTAINERFILE, re.M)
    assert user is not None
    assert (
        int(user[1]) == of_kind("StatefulSet")["spec"]["template"]["spec"]["securityContext"]["runAsUser"] > 0
    )


def test_ports_paths_and_names_agree() -> None:
    image = re.search(r"^EXPOSE (\d+)$", CONTAINERFILE, re.M)
    listen = re.search(r"DOS_SERVE_LISTEN=0\.0\.0\.0:(\d+)", CONTAINERFILE)
    assert image is not None
    assert listen is not None
    ports = {image[1], listen[1], in_containerfile("HEALTHCHECK")[2].rpartition(":")[2]}
    server = of_kind("StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    ports |= {str(server["ports"][0]["containerPort"]), str(of_kind("Service")["spec"]["ports"][0]["port"])}
    assert ports == {"9999"}
    data = re.search(r"DOS_SERVE_DATA=(\S+)", CONTAINERFILE)
    assert data is not None
    servers = {name: one for name, one in COMPOSE["services"].items() if one["command"][0] == "serve"}
    assert {one["volumes"][1].partition(":")[2] for one in servers.values()} == {data[1]}
    for name, one in servers.items():
        assert f"--tls=/etc/dos/secrets/tls/servers/{name}" in one["command"]
    for one in COMPOSE["services"].values():
        assert parse_url(one["environment"]["DOS_STORE"]).servers == tuple(f"{name}:9999" for name in servers)
        assert one["volumes"][0].removesuffix(":ro") == "secrets:/etc/dos/secrets"
    volumes = {one["volumes"][1].partition(":")[0] for one in servers.values()}
    assert set(COMPOSE["volumes"]) == volumes | {"secrets"}
    images = {one["image"] for one in COMPOSE["services"].values()}
    images |= {container["image"] for pod in pods() for container in pod["spec"]["containers"]}
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None
    assert images == {f"dos-journal:{version[1]}"}


def test_what_is_not_left_out_of_the_image_is_every_package() -> None:
    kept = {
        line[1:]
        for line in (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
        if line[:1] == "!"
    }
    packages = {path.parent.name for path in ROOT.glob("*/py.typed")}
    assert packages <= kept, "a package is missing in the image"
    assert all((ROOT / name).exists() for name in kept)


CONFINEMENT = {
    "NoNewPrivileges": ["yes"],
    "CapabilityBoundingSet": [""],
    "ProtectSystem": ["strict"],
    "ProtectHome": ["yes"],
    "PrivateTmp": ["yes"],
    "PrivateDevices": ["yes"],
    "MemoryDenyWriteExecute": ["yes"],
    "SystemCallFilter": ["@system-service", "~@privileged"],
    "User": ["dos"],
    "UMask": ["0077"],
}
"""What matters most, whatever the version of systemd counts."""


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_are_valid_and_confined(path: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        lacking("units are verified by systemd-analyze: apt-get install systemd")
    program = Path(sys.executable).with_name("dos")
    found = unit(path)
    assert {name: found.get(name) for name in CONFINEMENT} == CONFINEMENT
    (here := tmp_path / path.name).write_text(path.read_text().replace("/opt/dos/bin/dos", str(program)))
    for words in (["verify", here], ["security", "--offline=true", "--threshold=20", here]):
        done = subprocess.run(["systemd-analyze", *map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert words[0] == "security" or done.stderr == ""
    RawConfigParser(strict=False).read_string(path.read_text())


CONFINED = """
import ctypes, os, sys
prctl = ctypes.CDLL(None).prctl
prctl(38, 1, 0, 0, 0)  # NoNewPrivileges
prctl(65, 1, 0, 0, 0)  # MemoryDenyWriteExecute; kernels before 6.3 refuse it
os.umask(0o077)
os.execv(sys.executable, [sys.executable, "-m", "dos_cli", *sys.argv[1:]])
"""


@pytest.mark.process
def test_a_server_starts_as_its_unit_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its paths below a directory, and another address than that of the example."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "token").write_text("open sesame, my 3 friends\n")
    authority = Authority.create(tmp_path / "authority")
    authority.add_server(["127.0.0.1"]).rename(tmp_path / "etc" / "tls")
    authority.add_client().rename(tmp_path / "etc" / "client-tls")
    found = unit(DEPLOY / "systemd" / "dos-server@.service")

    def here(text: str) -> str:
        text = text.replace("%d/", "/etc/dos/").replace("%i", "main")
        return text.replace("/etc/dos/", f"{tmp_path}/etc/").replace("/var/lib/dos/", f"{tmp_path}/lib/")

    toml = tmp_path / "etc" / "dos.toml"
    toml.write_text(here((DEPLOY / "systemd" / "dos.toml").read_text()))
    assert found["LoadCredential"] == ["token:/etc/dos/token"]
    set_there = dict(pair.split("=") for pair in shlex.split(here(found["Environment"][0])))
    monkeypatch.setenv("DOS_CONFIG", set_there["DOS_CONFIG"])
    settings = read_settings()
    assert settings.store == "dos://host1,host2,host3"
    with hold_port(0) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        words = shlex.split(here(found["ExecStart"][0]))[1:]
        process = subprocess.Popen(
            [sys.executable, "-c", CONFINED, *words, "--json"],
            env={**os.environ, **set_there, "DOS_SERVE_LISTEN": address},  # as /etc/dos/main.env may
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            started = json.loads(process.stdout.readline())
            assert started["data"] == f"{tmp_path}/lib/main"
            assert (tmp_path / "lib" / "main").stat().st_mode & 0o077 == 0
            toml.write_text(toml.read_text().replace("dos://host1,host2,host3", f"dos://{address}"))
            pinged = dos("ping", "--count", "1")  # store, token and certificate are those of dos.toml
            assert pinged.returncode == 0, pinged.stderr
            assert "this server accepts TLS only" in dos("ping", f"dos://{address}", "--count", "1").stdout
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
    assert process.returncode == 0


def calls_in(group: str) -> set[str]:
    """The system calls of a group of systemd, with those of the groups in it."""
    done = subprocess.run(
        ["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True
    )
    names = [line.strip() for line in done.stdout.splitlines()[1:] if line.startswith("    ")]
    names = [name for name in names if not name.startswith("#")]
    return {call for name in names for call in (calls_in(name) if name.startswith("@") else {name})}


@pytest.mark.process
def test_a_server_makes_no_system_call_that_its_unit_forbids(tmp_path: Path) -> None:
    """From its start to its end, with an append and a read between."""
    for program in ("strace", "systemd-analyze"):
        if shutil.which(program) is None:
            lacking(f"needs {program}: apt-get install strace systemd")
    allowed, forbidden = CONFINEMENT["SystemCallFilter"]
    trace = tmp_path / "trace"
    with hold_port(0) as held:
        url = f"dos://127.0.0.1:{held.getsockname()[1]}"
        words = ["--data", str(tmp_path / "data"), "--listen", url.removeprefix("dos://"), "--json"]
        process = subprocess.Popen(
            ["strace", "-f", "-qq", "-o", trace, sys.executable, "-m", "dos_cli", "serve", *words],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            assert dos("append", f"{url}/notes/greetings", ROOT / "LICENSE").returncode == 0
            assert dos("ls", f"{url}/notes").returncode == 0
        finally:
            (server,) = children_of(process.pid)
            os.kill(server, signal.SIGTERM)
            process.communicate(timeout=60)
    made = set(re.findall(r"^\d+ +(\w+)\(", trace.read_text(errors="replace"), re.M))
    assert {"execve", "fdatasync", "accept4"} & made
    assert made <= calls_in(allowed) - calls_in(forbidden.removeprefix("~"))


def children_of(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
