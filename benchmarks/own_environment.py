"""A separate Python environment for each system to compare with, created once from the package registry. None
of them is a dependency of this project.

Returns the Python of the environment, or the reason why there is none. PyFlink pins old versions of
packages that this project also uses, so it cannot be installed in `.venv`; it needs Java, which `./run
bench` has found.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

BELOW = Path(__file__).parent.parent / ".venv"
INSTALL_S_MAX = 1_200.0


@dataclass(frozen=True, slots=True)
class Yardstick:
    """A system to compare with. `package` is installed; `module` must be importable then; `pythons` are tried
    in this order.
    """

    name: str
    package: str
    module: str
    pythons: tuple[str, ...]

    @property
    def place(self) -> Path:
        """The folder of the environment. DOS_FLINK_ENVIRONMENT or DOS_BYTEWAX_ENVIRONMENT overrides it."""
        return Path(os.environ.get(f"DOS_{self.name.upper()}_ENVIRONMENT", BELOW / self.name))

    def python(self) -> Path:
        """Return the Python that has the package. Raises RuntimeError with the reason if there is none."""
        python = self.place / "bin" / "python"
        if self._is_there(python):
            return python
        self._make()
        if not self._is_there(python):
            raise RuntimeError(
                f"{self.package} was installed into {self.place}, and cannot be imported there"
            )
        return python

    def _is_there(self, python: Path) -> bool:
        if not python.exists():
            return False
        return subprocess.run([python, "-c", f"import {self.module}"], capture_output=True).returncode == 0

    def _make(self) -> None:
        place = self.place
        print(f"making {place} with {self.package}; once, it takes some minutes", file=sys.stderr, flush=True)
        refusals = []
        for base in self.pythons:
            commands = (
                [base, "-m", "venv", "--clear", place],
                [place / "bin" / "pip", "install", "--quiet", self.package],
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
        raise RuntimeError(f"{self.package} cannot be installed: {'; '.join(refusals)}")


FLINK = Yardstick("flink", "apache-flink==2.3.*", "pyflink.table", ("python3.11", "python3.12", "python3.10"))
BYTEWAX = Yardstick(
    "bytewax", "bytewax==0.21.*", "bytewax.run", ("python3.11", "python3.12", "python3.10", "python3")
)
PROTOBUF = Yardstick("protobuf", "protobuf>=6,<8", "google.protobuf", (sys.executable,))
"""What Spark's `transformWithState` requires but does not install."""
