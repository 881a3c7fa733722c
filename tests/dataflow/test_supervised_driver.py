"""A driver and servers that a service manager starts again: the region continues without a person."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.dataflow.supervised_driver import FENCED
from tests.dataflow.support import last_counts, made, true_counts
from tests.support.servers import ServerProcess, three_servers

__all__ = ["three_servers"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

KILLS = 4
WAIT_S = 90.0
ROOT = Path(__file__).parent.parent.parent


class Supervisor:
    """Starts a command again whenever it ends, except with an exit code of `final`: `Restart=always` and
    `RestartPreventExitStatus` of systemd.
    """

    def __init__(self, command: list[str], log: Path, final: tuple[int, ...]) -> None:
        self._command, self._log, self._final = command, log, final
        self._changed = threading.Condition()
        self._process: subprocess.Popen[str] | None = None
        self._closing = False
        self.starts = 0
        self.lines: list[str] = []
        """Output of the command since its last start."""
        self.exit_code: int | None = None
        """The exit code after which it was not started again."""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            with self._log.open("ab") as log:
                process = subprocess.Popen(
                    self._command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT
                )
            with self._changed:
                self._process, self.starts, self.lines = process, self.starts + 1, []
                if self._closing:
                    process.kill()
            assert process.stdout is not None
            with process.stdout:
                for line in process.stdout:
                    with self._changed:
                        self.lines.append(line)
                        self._changed.notify_all()
            code = process.wait()
            with self._changed:
                if code in self._final or self._closing:
                    self.exit_code = code
                    self._changed.notify_all()
                    return

    def wait(self, condition: Callable[["Supervisor"], bool]) -> None:
        """Wait for a condition on the attributes. Raises AssertionError with the log when it is late."""
        with self._changed:
            self._changed.wait_for(lambda: condition(self) or self.exit_code is not None, WAIT_S)
            state = f"{self.starts} starts, exit code {self.exit_code}, {self.lines}"
            assert condition(self), f"{state}, {self._log.read_text()[-3000:]}"

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            if self._process is not None:
                self._process.kill()
        self._thread.join()


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"in-{part}.txt" for part in range(2)]
    for part, path in enumerate(paths):
        path.write_text("".join(f"w{n % 61} w{n % (part + 7)}\n" for n in range(200_000)))
    return paths


@contextmanager
def supervised(servers: list[ServerProcess], folder: Path) -> Iterator[Supervisor]:
    command = [sys.executable, "-m", "tests.dataflow.supervised_driver", made(servers), str(folder)]
    supervisor = Supervisor(command, folder / "driver.log", final=(0, FENCED))
    try:
        yield supervisor
    finally:
        supervisor.close()


def committed(supervisor: Supervisor) -> bool:
    """Whether the driver that runs now has committed checkpoints."""
    return len(supervisor.lines) >= 2


# EVIDENCE-OF: P-4, P-6, P-10
def test_a_driver_that_is_killed_again_and_again_and_servers_that_are_killed_come_back_by_themselves(
    three_servers: list[ServerProcess], inputs: list[Path], tmp_path: Path
) -> None:
    with supervised(three_servers, tmp_path) as supervisor:
        for kill in range(KILLS):
            supervisor.wait(lambda one, starts=kill + 1: one.starts == starts and committed(one))
            if kill:
                server = three_servers[kill - 1]
                server.kill()
                supervisor.kill()
                server.restart()
            else:
                supervisor.kill()
        supervisor.wait(lambda one: one.starts == KILLS + 1 and committed(one))
        (tmp_path / "hurry").touch()
        supervisor.wait(lambda one: one.exit_code == 0)
    assert last_counts(tmp_path / "out") == true_counts(inputs)


def test_two_supervised_drivers_do_not_fence_each_other_for_ever(
    three_servers: list[ServerProcess], inputs: list[Path], tmp_path: Path
) -> None:
    with supervised(three_servers, tmp_path) as one:
        one.wait(committed)
        with supervised(three_servers, tmp_path) as other:
            one.wait(lambda first: first.exit_code == FENCED)
            other.wait(committed)
            (tmp_path / "hurry").touch()
            other.wait(lambda second: second.exit_code == 0)
    assert last_counts(tmp_path / "out") == true_counts(inputs)
