"""A PostgreSQL server of the test's own: a new cluster, reached through a socket in its directory, deleted at
the end.

It uses the programs of PostgreSQL, which refuse to run as root: then another user runs them, in a directory
of that user (pytest's are closed to others).
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.needs import lacking

_USERS = ("postgres", "nobody")
_SETTINGS = "-c listen_addresses='' -c shared_buffers=4MB -c max_connections=20 -c fsync=off -k"


class PostgresServer:
    """`url` is SQLAlchemy's. `crash` and `start` take it away and bring it back, with what it had
    committed.
    """

    def __init__(self, folder: Path, programs: Path, owner: dict[str, Any]) -> None:
        self._folder = folder
        self._programs = programs
        self._owner = owner
        self.url = f"postgresql+psycopg://dos@/postgres?host={folder}"

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), "-D", str(self._folder / "data"), *arguments]
        done = subprocess.run(
            command,
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=100,
            check=False,
            **self._owner,
        )
        assert done.returncode == 0, f"{program}: {done.stderr.decode(errors='replace')}"

    def make(self) -> None:
        """Create a cluster without passwords; other users cannot read its folder."""
        self._run("initdb", "-U", "dos", "-A", "trust", "-E", "UTF8", "--no-sync", "--no-instructions")

    def start(self) -> None:
        """Serves when it returns."""
        log = str(self._folder / "log")
        self._run("pg_ctl", "-w", "-t", "90", "-l", log, "-o", f"{_SETTINGS} {self._folder}", "start")

    def crash(self) -> None:
        """All its processes end at once; what it had committed is recovered at the next start."""
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")


def _programs() -> Path:
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    found = shutil.which("initdb") or next(map(str, candidates), None)
    if found is None:
        lacking("needs a PostgreSQL server: apt-get install postgresql")
    return Path(found).resolve().parent


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server that runs. Skips the test where there is none."""
    programs = _programs()
    owner: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(prefix="dos-pg-"))
    try:
        if os.geteuid() == 0:
            known = {user.pw_name: user for user in pwd.getpwall()}
            user = next((known[name] for name in _USERS if name in known), None)
            if user is None:
                lacking(f"needs one of the users {', '.join(_USERS)}: PostgreSQL does not run as root")
            os.chown(folder, user.pw_uid, user.pw_gid)
            owner = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        server = PostgresServer(folder, programs, owner)
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.crash()
    finally:
        shutil.rmtree(folder)
