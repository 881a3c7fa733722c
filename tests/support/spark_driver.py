"""A driver of Spark as a process that takes orders, says lines of JSON, and may be killed with its JVM."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

ROOT = Path(__file__).parents[2]
END_S_MAX = 60.0


class SparkDriver:
    """A module as a driver, with its JVM and all that they start. folder: the world outside, in whose
    `reached` it shows where it waits. log: its standard error. said: its lines of JSON.

    A context manager: at the end nothing of it is left.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str | Path],
        *,
        folder: Path,
        log: Path,
        settings: str,
        **environment: str,
    ) -> None:
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env={
                    **os.environ,
                    **environment,
                    "PYSPARK_PYTHON": sys.executable,
                    "PYSPARK_SUBMIT_ARGS": f"{settings} pyspark-shell",
                },
            )
        self.log, self._folder = log, folder
        self.said: list[dict[str, Any]] = []
        self._family: list[psutil.Process] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            if text.startswith("{"):  # else Spark's own words
                self.said.append(json.loads(text))

    def write(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def words(self) -> str:
        """What it said and where it waits, for messages."""
        said = "".join(f"{one}\n" for one in self.said)
        waited = sorted(one.name for one in (self._folder / "reached").iterdir())
        return f"{said}waited at {waited}\n{self.log.read_text()[-3000:]}"

    @property
    def family(self) -> list[psutil.Process]:
        """The processes that it has started, and what they have started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def main_processes(self) -> list[psutil.Process]:
        """The driver's Python and its JVM: what stops or dies together, as one program."""
        (java,) = [one for one in self.family if one.name() == "java"]
        return [psutil.Process(self.process.pid), java]

    def kill(self) -> None:
        """SIGKILL the driver and its JVM; nothing else is ended from outside."""
        self._family = self.family
        for one in self.main_processes():
            one.kill()
        self.process.wait()

    def wait_nothing_left(self) -> None:
        """Raises AssertionError if a process of a driver that was killed outlives it."""
        _, alive = psutil.wait_procs(self._family, END_S_MAX)
        assert not alive, f"these outlived their driver by {END_S_MAX:.0f} s: {alive}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        _, alive = psutil.wait_procs(self._family, END_S_MAX)
        for one in alive:
            one.kill()
        self._reader.join(END_S_MAX)
        self.process.stdout.close()
        assert not alive, f"these outlived their driver by {END_S_MAX:.0f} s: {alive}"
