"""One attack on one server: the times of the honest client before, during and after it, and a verdict.

Everything is ended by this process, on every way out: the crowd and the honest client end with their standard
input, the server by its id.

The figures depend on the machine; a busy machine is recognized by the figures from before the attack.
"""

import contextlib
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.attack import ground
from tests.attack.table import ATTACKS
from tests.support.servers import ServerProcess

TOKEN: Final = b"a token of the tests"
BEFORE_SECONDS: Final = 1.5
RECOVERY_SECONDS_MAX: Final = 5.0
_WARM_SECONDS: Final = 1.0
_TRIPS: Final = {"new": 4}
"""Round trips of one measured wait, where it is more than one."""


@dataclass(frozen=True)
class Limits:
    """What an honest client must still get. Milliseconds are for each round trip, above what it had before
    the attack."""

    p99_ms: float = 50.0
    resident_mb: float = 150.0


@dataclass
class Result:
    """One attack: `before`, `during`, `after`: figures by kind of request; `faults`: what was not as it
    must be."""

    attack: str
    seconds: float
    before: dict[str, Any] = field(default_factory=dict)
    during: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)
    resident_mb: float = 0.0
    recovered_s: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def held(self) -> bool:
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "held": self.held}


class _Child:
    """A program of ours that ends with its standard input."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self) -> dict[str, Any]:
        """The figures of the period that ends now."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        figures: dict[str, Any] = json.loads(self.process.stdout.readline())
        return figures

    def __enter__(self) -> "_Child":
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def attempt(name: str, folder: Path, *, seconds: float, scale: float = 1.0, limits: Limits) -> Result:
    """Run one attack on a server of its own, below `folder`, and judge it."""
    attack, data = ATTACKS[name], folder / "data"
    options: tuple[str, ...] = ()
    if attack.token:
        token_file = folder / "token"
        token_file.write_bytes(TOKEN + b"\n")
        token_file.chmod(0o600)
        options = ("--token-file", str(token_file))
    if attack.lay is not None:
        ground.server(data)
        attack.lay(data, scale)
    result = Result(name, seconds)
    token = TOKEN.decode() if attack.token else ""
    with ServerProcess(data, options=options, log_path=folder / "log") as server:
        place = (server.address[0], str(server.address[1]))
        with _Child("tests.attack.honest", *place, token) as honest:
            time.sleep(_WARM_SECONDS)
            honest.ask()
            time.sleep(BEFORE_SECONDS)
            result.before = honest.ask()
            theirs = token if attack.knows else ""
            with _Child("tests.attack.crowds", name, *place, theirs, str(scale)):
                time.sleep(seconds)
                result.during = honest.ask()
            began = time.monotonic()
            result.after, result.recovered_s = _recovered(honest, began, result, limits)
        result.resident_mb = _peak_megabytes(server)
        _judge(result, server, limits)
        result.faults += [] if server.stop() == 0 else ["the server did not stop cleanly"]
    return result


def _allowed_ms(kind: str, result: Result, limits: Limits) -> float:
    own: float = result.before.get(kind, {}).get("p99", 0.0)
    return limits.p99_ms * _TRIPS.get(kind, 1) + own


def _recovered(honest: _Child, began: float, result: Result, limits: Limits) -> tuple[dict[str, Any], float]:
    """Until half a second passes in which every request is answered as it should be."""
    while True:
        time.sleep(0.5)
        figures, now = honest.ask(), time.monotonic() - began
        served = all(
            one["count"] and one["p50"] <= _allowed_ms(kind, result, limits) for kind, one in figures.items()
        )
        if served or now > 4 * RECOVERY_SECONDS_MAX:
            return figures, round(now, 1)


def _peak_megabytes(server: ServerProcess) -> float:
    """The most memory that was ever resident, as the kernel counted it."""
    match = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{server.pid}/status").read_text(), re.M)
    return round(int(match[1]) / 1024, 1) if match else 0.0


def _judge(result: Result, server: ServerProcess, limits: Limits) -> None:
    faults = result.faults
    for kind, figures in result.during.items():
        allowed = _allowed_ms(kind, result, limits)
        if not figures["count"]:
            faults.append(f"no {kind} in {result.seconds:g} s")
        elif figures["p99"] > allowed:
            faults.append(f"{kind}: p99 {figures['p99']:g} ms, {allowed:.0f} ms are allowed")
        if figures["errors"]:
            faults.append(f"{kind}: {figures['errors'][0]}")
    if result.resident_mb > limits.resident_mb:
        faults.append(f"{result.resident_mb:g} MB resident, {limits.resident_mb:g} MB are allowed")
    if result.recovered_s > RECOVERY_SECONDS_MAX:
        faults.append(f"{result.recovered_s:g} s until the honest client was served as before")
    if not server.running:
        faults.append("the server has ended")
    if "Traceback" in server.log_path.read_text(encoding="utf-8", errors="replace"):
        faults.append("there is a traceback in the server's log")
