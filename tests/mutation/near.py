"""The packages: which modules are mutated, and which tests are near to them.

In scope is code that decides, and code that keeps promises to a disk or a peer: every `core/`, the codecs of
the protocol, the storage shell, the operators, and the code of clients that claims, reads and repairs. Tests
that start processes or Spark are not near tests, because a mutant exists in the memory of one process only.
"""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent


class Package(NamedTuple):
    """`modules`: patterns of files in scope. `tests`: files and folders of pytest."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]

    def files(self) -> list[str]:
        found = {path for pattern in self.modules for path in ROOT.glob(pattern)}
        return sorted(str(path.relative_to(ROOT)) for path in found if path.name != "__init__.py")


STORAGE_SHELL = ("storage", "side_files", "marks", "disk")

PACKAGES: dict[str, Package] = {
    "dos_protocol": Package(("dos_protocol/*.py",), ("tests/dos_protocol", "tests/dos_server/test_shell.py")),
    "dos_tls": Package(("dos_tls/core/*.py", "dos_tls/streams.py"), ("tests/dos_tls",)),
    "dos_monitoring": Package(("dos_monitoring/core/*.py",), ("tests/dos_monitoring",)),
    "dos_server": Package(
        ("dos_server/core/**/*.py", *(f"dos_server/{name}.py" for name in STORAGE_SHELL)),
        ("tests/dos_server", "tests/contract/test_disk.py", "tests/contract/test_real_disk.py",
         "tests/power/test_restarts.py", "tests/power/test_local_files.py"),
    ),
    "dos_client": Package(
        ("dos_client/core/*.py", "dos_client/reading/*.py", "dos_client/repair/*.py",
         "dos_client/membership/*.py", "dos_client/writing/*.py"),
        ("tests/dos_client", "tests/stories"),
    ),
    "journal": Package(("journal/core/*.py", "journal/chain.py", "journal/writer.py", "journal/reading.py"),
                       ("tests/journal", "tests/stories", "tests/power/test_local_files.py")),
    "checkpoint": Package(
        ("checkpoint/core/*.py", "checkpoint/chains/manifest_log.py",
         "checkpoint/chains/chain_store.py", "checkpoint/chains/state_blocks.py",
         "checkpoint/chains/steps_log.py",
         "checkpoint/chains/output_log.py"),
        ("tests/checkpoint", "tests/stories"),
    ),
    "dataflow": Package(
        ("dataflow/core/*.py", "dataflow/operators/*.py", "dataflow/sinks/*.py",
         "dataflow/state/accumulators.py", "dataflow/operators/aggregates.py",
         "dataflow/state/keyed_table.py", "dataflow/state/accumulators.py", "dataflow/state/accumulators.py",
         "dataflow/state/key_states.py", "dataflow/state/key_states.py"),
        ("tests/dataflow", "tests/other_bugs", "tests/power/test_local_files.py"),
    ),
    "spark_integration": Package(("spark_integration/core/*.py",), ("tests/spark_integration",)),
}  # fmt: skip

PROCESSES = {"three_servers", "forks"}
"""Fixtures that start processes. Tests with the marks `process` and `spark` are excluded by these marks."""

NOT_NEAR = {"test_a_client_whose_machine_is_gone_does_not_keep_its_lock_for_hours"}
"""Tests that wait for timers of the kernel. On a busy machine they fail without a mutant."""


def package_of(module: str) -> str:
    return module.partition("/")[0]


def files_of(package: str) -> list[str]:
    """Return every module of a package, in scope or not: the coverage is measured for all of them."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py"))
