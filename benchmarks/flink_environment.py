"""PyFlink's own Python environment, made once from the package registry. It is no dependency of ours.

Rules of this file: it gives the environment's Python, or says why there is none. PyFlink pins old versions of
packages that we use too, so it cannot live in `.venv`; it wants Java, which `./run bench` has found.
"""

import os
import subprocess
import sys
from pathlib import Path

PACKAGE = "apache-flink==2.3.*"
PYTHONS = ("python3.11", "python3.12", "python3.10")
PLACE = Path(__file__).parent.parent / ".venv" / "flink"
"""DOS_FLINK_ENVIRONMENT names another one, made before."""
INSTALL_S_MAX = 1_200.0


def flink_python() -> Path:
    """The Python that has PyFlink. Raises RuntimeError with the reason when it cannot be had."""
    place = Path(os.environ.get("DOS_FLINK_ENVIRONMENT", PLACE))
    python = place / "bin" / "python"
    if _has_flink(python):
        return python
    _make(place)
    if not _has_flink(python):
        raise RuntimeError(f"{PACKAGE} was installed into {place}, and cannot be imported there")
    return python


def _has_flink(python: Path) -> bool:
    if not python.exists():
        return False
    return subprocess.run([python, "-c", "import pyflink.table"], capture_output=True).returncode == 0


def _make(place: Path) -> None:
    print(f"making {place} with {PACKAGE}; once, it takes some minutes", file=sys.stderr, flush=True)
    refusals = []
    for base in PYTHONS:
        commands = (
            [base, "-m", "venv", "--clear", place],
            [place / "bin" / "pip", "install", "--quiet", PACKAGE],
        )
        try:
            for command in commands:
                subprocess.run(command, capture_output=True, text=True, check=True, timeout=INSTALL_S_MAX)
        except FileNotFoundError:
            refusals.append(f"{base}: not there")
        except subprocess.TimeoutExpired:
            refusals.append(f"{base}: not installed in {INSTALL_S_MAX:.0f} s")
        except subprocess.CalledProcessError as error:
            refusals.append(f"{base}: {(error.stderr or '').strip().splitlines()[-1:]}")
        else:
            return
    raise RuntimeError(f"{PACKAGE} cannot be installed: {'; '.join(refusals)}")
