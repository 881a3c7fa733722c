"""The fuzz targets on what is known already, and a short run of each with atheris. `./run fuzz` runs longer.

Crashes that were found are kept in `crashes`, each with a name that says what it was.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.__main__ import CORPUS, CRASHES, NAMES
from tests.fuzz.corpus import seeds
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parent.parent.parent
KEPT = sorted(path for folder in (CORPUS, CRASHES) for path in folder.glob("*/*.bin"))


def test_the_corpus_is_what_the_code_makes() -> None:
    made = {
        f"{target}/{name}.bin": data for target, inputs in seeds().items() for name, data in inputs.items()
    }
    assert {str(path.relative_to(CORPUS)): path.read_bytes() for path in CORPUS.glob("*/*")} == made
    assert seeds().keys() == TARGETS.keys() == set(NAMES)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_is_known_is_understood_or_refused_by_name(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("target", NAMES)
def test_every_cut_and_some_flips_of_the_corpus_are_too(target: str) -> None:
    for path in (CORPUS / target).iterdir():
        data = path.read_bytes()
        for size in range(0, len(data), 7):
            TARGETS[target](data[:size])
        for bit in range(0, 8 * len(data), 29):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            TARGETS[target](bytes(flipped))


@pytest.mark.long
def test_a_short_run_of_each_target_finds_nothing() -> None:
    if importlib.util.find_spec("atheris") is None:
        why = "atheris is not installed: `./run fuzz` and a `./run test` of everything install it"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", "4", "--runs", "1500", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("nothing found") == len(NAMES), done.stdout
