"""The command line of `./run versions`."""

import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from tests.versions.lowest import run_lowest
from tests.versions.older_spark import VERSIONS, run_tests


def main(
    versions: Annotated[
        list[str] | None, typer.Argument(help="Versions of PySpark; without any, the supported ones.")
    ] = None,
    only: Annotated[str, typer.Option("-k", help="Only tests that match, as pytest's -k.")] = "",
    lowest: Annotated[
        bool,
        typer.Option("--lowest", help="Not PySpark: the lowest allowed version of every other dependency."),
    ] = False,
) -> None:
    """Run tests of the main job, the sources, the sink, `through` and frames with older versions of PySpark.

    With --lowest, run tests of everything else with the lower bounds of pyproject.toml.
    Each version is downloaded once (400 MB) and stays below .venv.

    Exit codes: 0 all passed; 1 some failed; 2 usage.

    Examples: ./run versions; ./run versions 4.0.5 -k through; ./run versions --lowest
    """
    if lowest:
        with tempfile.TemporaryDirectory(prefix="dos-versions-") as folder:
            code = run_lowest(Path(folder, "tests"), "-k", only)
        print(f"the lower bounds of pyproject.toml: {'failed' if code else 'passed'}")
        sys.exit(code != 0)
    failed = False
    for version in versions or VERSIONS:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="dos-versions-") as folder:
            code = run_tests(version, Path(folder, "tests"), "-k", only)
        failed |= code != 0
        result = "failed" if code else "passed"
        python, seconds = platform.python_version(), time.monotonic() - begun
        print(f"PySpark {version} on Python {python}: {result} in {seconds:.0f} s", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    typer.run(main)
