"""The walls of the house: which package imports which, what a `core/` may use, how long a file may grow.

These tests read the source as text (ast), so they hold for code that no test runs. When one of them is in
your way, the message names the rule; the reasons are in docs/ARCHITECTURE.md.
"""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from dos_protocol.lazy_names import EXTRA_OF

ROOT = Path(__file__).parent.parent

CLIENT = {"dos_client", "dos_monitoring", "dos_tls", "dos_protocol"}
MAY_IMPORT: dict[str, set[str]] = {
    "dos_protocol": set(),
    "dos_tls": {"dos_protocol"},
    "dos_monitoring": {"dos_tls", "dos_protocol"},
    "dos_server": {"dos_monitoring", "dos_tls", "dos_protocol"},
    "dos_client": {"dos_monitoring", "dos_tls", "dos_protocol"},
    "journal": CLIENT,
    "dos_bench": {"journal", *CLIENT},
    "dos_chaos": {"journal", *CLIENT},
    "checkpoint": {"journal", *CLIENT},
    "dos_gateway": {"journal", *CLIENT},
    "dos_ui": {"dos_gateway", "checkpoint", "journal", *CLIENT},
    "dataflow": {"dos_ui", "checkpoint", "journal", *CLIENT},
    "spark_integration": {"dataflow", "checkpoint", "journal", *CLIENT},
    "dos": {"spark_integration", "dataflow", "checkpoint", "journal", "dos_server", *CLIENT},
    "sites": {"journal", *CLIENT},
    "dos_cli": set(),  # it names modules in a table and imports them when a command runs
}
"""package -> the packages of this project that it may import, in addition to itself."""

EXCEPTIONS = {("spark_integration", "dos_server.embedded")}
"""(package, module): the embedded server is the default store of a local Spark session."""

FILE_EXCEPTIONS = {
    ("dos_server/testing.py", "dos_client.rounds"),
    ("dos_server/testing.py", "dos_client.runtime"),
    ("sites/runner.py", "checkpoint"),
    ("sites/runner.py", "dataflow"),
}
"""(file, module or package): servers in memory register for the clients of their run; a site runs regions."""

PARTS: dict[str, dict[str, set[str]]] = {
    "dos_client": {
        "core": set(),
        "sessions": {"core"},
        "reading": {"core", "sessions"},
        "writing": {"core", "sessions", "reading"},
        "repair": {"core", "sessions", "reading"},
        "membership": {"core", "sessions", "reading", "writing", "repair"},
        "cli": {"core", "sessions", "writing", "repair", "membership"},
    },
    "journal": {"core": set(), "files": {"core"}, "archive": {"core", "files"}},
    "dataflow": {
        "core": set(),
        "values": set(),
        "state": {"core", "values"},
        "operators": {"core", "values", "state"},
        "sinks": {"core", "values", "state", "operators"},
        "merging": {"core", "operators", "sinks"},
        "sources": {"core", "values", "operators", "merging"},
        "entry": {"core", "operators"},
        "graph": {"core", "state", "operators", "sinks", "sources"},
        "worker": {"core", "values", "state", "operators", "sinks", "sources", "graph"},
        "testing": {"core", "values", "state", "operators", "sinks", "sources", "graph", "worker"},
    },
    "checkpoint": {
        "core": set(),
        "chains": {"core"},
        "requests": {"core", "chains"},
        "maintenance": {"core", "chains", "requests"},
        "coordinator": {"core", "chains", "requests", "maintenance"},
        "cli": {"core", "chains", "requests", "maintenance"},
    },
    "spark_integration": {"core": set(), "reading": {"core"}, "writing": {"core", "reading"}},
    "sites": {"core": set()},
}
"""package -> sub-package -> those that it may import, in addition to itself and the files above."""

CORE_DEPENDENCIES_ONLY = (
    *("dos_protocol", "dos_tls", "dos_monitoring", "dos_server", "dos_client", "journal", "dos_chaos"),
    *("dos_bench", "dos_cli"),
)
"""These packages work without the extras; what is `ON_USE` is imported by the functions that need it."""
ON_USE = {"matplotlib", "boto3", "botocore", "opentelemetry"}
EXTRAS = {*EXTRA_OF, "psutil"} - ON_USE
SPARK = {"pyspark", "py4j"}

IMPURE_MODULES = {
    *("trio", "asyncio", "threading", "_thread", "concurrent", "multiprocessing", "queue", "contextvars"),
    *(
        "os",
        "io",
        "sys",
        "socket",
        "ssl",
        "select",
        "selectors",
        "signal",
        "subprocess",
        "shutil",
        "fcntl",
        "mmap",
    ),
    *("pathlib", "tempfile", "glob", "time", "datetime", "random", "secrets", "uuid", "logging", "platform"),
}
IMPURE_BUILTINS = {"open", "print", "input", "hash", "id", "eval", "exec", "breakpoint", "__import__"}
"""`hash` of a string differs between processes, `id` between runs: neither may decide anything in a core."""

FUNCTION_LINES_MAX = 70
"""Without its docstring."""

HALF_LINES_MAX = 120
HALVES = {
    "dos/blocking.py": "a public face",
    "dos/testing.py": "a public face",
    "spark_integration/worker_task.py": "the entry point on an executor, imported after its host was checked",
    "dos_gateway/figures.py": "the metrics, of which the tables of docs/metrics.md are made",
    "dos_cli/standard_streams.py": "it stands for itself: a program that only calls `prepare` tests it",
}
"""Shorter files with one importer, which is in their folder, and why they may be files."""


def source_files(*packages: str) -> list[Path]:
    return sorted(path for package in packages or MAY_IMPORT for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports_in(tree: ast.Module, package: list[str]) -> Iterator[tuple[int, str]]:
    """(line, module) for every import, also inside functions; `from a import b` gives `a` and `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, module
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


@cache
def imports_of(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, module) for every import of the file. A name that a package's public face imports on first use
    counts as an import of the module that defines it.
    """
    package = name_of(path).split(".")
    found = list(imports_in(tree_of(path), package if path.name == "__init__.py" else package[:-1]))
    return (*found, *((line, face_of(module)[name]) for line, module, name in names_in(found)))


def names_in(found: list[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    """(line, package, name) for every `from package import name` that its public face resolves."""
    for line, dotted in found:
        package, _, name = dotted.rpartition(".")
        if package in MAY_IMPORT and name in face_of(package):
            yield line, package, name


@cache
def face_of(package: str) -> dict[str, str]:
    """Name -> module of the names that the package imports on first use."""
    path = ROOT / package / "__init__.py"
    return {
        alias.name: str(node.module)
        for block in tree_of(path).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def is_pure(path: Path) -> bool:
    relative = path.relative_to(ROOT)
    return relative.parts[0] == "dos_protocol" or relative.parts[1] == "core"


@cache
def module_file(dotted: str) -> Path | None:
    path = ROOT.joinpath(*dotted.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def test_packages_import_in_one_direction_only() -> None:
    wrong = []
    for path in source_files():
        package = path.relative_to(ROOT).parts[0]
        for line, module in imports_of(path):
            target = module.split(".")[0]
            if target not in MAY_IMPORT or target == package or target in MAY_IMPORT[package]:
                continue
            if any((package, allowed) in EXCEPTIONS for allowed in (module, module.rpartition(".")[0])):
                continue
            if (package, f"{module}.embedded") in EXCEPTIONS and imports_only(path, line, "embedded"):
                continue
            where = path.relative_to(ROOT).as_posix()
            if any(
                module == one or module.startswith(f"{one}.") for at, one in FILE_EXCEPTIONS if at == where
            ):
                continue
            wrong.append(
                f"{path.relative_to(ROOT)}:{line} imports {module}; allowed: {sorted(MAY_IMPORT[package])}"
            )
    assert not wrong, "\n".join(wrong)


def test_no_package_reaches_into_the_core_of_another() -> None:
    """Other packages use a package through its public face (the names of its `__init__`) or its shell."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}; import the name from {module.partition('.')[0]}"
        for path in source_files()
        for line, module in imports_in(tree_of(path), name_of(path).split("."))
        if module.split(".")[0] in MAY_IMPORT.keys() - {path.relative_to(ROOT).parts[0]}
        and module.split(".")[1:2] == ["core"]
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", PARTS)
def test_the_sub_packages_of_a_package_import_in_one_direction_only(package: str) -> None:
    parts, wrong = PARTS[package], []
    TopologicalSorter(parts).prepare()  # the table itself has no circle
    assert set(parts) == {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    for part, allowed in parts.items():
        for path in sorted((ROOT / package / part).glob("*.py")):
            for line, module in imports_of(path):
                target = [*module.split("."), ""][1] if module.startswith(f"{package}.") else ""
                if target in parts.keys() - allowed - {part} and line not in typing_only(path):
                    wrong.append(
                        f"{path.relative_to(ROOT)}:{line} imports {module}; allowed: {sorted(allowed)}"
                    )
    assert not wrong, "\n".join(wrong)


def test_the_rooms_of_the_server_core_import_in_one_direction_only() -> None:
    """The bytes of files know nothing of the server; the requests are above everything but the dispatch."""
    core, wrong = ROOT / "dos_server" / "core", []
    for path in source_files("dos_server"):
        for line, module in imports_of(path):
            room = "dos_server.core.requests"
            if path.parent == core / "files":
                bad = module.startswith("dos_server.core.") and not module.startswith("dos_server.core.files")
            else:
                bad = path.parent == core and path.stem != "server_core" and module.startswith(room)
            if bad:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_the_rooms_of_the_core_of_checkpoints_import_in_one_direction_only() -> None:
    """What is stored knows of nothing; what is sent knows what is stored; the coordinator knows both."""
    allowed = {"records": {"records"}, "links": {"records", "links"}}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for room, rooms in allowed.items()
        for path in sorted((ROOT / "checkpoint/core" / room).glob("*.py"))
        for line, module in imports_of(path)
        if module.startswith("checkpoint.core.")
        and module.split(".")[2] in {"records", "links", "coordination"} - rooms
    ]
    assert not wrong, "\n".join(wrong)


def typing_only(path: Path) -> set[int]:
    """Lines that only a type checker runs."""
    return {
        line
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def imports_only(path: Path, line: int, name: str) -> bool:
    """Whether the `from package import ...` on that line takes nothing but that name."""
    return any(
        isinstance(node, ast.ImportFrom) and node.lineno == line and [a.name for a in node.names] == [name]
        for node in ast.walk(tree_of(path))
    )


def test_the_dos_command_imports_no_package_of_ours_before_a_command_runs() -> None:
    for path in source_files("dos_cli"):
        ours = [
            m for _, m in imports_of(path) if m.split(".")[0] in MAY_IMPORT and not m.startswith("dos_cli")
        ]
        assert not ours, f"{path.relative_to(ROOT)} imports {ours}"


def test_the_packages_below_the_dos_command_need_no_extras() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in source_files(*CORE_DEPENDENCIES_ONLY)
        for line, module in imports_of(path)
        if module.split(".")[0] in EXTRAS
    ]
    assert not wrong, "\n".join(wrong)


def test_spark_is_imported_by_the_spark_integration_alone() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in source_files(*(package for package in MAY_IMPORT if package != "spark_integration"))
        for line, module in imports_of(path)
        if module.split(".")[0] in SPARK
    ]
    assert not wrong, "\n".join(wrong)


def test_pictures_buckets_and_traces_are_imported_in_the_functions_that_use_them() -> None:
    """A program that uses none can do without the library."""
    wrong = []
    for path in source_files():
        tree = tree_of(path)
        local = {
            line
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        } | typing_only(path)
        wrong += [
            f"{path.relative_to(ROOT)}:{line} imports {module}"
            for line, module in imports_of(path)
            if module.split(".")[0] in ON_USE and line not in local
        ]
    assert not wrong, "\n".join(wrong)


def reached_from(path: Path) -> Iterator[tuple[Path, int, str]]:
    """Every import of the file and of the modules of ours that it imports, in turn: (file, line, module)."""
    waiting, seen = [path], {path}
    while waiting:
        here = waiting.pop()
        for line, module in imports_of(here):
            yield here, line, module
            target = module_file(module) if module.split(".")[0] in MAY_IMPORT else None
            if target is not None and target.name != "__init__.py" and target not in seen:
                seen.add(target)
                waiting.append(target)


def test_cores_are_pure_and_so_is_all_that_they_import() -> None:
    wrong = {
        f"{here.relative_to(ROOT)}:{line} imports {module}, and {path.relative_to(ROOT)} rests on it"
        for path in source_files()
        if is_pure(path)
        for here, line, module in reached_from(path)
        if module.split(".")[0] in IMPURE_MODULES
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_cores_call_no_builtin_that_reads_the_environment() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} calls {node.func.id}()"
        for path in source_files()
        if is_pure(path)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS
    ]
    assert not wrong, "\n".join(wrong)


def test_every_package_has_a_core_or_is_one() -> None:
    missing = [
        p
        for p in MAY_IMPORT
        if p not in ("dos", "dos_protocol", "dos_cli") and not (ROOT / p / "core").is_dir()
    ]
    assert not missing


def test_every_file_opens_with_a_docstring() -> None:
    missing = [
        str(path.relative_to(ROOT))
        for path in source_files()
        if path.read_text(encoding="utf-8").strip() and ast.get_docstring(tree_of(path)) is None
    ]
    assert not missing


def lines_without_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None
    length = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None and first.end_lineno is not None:
        length -= first.end_lineno - first.lineno + 1
    return length


def test_functions_stay_short_enough_to_be_read_at_once() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name} has {lines_without_docstring(node)} lines"
        for path in source_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and lines_without_docstring(node) > FUNCTION_LINES_MAX
    ]
    assert not wrong, "\n".join(wrong)


def test_no_short_file_is_a_private_half_of_its_neighbor() -> None:
    """A reader who follows a call should not have to change the file for lines that nobody else uses."""
    files = {name_of(path): path for path in source_files() if path.name != "__init__.py"}
    importers: dict[str, set[Path]] = {name: set() for name in files}
    for path in source_files():
        for name in {module for _, module in imports_of(path)} & files.keys() - {name_of(path)}:
            importers[name].add(path)
    halves = {
        str(path.relative_to(ROOT))
        for name, path in files.items()
        if [importer.parent for importer in importers[name]] == [path.parent]
        and len(path.read_text(encoding="utf-8").splitlines()) < HALF_LINES_MAX
    }
    assert halves == HALVES.keys(), "merge it into its importer, or take it from the list"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for type checkers and in functions count: files in a circle can only be understood together."""
    files = {name_of(path): path for path in source_files() if path.name != "__init__.py"}
    imports = {
        name: {module for _, module in imports_in(tree_of(path), name.split(".")[:-1])}
        & files.keys() - {name}
        for name, path in files.items()
    }
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import os.path", ["os.path"]),
        ("from journal import chain", ["journal", "journal.chain"]),
        ("from . import links", ["checkpoint.core", "checkpoint.core.links"]),
        ("from ..limits import X", ["checkpoint.limits", "checkpoint.limits.X"]),
        ("def f():\n    import time", ["time"]),
    ],
)
def test_imports_are_found_wherever_they_stand(text: str, expected: list[str]) -> None:
    assert [module for _, module in imports_in(ast.parse(text), ["checkpoint", "core"])] == expected
