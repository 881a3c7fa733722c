"""A process that is a task or a driver of the sink `dos`, and dies where the test orders it: for tests of the
sink.

SinkProcesses starts one process that has imported everything; of each command it forks one that does it,
and dies by SIGKILL before or after a step, if the command orders it.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa

from checkpoint.chains.input_log import InputLog
from checkpoint.core.records.staged import CommitUnit
from dos_client.blocking import BlockingObjectWriter
from spark_integration.core.options import SinkOptions
from spark_integration.writing import committing, staging
from spark_integration.writing.committing import Committer, commit
from spark_integration.writing.staging import StagedCommit, prepare

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])

STEPS: dict[str, tuple[Any, str]] = {
    "write: claim": (staging, "claim_above"),
    "write: stage": (BlockingObjectWriter, "append"),
    "write: synced": (BlockingObjectWriter, "wait_synced"),
    "commit: become the producer": (InputLog, "open"),
    "commit: judge": (committing, "judge_commit"),
    "commit: read staged rows": (committing, "staged_data"),
    "commit: send a part": (InputLog, "_put"),
    "commit: send the batch": (InputLog, "append_from"),
    "commit: recorded": (InputLog, "recorded"),
    "commit: claim what is left over": (committing, "clear_directory"),
    "commit: take it away": (committing, "collect_orphans"),
    "commit: sweep": (Committer, "_sweep"),
}
"""Every step that write and commit have: the function that is it."""


class Command(NamedTuple):
    """What a process does: `prepare` for a partition when there are rows, else `commit`. dies: a step, and
    whether before or behind it.
    """

    options: SinkOptions
    unit: CommitUnit
    producer: str
    partition: int = 0
    rows: list[dict[str, Any]] | None = None
    prepared: list[StagedCommit] = []  # noqa: RUF012 - never changed
    dies: tuple[str, str] | None = None


class Died(Exception):  # noqa: N818 - it is what was wanted
    """The process was killed where the command said."""


class SinkProcesses:
    """See the head of this file. A context manager."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark_integration.sink_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        return self

    def do(self, command: Command) -> Any:
        """What the command returns. Raises Died, and what the command raises."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(pickle.dumps(command).hex().encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if answer["signal"] == signal.SIGKILL and command.dies is not None:
            raise Died
        assert answer["signal"] == 0, answer
        found = pickle.loads(bytes.fromhex(answer["answer"]))
        if isinstance(found, Exception):
            raise found
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # it ends when nobody asks any more


def _do(command: Command) -> Any:
    if command.dies is not None:
        _die_at(*command.dies)
    if command.rows is not None:
        batches = [pa.RecordBatch.from_pylist([row], SCHEMA) for row in command.rows]
        return prepare(command.options, command.unit, command.producer, command.partition, SCHEMA, batches)
    return commit(command.options, command.prepared, SCHEMA)


def _die_at(step: str, when: str) -> None:
    """Put an end in front of a step or behind it; the step itself is what it always is."""
    owner, name = STEPS[step]
    real = owner.__dict__[name]
    static = isinstance(real, classmethod)
    function: Callable[..., Any] = real.__func__ if static else real

    def end() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @wraps(function)
    def plain(*args: Any, **named: Any) -> Any:
        if when == "before":
            end()
        found = function(*args, **named)
        if hasattr(found, "__await__"):
            return _awaited(found)
        end()
        return found

    async def _awaited(found: Any) -> Any:
        await found
        end()

    setattr(owner, name, classmethod(plain) if static else plain)


def _main() -> None:
    pa.RecordBatch.from_pylist([], SCHEMA)  # imports what it needs here, and not in each fork
    for line in sys.stdin.buffer:
        command = pickle.loads(bytes.fromhex(line.decode()))
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            try:
                found = _do(command)
            except Exception as error:
                found = error
            with os.fdopen(writing, "wb") as stream:
                stream.write(pickle.dumps(found))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as stream:
            answer = stream.read()
        _, status = os.waitpid(child, 0)
        said = {"signal": os.waitstatus_to_exitcode(status) * -1, "answer": answer.hex()}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
