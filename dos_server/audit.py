"""The audit log: changes of the store record, repairs, changes of tokens, and requests that a token does not
grant.

Each entry is a line of the logger `dos.audit`, which `dos serve` prints; `write_audit_to` also appends them
to a file, as lines of JSON.
"""

import json
import logging
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Final

from dos_monitoring.logs import time_of

logger: Final = logging.getLogger("dos.audit")


def note_audit(peer: str, token: str, action: str) -> None:
    """Log an action. token: the name of the token, "" without a file of tokens."""
    who = f"token {token!r} from {peer}" if token else peer
    logger.info(
        "audit: %s: %s", who, action, extra={"audit": {"peer": peer, "token": token, "action": action}}
    )


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({"time": time_of(record), **getattr(record, "audit", {})})


class _PrivateFile(WatchedFileHandler):
    def _open(self) -> TextIOWrapper:
        Path(self.baseFilename).touch(mode=0o600)
        return super()._open()


def write_audit_to(path: Path) -> None:
    """Append the entries of this process to a file, which only its owner can read.

    A file that was moved away or deleted, as log rotation does, is made again at the next entry. Raises
    OSError.
    """
    path.touch(mode=0o600)
    handler = _PrivateFile(path, encoding="utf-8")
    handler.setFormatter(_Lines())
    logger.addHandler(handler)
