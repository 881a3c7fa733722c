"""The entry script `./run`: what it sets up and when, with a Python and a Java that only record their calls.

The real installation is what the continuous integration does on a new machine; here it is the order of
things: once, whole, again after an interruption, one at a time, from anywhere.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support import parts

ROOT = Path(__file__).parent.parent

FAKE_PYTHON = """#!/bin/sh
# Answers as far as ./run asks; writes every installation into $FAKE_LOG.
case "$*" in
    "-c import ensurepip") [ -z "${FAKE_NO_ENSUREPIP:-}" ] ;;
    "-c "*sysconfig*) echo "3.11 $FAKE_TOOLS" ;;
    "-c "*"print("*) echo 3.11 ;;
    "-c "*) exit 0 ;;
    --version) echo "Python 3.11.0" ;;
    "-m venv "*)
        for place; do :; done
        mkdir -p "$place/bin"
        cp "$0" "$place/bin/python"
        case "$*" in *--without-pip*) ;; *) touch "$place/bin/pip"; chmod +x "$place/bin/pip" ;; esac
        printf '#!/bin/sh\\necho "dos $*"\\npwd\\n' >"$place/bin/dos"
        chmod +x "$place/bin/dos"
        ;;
    "-m pip --version") exit 0 ;;
    "-m pip "*)
        echo "$*" >>"$FAKE_LOG"
        sleep "${FAKE_PIP_S:-0}"
        case "$*" in *"[power]"*) exit "${FAKE_PYFUSE3_ENDS:-0}" ;; esac
        exit "${FAKE_PIP_ENDS:-0}"
        ;;
    "-m mypy")
        echo "python $*"
        exit "${FAKE_MYPY_ENDS:-0}"
        ;;
    *)
        echo "python $*"
        echo "JAVA_HOME=$JAVA_HOME"
        echo "HOME=$HOME"
        echo "PYSPARK_PYTHON=$PYSPARK_PYTHON"
        ;;
esac
"""

FAKE_APT_GET = """#!/bin/sh
# Puts an empty program on PATH for each package that has one.
echo "apt-get $*" >>"$FAKE_LOG"
for package; do :; done
case "$*" in *" install "*) ;; *) exit 0 ;; esac
case $package in
    fuse3) program=fusermount3 ;;
    postgresql) program=initdb ;;
    iproute2) program=ip ;;
    systemd) program=systemd-analyze ;;
    prometheus) program=promtool ;;
    chromium-driver) program=chromedriver ;;
    python3.11-dev) program=Python.h ;;
    *) program=$package ;;
esac
[ "$package" != "${FAKE_NOT_OFFERED:-}" ] || exit 100
printf '#!/bin/sh\\n' >"$FAKE_TOOLS/$program"
chmod +x "$FAKE_TOOLS/$program"
"""

TOOLS = [
    "awk",
    "cat",
    "chmod",
    "cksum",
    "cp",
    "date",
    "dirname",
    "env",
    "flock",
    "id",
    "mkdir",
    "mktemp",
    "mv",
    "pwd",
    "readlink",
    "rm",
    "sh",
    "sleep",
    "touch",
]
"""All that ./run and the fakes call; apt-get and sudo are not among them, so no test installs anything."""

SYSTEM_PACKAGES = [
    "strace",
    "fuse3",
    "postgresql",
    "iproute2",
    "iptables",
    "systemd",
    "prometheus",
    "chromium",
    "chromium-driver",
    "pkg-config",
    "libfuse3-dev",
    "gcc",
    "libc6-dev",
    "python3.11-dev",
]

FAKE_JAVA = """#!/bin/sh
echo "    java.home = {home}" >&2
echo "    java.specification.version = {version}" >&2
"""


class Checkout:
    """A copy of the entry script and of what it installs from."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "checkout with a space"
        self.root.mkdir()
        for name in ("run", "constraints.txt", "pyproject.toml"):
            shutil.copy(ROOT / name, self.root / name)
        self.log = directory / "log"
        self.elsewhere = directory / "elsewhere"
        self.elsewhere.mkdir()
        python = directory / "python3"
        python.write_text(FAKE_PYTHON)
        python.chmod(0o755)
        self.java_home = directory / "java"
        (self.java_home / "bin").mkdir(parents=True)
        self.java(17)
        self.tools = tools = directory / "tools"
        tools.mkdir()
        for name in TOOLS:
            found = shutil.which(name)
            assert found is not None, f"{name} is not on PATH"
            (tools / name).symlink_to(found)
        self.environment = {"PATH": str(tools), "FAKE_LOG": str(self.log), "DOS_PYTHON": str(python)}
        self.environment |= {"HOME": str(directory), "JAVA_HOME": str(self.java_home)}
        self.environment |= {"FAKE_TOOLS": str(tools)}

    def may_install(self) -> None:
        """From now on there is an apt-get, and the caller is root."""
        (self.tools / "id").unlink()
        for name, text in (("apt-get", FAKE_APT_GET), ("id", "#!/bin/sh\necho 0\n")):
            (self.tools / name).write_text(text)
            (self.tools / name).chmod(0o755)

    def java(self, version: int) -> None:
        java = self.java_home / "bin" / "java"
        java.write_text(FAKE_JAVA.format(home=self.java_home, version=version))
        java.chmod(0o755)

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [self.root / "run", *arguments],
            cwd=self.elsewhere,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    @property
    def installations(self) -> list[str]:
        """What pip was called with."""
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_dos_command_installs_no_spark_and_keeps_the_callers_directory(checkout: Checkout) -> None:
    done = checkout.run("dos", "ls", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["dos ls --json", str(checkout.elsewhere)]
    ourselves = "--no-build-isolation --editable .[dataflow,s3] --quiet --disable-pip-version-check"
    assert f"-m pip install {ourselves} --constraint constraints.txt" in checkout.installations


def test_the_documentation_is_built_in_the_checkout(checkout: Checkout) -> None:
    done = checkout.run("docs", "-j", "2")
    assert done.returncode == 0, done.stderr
    built = "python -m sphinx -c docs/site -b html -n -W --keep-going -q -j 2 . build/docs"
    assert done.stdout.splitlines()[0] == built


def test_a_second_call_installs_nothing_and_says_nothing(checkout: Checkout) -> None:
    checkout.run("dos")
    installed = len(checkout.installations)
    again = checkout.run("dos")
    assert len(checkout.installations) == installed
    assert again.stderr == ""


def test_the_other_verbs_add_the_extras_and_the_core_needs_nothing_after_them(checkout: Checkout) -> None:
    checkout.run("dos")
    done = checkout.run("python", "-c2")
    assert done.returncode == 0, done.stderr
    assert "--editable .[dev]" in checkout.installations[-1]
    installed = len(checkout.installations)
    checkout.run("dos")
    assert len(checkout.installations) == installed


@pytest.mark.parametrize("changed", ["constraints.txt", "pyproject.toml"])
def test_changed_pins_are_installed_at_the_next_call(checkout: Checkout, changed: str) -> None:
    checkout.run("dos")
    installed = len(checkout.installations)
    with (checkout.root / changed).open("a") as file:
        file.write("# changed\n")
    checkout.run("dos")
    assert len(checkout.installations) > installed


def test_a_checkout_that_was_moved_is_set_up_anew(checkout: Checkout) -> None:
    checkout.run("dos")
    checkout.root = checkout.root.rename(checkout.root.with_name("moved"))
    assert "making .venv" in checkout.run("dos").stderr


def test_an_installation_that_failed_is_done_again(checkout: Checkout) -> None:
    assert checkout.run("dos", FAKE_PIP_ENDS="1").returncode != 0
    assert checkout.run("dos").returncode == 0
    assert len(checkout.installations) == 3  # the one that failed, setuptools, ourselves


def test_an_installation_that_was_killed_is_done_again(checkout: Checkout) -> None:
    killed = checkout.start("dos", FAKE_PIP_S="30")
    deadline = time.monotonic() + 30
    while not checkout.installations:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert checkout.run("dos").returncode == 0
    assert len(checkout.installations) == 3  # the one that was killed, setuptools, ourselves


def test_an_environment_that_was_half_made_is_made_again(checkout: Checkout) -> None:
    checkout.run("dos")
    (checkout.root / ".venv" / "made").unlink()
    (checkout.root / ".venv" / "stamp-core").unlink()
    done = checkout.run("dos")
    assert done.returncode == 0
    assert "making .venv" in done.stderr


def test_two_calls_at_once_install_once(checkout: Checkout) -> None:
    first, second = (checkout.start("dos", FAKE_PIP_S="0.3") for _ in range(2))
    outputs = [process.communicate(timeout=60) for process in (first, second)]
    assert first.returncode == second.returncode == 0, outputs
    assert len(checkout.installations) == 2  # setuptools, ourselves
    assert sum("waiting for it" in err for _, err in outputs) == 1


@pytest.mark.parametrize("home", ["", "/nowhere/at/all"])
def test_a_home_that_is_missing_is_replaced(checkout: Checkout, home: str) -> None:
    done = checkout.run("python", "x", HOME=home)
    assert f"HOME={checkout.root}/.venv/home" in done.stdout
    assert (checkout.root / ".venv" / "home").is_dir()


def test_an_unset_home_is_replaced(checkout: Checkout) -> None:
    del checkout.environment["HOME"]
    assert f"HOME={checkout.root}/.venv/home" in checkout.run("python", "x").stdout


def test_java_home_is_used_when_it_is_new_enough(checkout: Checkout) -> None:
    done = checkout.run("python", "x")
    assert f"JAVA_HOME={checkout.java_home}" in done.stdout
    assert f"PYSPARK_PYTHON={checkout.root}/.venv/bin/python" in done.stdout


def test_an_old_java_is_not_used(checkout: Checkout) -> None:
    checkout.java(11)
    assert f"JAVA_HOME={checkout.java_home}" not in checkout.run("python", "x").stdout


def test_java_is_looked_for_again_when_java_home_changes(checkout: Checkout, tmp_path: Path) -> None:
    checkout.run("python", "x")
    other = checkout.java_home.rename(tmp_path / "other")
    checkout.java_home = other
    checkout.java(21)
    assert f"JAVA_HOME={other}" in checkout.run("python", "x", JAVA_HOME=str(other)).stdout


def test_without_ensurepip_a_pip_from_outside_is_used(checkout: Checkout) -> None:
    done = checkout.run("dos", FAKE_NO_ENSUREPIP="1")
    assert done.returncode == 0, done.stderr
    assert checkout.installations
    assert all("-m pip --python" in line for line in checkout.installations)


def installed_by_apt(checkout: Checkout) -> list[str]:
    return [line.split()[-1] for line in checkout.installations if re.match("apt-get .* install ", line)]


def test_a_run_of_all_tests_installs_what_they_need_of_the_system_once(checkout: Checkout) -> None:
    checkout.may_install()
    done = checkout.run("test")
    assert done.returncode == 0, done.stderr
    assert installed_by_apt(checkout) == SYSTEM_PACKAGES
    assert "--editable .[power]" in checkout.installations[-1]
    assert "continuing without" not in done.stderr
    assert "python -m pytest" in done.stdout
    before = checkout.installations
    assert checkout.run("test").returncode == 0
    assert checkout.installations == before


def test_what_lint_finds_ends_a_run_of_all_tests_before_the_tests(checkout: Checkout) -> None:
    done = checkout.run("test", FAKE_MYPY_ENDS="1")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == "python -m mypy"
    assert "python -m pytest" not in done.stdout


@pytest.mark.parametrize(("mypy_ends", "runs"), [("0", ["", "--rest"]), ("1", ["--rest"])])
def test_the_continuous_integration_runs_the_rest_whatever_the_first_part_found(
    checkout: Checkout, mypy_ends: str, runs: list[str]
) -> None:
    ci = checkout.root / ".ci" / "run"
    ci.parent.mkdir()
    shutil.copy(ROOT / ".ci" / "run", ci)
    environment = {**checkout.environment, "FAKE_MYPY_ENDS": mypy_ends}
    done = subprocess.run([ci], env=environment, capture_output=True, text=True, timeout=60, check=False)
    called = [line for line in done.stdout.splitlines() if line.startswith("python -m ")]
    assert [line for line in called if "pytest" in line] == [
        f"python -m pytest -q -n 6 {part}".rstrip() for part in runs
    ]
    assert called[-1] == f"python -m tests.support.parts {mypy_ends} 0", done.stderr


def test_a_package_that_is_not_offered_keeps_no_other_away_and_the_tests_run(checkout: Checkout) -> None:
    checkout.may_install()
    done = checkout.run("test", FAKE_NOT_OFFERED="strace")
    assert done.returncode == 0, done.stderr
    assert installed_by_apt(checkout) == SYSTEM_PACKAGES
    assert "--editable .[power]" in checkout.installations[-1]
    assert "the tests that need them are skipped: strace\n" in done.stderr
    assert "python -m pytest" in done.stdout


def test_a_few_tests_install_no_system_package_and_pyfuse3_only_where_it_can_be_built(
    checkout: Checkout,
) -> None:
    checkout.may_install()
    assert checkout.run("test", "tests/journal").returncode == 0
    assert installed_by_apt(checkout) == []
    assert not any("[power]" in line for line in checkout.installations)
    for program in ("pkg-config", "gcc", "Python.h"):
        shutil.copy(checkout.tools / "apt-get", checkout.tools / program)
    done = checkout.run("test", "tests/journal")
    assert done.stdout.splitlines()[0] == "python -m pytest tests/journal"
    assert any("--editable .[power]" in line for line in checkout.installations)


def test_where_nothing_may_be_installed_the_tests_run_all_the_same(checkout: Checkout) -> None:
    done = checkout.run("test")
    assert done.returncode == 0, done.stderr
    assert f"the tests that need them are skipped: {' '.join(SYSTEM_PACKAGES)}\n" in done.stderr
    assert "python -m pytest" in done.stdout


def test_a_pyfuse3_that_cannot_be_built_stops_nothing(checkout: Checkout) -> None:
    checkout.may_install()
    done = checkout.run("test", FAKE_PYFUSE3_ENDS="1")
    assert done.returncode == 0, done.stderr
    assert "pyfuse3 was not installed" in done.stderr
    assert "python -m pytest" in done.stdout


def test_without_a_python_it_reports_what_to_do(checkout: Checkout) -> None:
    done = checkout.run("dos", DOS_PYTHON="/nowhere/python3")
    assert done.returncode == 2
    assert done.stderr == (
        "run: needs Python 3.11 or newer: install it, or name one with DOS_PYTHON=/path/to/python3\n"
    )


def test_a_long_test_does_not_begin_when_no_time_is_left(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv(parts.UNTIL, "5")
    parts.pytest_runtest_setup(request.node)
    request.node.add_marker(pytest.mark.long)
    with pytest.raises(pytest.skip.Exception, match="no time is left"):
        parts.pytest_runtest_setup(request.node)
