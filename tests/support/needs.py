"""What a test needs of the machine. If it is missing, the test skips with the reason; where CI is set it
fails.

Also how to do what only root may: as root, or with a sudo without password.
"""

import functools
import os
import shutil
import subprocess
from typing import NoReturn

import pytest


def lacking(why: str) -> NoReturn:
    """Skip the test, or fail it where nothing may be skipped."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"nothing is skipped where CI=true: {why}")
    pytest.skip(why)


@functools.cache
def as_root() -> tuple[str, ...] | None:
    """What to put before a command of root's; None when there is no way."""
    if os.geteuid() == 0:
        return ()
    if shutil.which("sudo") is None:
        return None
    result = subprocess.run(["sudo", "-n", "true"], capture_output=True, timeout=30, check=False)
    return ("sudo", "-n") if result.returncode == 0 else None
